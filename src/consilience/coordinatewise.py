"""Rules that look at the coordinates one by one: the median and the trimmed mean.

They have no weights of their own. A party's weight here is its share of the values that went into
the result, averaged over coordinates, so weights sum to one as everywhere.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from consilience.errors import ConsilienceError
from consilience.evidence import Vector
from consilience.tensors import Array


@dataclass(frozen=True)
class TrimmedMean:
    """In each coordinate, the mean of what is left without the ``trim`` share at either end.

    With ``trim=0.5`` all but the middle one or two values go: the coordinate-wise median.
    """

    trim: float = 0.2

    def __post_init__(self) -> None:
        if not 0 <= self.trim <= 0.5:
            raise ConsilienceError(f"trim is a share from 0 to 0.5, found {self.trim}")

    def reduce(self, chunk: Array) -> tuple[Array, Vector]:
        """Return the rule's value for each column of a (J, n) chunk, and each row's share in it."""
        count = chunk.shape[0]
        cut = min(int(self.trim * count + 1e-9), (count - 1) // 2)
        ordered = np.sort(chunk, axis=0)
        kept = ordered[cut : count - cut]
        inside = (chunk >= kept[0]) & (chunk <= kept[-1])
        share: Vector = (inside / inside.sum(axis=0)).sum(axis=1)
        value: np.ndarray[Any, Any] = kept.mean(axis=0)
        return value, share


@dataclass(frozen=True)
class CoordinateMedian(TrimmedMean):
    """In each coordinate, the median."""

    trim: float = field(default=0.5, init=False)
