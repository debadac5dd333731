"""Rules that look at the coordinates one by one: the median and the trimmed mean.

They have no weights of their own. A party's weight here is its share of the values that went into
the result, averaged over coordinates, so weights sum to one as everywhere.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from consilience.errors import ConsilienceError
from consilience.evidence import Vector
from consilience.networks import select
from consilience.tensors import Array

# Networks are made of many short calls, which threads would fight over, and grow faster than
# numpy's sort, which is one long call: beyond so many parties that is the better way.
FEW = 32


@dataclass(frozen=True)
class TrimmedMean:
    """In each coordinate, the mean of what is left without the ``trim`` share at either end.

    With ``trim=0.5`` all but the middle one or two values go: the coordinate-wise median.
    """

    trim: float = 0.2

    def __post_init__(self) -> None:
        if not 0 <= self.trim <= 0.5:
            raise ConsilienceError(f"trim is a share from 0 to 0.5, found {self.trim}")

    def reduce(self, chunk: Array, spare: Array) -> tuple[Array, Array, Array]:
        """Return the rule's value in each column of a (J, n) chunk, and the least and the greatest
        of the values that went into it. The chunk and the spare, (n,), are used up."""
        kept = self._kept(chunk, spare)
        value: Array = kept[0] + kept[-1] if len(kept) > 1 else kept[0].copy()
        for row in kept[1:-1]:
            value += row
        if len(kept) > 1:
            value /= len(kept)
        return value, kept[0], kept[-1]

    def _kept(self, chunk: Array, spare: Array) -> list[Array]:
        count = len(chunk)
        cut = min(int(self.trim * count + 1e-9), (count - 1) // 2)
        if count <= FEW:
            return select(list(chunk), spare, cut, count - 1 - cut)
        columns = np.ascontiguousarray(chunk.T)
        columns.sort(axis=1)
        return list(columns.T[cut : count - cut])


def shares(chunk: Array, least: Array, greatest: Array) -> Vector:
    """Return how much each row of a chunk contributes to the columns' values, summed over them."""
    inside = (chunk >= least) & (chunk <= greatest)
    said: Vector = inside @ (1.0 / inside.sum(axis=0))
    return said


@dataclass(frozen=True)
class CoordinateMedian(TrimmedMean):
    """In each coordinate, the median."""

    trim: float = field(default=0.5, init=False)
