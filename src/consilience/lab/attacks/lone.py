"""Attacks that one client of a real federation can make, to test the federation.

A client sees only its own update. It trains honestly, takes the difference to the model it was sent
as the mean of all honest ones, and sends what the attack makes of that. Attacks that need more
knowledge are refused.

    attack = LoneAttack("ipm-10")
    bad = attack({"w": trained}, {"w": sent}, round=1)

`consilience.lab.flower` and `consilience.lab.nvflare` put it between a client and its server.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import numpy as np

from consilience.arrays import Array
from consilience.lab.attacks import SUITE, attacks, make

log = logging.getLogger("consilience")

_OTHERS = "needs the updates of other parties, and a client sees only its own"
_DATA = "changes what is trained on, and here is only what comes of it: change the client's data"
_NEEDS = {
    **dict.fromkeys(("adaptive", "alie", "mimic", "min_max", "min_sum"), _OTHERS),
    **dict.fromkeys(("optimised_alie", "optimised_ipm", "byzfl_alie", "byzfl_ipm"), _OTHERS),
    **dict.fromkeys(("label_flip", "random_local"), _DATA),
    **dict.fromkeys(("patch", "central", "semantic", "replacement", "rare", "constrained"), _DATA),
}


def lone_attacks() -> list[str]:
    """The names of the attacks that one client can make."""
    return [name for name in attacks() if name not in _NEEDS]


class LoneAttack:
    """What one client sends instead of its update.

    attack    a name of `lone_attacks`, or a label of `SUITE` such as "ipm-10"
    seed      clients with the same seed draw the same numbers: they collude. None: each its own
    settings  of the attack
    """

    def __init__(self, attack: str, seed: int | None = None, **settings: Any) -> None:
        name, usual = SUITE.get(attack, (attack, {}))
        if name in _NEEDS:
            can = ", ".join(lone_attacks())
            raise ValueError(f"{attack} {_NEEDS[name]}. One client alone can make: {can}")
        self.attack, self.seed = attack, seed
        self._made = make(name, **{**usual, **settings})

    def __call__(
        self, update: Mapping[str, Array], start: Mapping[str, Array] | None, round: int = 0
    ) -> dict[str, Array]:
        """Return what is sent for an update of named tensors.

        ``start`` is the model that the client was sent; None if updates are differences. Only
        floating-point tensors are changed.
        """
        log.warning("round %d: this client attacks its federation: %s", round, self.attack)
        names = [name for name, values in update.items() if _floats(name, values)]
        if not names:
            raise ValueError("the update has no tensors of floating-point numbers to attack")
        own = {name: _difference(name, update[name], start) for name in names}
        flat = np.concatenate([own[name].ravel() for name in names])
        dtype = np.result_type(*(update[name].dtype for name in names))
        rng = np.random.default_rng(None if self.seed is None else [self.seed, round])
        (sent,) = self._made(flat.astype(dtype)[None], 1, rng)
        if isinstance(sent, Mapping):  # a mapping without tensors
            return dict(sent)
        if sent.shape != flat.shape:
            return {**update, names[0]: sent.astype(update[names[0]].dtype)}
        ends = np.cumsum([own[name].size for name in names])
        pieces = dict(zip(names, np.split(sent, ends[:-1]), strict=True))
        moved = {name: _moved(name, piece, update[name], start) for name, piece in pieces.items()}
        return {**update, **moved}


def _floats(name: str, values: Any) -> bool:
    if not isinstance(values, np.ndarray):
        kind = type(values).__name__
        raise ValueError(f"tensor {name!r} is a {kind}, expected a numpy array: have them sent so")
    return bool(values.dtype.kind == "f")


def _difference(name: str, values: Array, start: Mapping[str, Array] | None) -> Array:
    if start is None:
        return values.astype(np.float64)
    if name not in start or np.shape(start[name]) != values.shape:
        raise ValueError(
            f"tensor {name!r} of the update, of shape {values.shape}, is not in the model that was "
            "sent: are updates differences?"
        )
    difference: Array = values.astype(np.float64) - start[name]
    return difference


def _moved(name: str, piece: Array, like: Array, start: Mapping[str, Array] | None) -> Array:
    """Return a difference in the form that is sent; finite numbers stay finite."""
    by = piece.reshape(like.shape).astype(np.float64)
    to = by if start is None else start[name] + by
    limit = np.finfo(like.dtype).max
    moved: Array = np.where(np.isfinite(by), np.clip(to, -limit, limit), by).astype(like.dtype)
    return moved
