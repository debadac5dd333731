"""Updates in this process's memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from consilience.arrays import Array, Positions, Vector
from consilience.estimators.coordinatewise import TrimmedMean
from consilience.evidence import Evidence, Layers
from consilience.passes.combine import combine, reduce
from consilience.passes.corroborate import Witnesses
from consilience.passes.observe import by_tensor, ignored, look, observe, screened
from consilience.updates.tensors import Storage
from consilience.updates.trees import Path
from consilience.updates.usable import Updates


class InProcess:
    """An engine over updates that this process can read (see `deliberation.Engine`).

    Subclasses for updates elsewhere override where the value goes and who is told.
    """

    linear = False

    def __init__(self, updates: Updates) -> None:
        self.updates = updates
        self._value: dict[Path, Storage] = {}

    @property
    def given(self) -> tuple[str, ...]:
        """Everybody who sent something."""
        return self.updates.given

    @property
    def parties(self) -> tuple[str, ...]:
        """Whose updates are usable."""
        return self.updates.parties

    @property
    def rejected(self) -> Mapping[str, str]:
        """The others, with reasons."""
        return self.updates.rejected

    @property
    def size(self) -> int:
        """K, the number of coordinates that are evidence."""
        return self.updates.seen

    def observe(self, random: np.random.Generator, *, exact: bool) -> Evidence:
        """Return the evidence, and drop unusable updates."""
        tell = self.tell("evidence")
        self.updates, evidence = observe(self.updates, random, exact=exact, tell=tell)
        return evidence

    def look(self, places: Positions) -> Array:
        """Return the parties' coordinates at the given places."""
        return look(self.updates, places)

    def layers(self, reference: int, random: np.random.Generator) -> Layers | None:
        """Return the distances tensor by tensor, from a sample."""
        return by_tensor(self.updates, reference, random)

    def combine(
        self, weights: Vector, ring: Positions | None, witnesses: Witnesses | None
    ) -> tuple[Vector, Vector]:
        """Form the sum; if it is not finite, drop unusable updates."""
        tell = self.tell("combination")
        apart, alone = combine(self.updates, weights, self._room, ring, tell, witnesses)
        if np.isnan(apart).any():
            self.updates = screened(self.updates)
        return apart, alone

    def reduce(self, rule: TrimmedMean, *, exact: bool) -> tuple[Vector, Vector]:
        """Form the value of a coordinate-wise rule, without unusable updates."""
        tell = self.tell("combination")
        cut = rule.cut(len(self.parties))
        shares, squares = reduce(self.updates, cut, self._room, exact=exact, tell=tell)
        if not np.isfinite(squares).all():
            self.updates = screened(self.updates)
        return shares, squares

    def finish(self, weights: Vector) -> Any:
        """Return the value, after the vote on what is not combined."""
        self.elect(weights)
        return self.updates.rebuild(self._value)

    def elect(self, weights: Vector) -> None:
        """Put to a vote what is not combined."""
        for path, leaf in self.updates.leaves[0].items():
            if leaf.kind != "float":
                self.updates.elect(path, weights, self._room(path))

    def _room(self, path: Path) -> Storage:
        self._value[path] = self.room(path)
        return self._value[path]

    def room(self, path: Path) -> Storage:
        """Return uninitialised storage for a tensor of the value."""
        return self.updates.leaves[self.updates.template][path].empty()

    def tell(self, step: str) -> Callable[[int], None]:
        """Return a function that is told how many coordinates of a step are done."""
        return ignored
