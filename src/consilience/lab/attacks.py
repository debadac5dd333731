"""The adversaries.

An attack is a function of the honest updates (H, K), the number of adversaries f and a random
generator, and gives what the adversaries send, (f, K):

    knowledge = Knowledge(classes=10, train=train)     # what this protocol can tell an adversary
    attack = make("gaussian", knowledge)
    bad = attack(honest, 5, rng)

Whatever an attack needs beyond that, the protocol puts into one `Knowledge`, whichever attack is
to come; an attack's own settings are keywords of `make`. To add an attack, write a function that
takes a Knowledge and its settings, returns an Attack, and is decorated with `register`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Attack = Callable[[Array, int, np.random.Generator], Array]
# What an adversary does to its own inputs and targets before it trains on them.
Poison = Callable[[Array, Array, np.random.Generator], tuple[Array, Array]]


@dataclass(frozen=True)
class Knowledge:
    """What adversaries may know besides the honest updates. None: the protocol does not say.

    train      (poison, f) → (f, K): what f adversaries send when they train as they should, in
               this very round, but on poisoned data. It gives each adversary's poison the
               adversary's own random stream, as `Parties` does
    aggregate  (J, K) → (K,): the aggregator they are up against, all updates in, consensus out
    classes    the number of classes (for text, the vocabulary); None: the targets are numbers
    """

    train: Callable[[Poison, int], Array] | None = None
    aggregate: Callable[[Array], Array] | None = None
    classes: int | None = None


_ATTACKS: dict[str, Callable[..., Attack]] = {}


def register(factory: Callable[..., Attack]) -> Callable[..., Attack]:
    """Make an attack known by the name of the function that makes it."""
    _ATTACKS[factory.__name__] = factory
    return factory


def attacks() -> list[str]:
    """The names of the attacks."""
    return sorted(_ATTACKS)


def make(name: str, knowledge: Knowledge | None = None, **settings: Any) -> Attack:
    """The attack of that name, by adversaries who know this much."""
    if name not in _ATTACKS:
        raise ValueError(f"no attack is called {name!r}; there are: {', '.join(attacks())}")
    return _ATTACKS[name](knowledge or Knowledge(), **settings)


@register
def gaussian(knowledge: Knowledge, scale: float = 1.0) -> Attack:
    """The paper's: N(0, scale²) in every coordinate, in place of the update."""

    def attack(honest: Array, count: int, rng: np.random.Generator) -> Array:
        drawn = rng.standard_normal((count, honest.shape[1]), dtype=np.float32)
        return (scale * drawn).astype(honest.dtype, copy=False)

    return attack


@register
def random_local(
    knowledge: Knowledge, replace: Literal["labels", "inputs", "both"] = "labels"
) -> Attack:
    """The paper's: an honest computation on random labels, random inputs, or both.

    Labels are uniform over the classes, or standard normal where they are numbers. Inputs are
    uniform over the vocabulary when they are codes, else normal with the mean and spread of the
    true ones, so that they are as large as the honest parties' inputs.
    """
    train, classes = knowledge.train, knowledge.classes
    if train is None:
        raise ValueError("random_local trains on random data: give Knowledge a `train` function")
    if replace not in ("labels", "inputs", "both"):
        raise ValueError(f"replace is 'labels', 'inputs' or 'both', not {replace!r}")

    def poison(inputs: Array, targets: Array, rng: np.random.Generator) -> tuple[Array, Array]:
        if replace != "labels":
            inputs = _noise_like(inputs, classes, rng)
        if replace != "inputs":
            targets = _noise_like(targets, classes, rng, standard=True)
        return inputs, targets

    def attack(honest: Array, count: int, rng: np.random.Generator) -> Array:
        return train(poison, count)

    return attack


def _noise_like(
    true: Array, classes: int | None, rng: np.random.Generator, standard: bool = False
) -> Array:
    if np.issubdtype(true.dtype, np.integer):
        if classes is None:
            raise ValueError("random classes are to be drawn: give Knowledge their number, classes")
        return rng.integers(classes, size=true.shape, dtype=true.dtype)
    mean, spread = (0.0, 1.0) if standard else (true.mean(), true.std())
    return rng.normal(mean, spread, true.shape).astype(true.dtype)
