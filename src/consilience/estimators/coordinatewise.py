"""Rules that treat coordinates one by one: the median and the trimmed mean.

They have no weights of their own. A party's weight is its share of the values that went into the
result, averaged over coordinates, so that weights sum to one as everywhere.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from consilience.errors import ConsilienceError


@dataclass(frozen=True)
class TrimmedMean:
    """In each coordinate, the mean without the ``trim`` share of the values at either end.

    With ``trim=0.5`` only the middle one or two values are left: the coordinate-wise median.

    >>> import numpy as np
    >>> import consilience as cs
    >>> updates = np.array([[1.0, 2], [1, 3], [2, 2], [2, 3], [90, -90]])
    >>> cs.aggregate(updates, cs.TrimmedMean(0.2)).value.round(2).tolist()
    [1.67, 2.33]
    """

    trim: float = 0.2

    def __post_init__(self) -> None:
        if not 0 <= self.trim <= 0.5:
            raise ConsilienceError(f"trim is a share from 0 to 0.5, found {self.trim}")

    def cut(self, parties: int) -> int:
        """Return how many values are cut at either end; one or two are always left."""
        return min(int(self.trim * parties + 1e-9), (parties - 1) // 2)


@dataclass(frozen=True)
class CoordinateMedian(TrimmedMean):
    """In each coordinate, the median.

    >>> import numpy as np
    >>> import consilience as cs
    >>> updates = np.array([[1.0, 2], [1, 3], [2, 2], [2, 3], [90, -90]])
    >>> cs.aggregate(updates, cs.CoordinateMedian()).value.tolist()
    [2.0, 2.0]
    """

    trim: float = field(default=0.5, init=False)
