"""Which coordinates the evidence is taken from: all, or a sample that nobody can predict."""

from __future__ import annotations

import numpy as np

from consilience.arrays import Positions, Spans

# With fewer coordinates, parties or numbers in all than this, no sample is drawn.
SMALL = 1 << 17
_FEW = 4
_NUMBERS = 1 << 23
# The aim for the largest error of a sampled distance, and the most numbers read to reach it: with
# 200 parties 20,000 coordinates each, enough for distances to within a hundredth.
_ERROR = 0.007
_READ = 1 << 22
_SPAN = 4096
# The coordinates sampled to tell whether a party knows what nobody else does; and the length of a
# run of neighbours among them, as a whole cache line costs no more than one number.
PLACES = 4096
_RUN = 8


def sampled_spans(size: int, parties: int, random: np.random.Generator) -> Spans:
    """Return spans of coordinates, one at a random place in each of many equal stretches.

    With n coordinates, a party's distance from the others has a relative error of √(2/n), and the
    largest of J such errors is about √(2 log 2J) times as large. n is chosen for a largest error of
    _ERROR, with the finite-population correction. But the cost of n coordinates grows as J², so
    with more parties fewer coordinates of each are read.
    """
    if size <= SMALL or parties <= _FEW or size * parties <= _NUMBERS:
        return [(0, size)]
    wanted = _wanted(parties)
    wanted /= 1 + wanted / size
    count = int(min(wanted, _limit(parties)))
    stretches = np.linspace(0, size, count // _SPAN + 1).astype(np.int64)
    room = np.diff(stretches) - _SPAN
    starts = stretches[:-1] + random.integers(0, room + 1)
    return [(int(start), int(start) + _SPAN) for start in starts]


def most_read(parties: int) -> int:
    """Return how many coordinates a sample has at most."""
    return int(min(_wanted(parties), _limit(parties)))


def _wanted(parties: int) -> float:
    return float(4 * np.log(2 * parties) / _ERROR**2)


def _limit(parties: int) -> int:
    return max(SMALL // 8, _READ // parties)


def places_of(size: int, random: np.random.Generator) -> Positions:
    """Return coordinates in ascending order: a run at a random place in each of many equal
    stretches, or all of them if there are few."""
    if size <= PLACES:
        return np.arange(size)
    edges = np.linspace(0, size, PLACES // _RUN + 1).astype(np.intp)
    starts = random.integers(edges[:-1], edges[1:] - _RUN + 1)
    places: Positions = (starts[:, None] + np.arange(_RUN)).ravel()
    return places
