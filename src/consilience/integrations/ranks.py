"""The global adapter at the ranks that each party works with."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from consilience.engines.aggregate import aggregate
from consilience.updates.adapters import LoRA

Tensors = dict[str, NDArray[Any]]
Shapes = tuple[tuple[str, tuple[int, ...]], ...]
_IT = "global"


class Ranks:
    """The shapes of parties' adapters, from what each sent last. Newcomers have none."""

    def __init__(self) -> None:
        self._shapes: dict[str, Shapes] = {}

    def learn(self, updates: Mapping[str, Mapping[str, NDArray[Any]]]) -> None:
        """Remember the shapes of usable updates."""
        for party, update in updates.items():
            self._shapes[party] = tuple(sorted((name, x.shape) for name, x in update.items()))

    def fitted(
        self, model: Tensors, parties: Iterable[str], lora: LoRA
    ) -> list[tuple[list[str], Tensors]]:
        """Return the global adapter for the parties with other ranks: the nearest of a lower rank,
        or the same one padded. Parties with equal shapes share it."""
        common = tuple(sorted((name, x.shape) for name, x in model.items()))
        alike: dict[tuple[Shapes, str | None], list[str]] = {}
        for party in parties:
            key = self._shapes.get(party, common), party if party in lora.parties else None
            alike.setdefault(key, []).append(party)
        return [
            (some, _fitted(model, dict(shapes), lora, lora.of(some[0])))
            for (shapes, _), some in alike.items()
            if shapes != common
        ]


def _fitted(
    model: Tensors, shapes: Mapping[str, tuple[int, ...]], lora: LoRA, theirs: LoRA
) -> Tensors:
    # The centre only sets the ranks of the value; it has no weight, so its numbers do not matter.
    like = {name: np.broadcast_to(x.dtype.type(0), shapes[name]) for name, x in model.items()}
    meant = replace(theirs, rank=None, parties={_IT: lora})
    return dict(aggregate({_IT: model}, "mean", center=like, adapters=meant).value)
