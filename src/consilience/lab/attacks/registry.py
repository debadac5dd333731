"""What an attack is, what it may know, and the attacks by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from consilience.arrays import Array

# (f, K); a list of f objects if they are not arrays.
Sent = Array | list[Any]
Attack = Callable[[Array, int, np.random.Generator], Sent]
# What an adversary does to its inputs and targets before training.
Poison = Callable[[Array, Array, np.random.Generator], tuple[Array, Array]]


@dataclass(frozen=True)
class Knowledge:
    """What adversaries may know beside the honest updates. None: the protocol does not say.

    train      (poison, f) → (f, K): what f adversaries send if they train honestly in this round,
               on poisoned data. Each one's poison gets its own random stream, as in `Trainers`
    aggregate  (J, K) → (K,): the aggregator in use, given all updates, the honest ones first;
               called many times, so it must not learn from these calls
    classes    the number of classes (for text, the vocabulary); None: the targets are numbers
    """

    train: Callable[[Poison, int], Array] | None = None
    aggregate: Callable[[Array], Array] | None = None
    classes: int | None = None


_ATTACKS: dict[str, Callable[..., Attack]] = {}


def register(factory: Callable[..., Attack]) -> Callable[..., Attack]:
    """Register an attack under the name of its factory function."""
    _ATTACKS[factory.__name__] = factory
    return factory


def attacks() -> list[str]:
    """The names of the attacks."""
    return sorted(_ATTACKS)


def make(name: str, knowledge: Knowledge | None = None, **settings: Any) -> Attack:
    """The attack of that name, by adversaries with this knowledge."""
    if name not in _ATTACKS:
        raise ValueError(f"no attack is called {name!r}; there are: {', '.join(attacks())}")
    made = _ATTACKS[name](knowledge or Knowledge(), **settings)

    def attack(honest: Array, count: int, rng: np.random.Generator) -> Sent:
        if count == 0:
            return honest[:0].copy()
        if len(honest) == 0:  # nobody honest takes part: guess zero
            honest = np.zeros((1, honest.shape[1]), honest.dtype)
        return made(honest, count, rng)

    return attack


def send(values: Array, honest: Array, count: int) -> Array:
    """What all adversaries send, (K,), or each of them, (f, K), clipped to the honest dtype."""
    limit = float(np.finfo(honest.dtype).max)
    rows = np.clip(values, -limit, limit).astype(honest.dtype, copy=False)
    return rows if rows.ndim == 2 else np.tile(rows, (count, 1))
