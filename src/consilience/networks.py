"""Comparator networks: the order statistics of many columns at once, by minimum and maximum alone.

A comparator puts the smaller of two rows' values above the larger, in every column. Batcher's
odd-even merge sort is a fixed list of them, so numpy runs it on rows in cache, many columns an
operation, with no branch. Of the list only what the wanted ranks depend on is kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import numpy as np

from consilience.tensors import Array

Comparator = tuple[int, int, bool, bool]  # two rows; whether the smaller, the larger is needed


@lru_cache(maxsize=64)
def network(count: int, lowest: int, highest: int) -> tuple[Comparator, ...]:
    """Return the comparators after which rows lowest..highest of ``count`` hold those ranks."""
    needed = set(range(lowest, highest + 1))
    kept: list[Comparator] = []
    for low, high in reversed(list(_batcher(count))):
        if low in needed or high in needed:
            kept.append((low, high, low in needed, high in needed))
            needed |= {low, high}
    return tuple(reversed(kept))


def _batcher(count: int) -> Iterator[tuple[int, int]]:
    """Yield the comparators of odd-even merge sort; those that reach beyond the rows are moot."""
    merged = 1  # runs of this length are sorted
    while merged < count:
        apart = merged
        while apart >= 1:
            for first in range(apart % merged, count - apart, 2 * apart):
                for low in range(first, min(first + apart, count - apart)):
                    if low // (2 * merged) == (low + apart) // (2 * merged):
                        yield low, low + apart
            apart //= 2
        merged *= 2


def select(rows: list[Array], spare: Array, lowest: int, highest: int) -> list[Array]:
    """Return rows that hold the ranks lowest..highest; the rows and the spare are used up."""
    for low, high, smaller, larger in network(len(rows), lowest, highest):
        above, below = rows[low], rows[high]
        if smaller and larger:
            np.minimum(above, below, out=spare)
            np.maximum(above, below, out=below)
            rows[low], spare = spare, above
        elif smaller:
            np.minimum(above, below, out=above)
        else:
            np.maximum(above, below, out=below)
    return rows[lowest : highest + 1]
