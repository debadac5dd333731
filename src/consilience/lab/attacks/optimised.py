"""Adversaries who try their attack on the very aggregator they are up against, and send the worst.

How bad it is, is how far the consensus moves from the mean μ of the honest updates. Twenty calls
of the aggregator at most: a grid, then a golden-section search about the best of it. A rule that
excludes outliers is moved furthest just before it notices, so the search may well climb a cliff;
it keeps the best it has seen.

With `every`, the search is made anew only every so many rounds, and what it found sent in between:
where a round of training is expensive, twenty calls more are all the more so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from consilience.lab.attacks.crafted import moments
from consilience.lab.attacks.registry import Array, Attack, Knowledge, register, send

CALLS = 20
# With every value that is customary, so that an optimised attack does no less than a plain one;
# denser where an adversary is about as far from μ as an honest party, for there it is noticed.
TAUS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.7, 1.0, 2.0, 4.0, 10.0, 30.0, 100.0)
SIZES = (0.3, 0.5, 1.0, 1.25, 1.5, 2.5, 10.0)
_GOLDEN = (3 - 5**0.5) / 2


@register
def optimised_ipm(knowledge: Knowledge, taus: Sequence[float] = TAUS, every: int = 1) -> Attack:
    """−τμ, with the worst τ between the least and the largest of `taus`, the grid."""
    return _optimised(knowledge, lambda mu, sd, tau: -tau * mu, sorted(taus), every)


@register
def optimised_alie(knowledge: Knowledge, sizes: Sequence[float] = SIZES, every: int = 1) -> Attack:
    """μ − z·sd, with the worst z of either sign; `sizes` is the grid, without the signs."""
    grid = sorted({sign * size for size in sizes for sign in (-1, 1)})
    return _optimised(knowledge, lambda mu, sd, z: mu - z * sd, grid, every)


def _optimised(
    knowledge: Knowledge,
    bad: Callable[[Array, Array, float], Array],
    grid: Sequence[float],
    every: int,
) -> Attack:
    aggregate = knowledge.aggregate
    if aggregate is None:
        raise ValueError("an optimised attack tries the aggregator: give Knowledge an `aggregate`")

    rounds, best = 0, 0.0

    def attack(honest: Array, count: int, rng: np.random.Generator) -> Array:
        nonlocal rounds, best
        mu, sd = moments(honest)

        def displacement(size: float) -> float:
            sent = send(bad(mu, sd, size), honest, count)
            moved = float(np.linalg.norm(aggregate(np.vstack([honest, sent])) - mu))
            return moved if np.isfinite(moved) else np.inf  # a NaN is as far as one can get

        if rounds % every == 0:
            best = maximise(displacement, grid)
        rounds += 1
        return send(bad(mu, sd, best), honest, count)

    return attack


def maximise(
    function: Callable[[float], float], grid: Sequence[float], calls: int = CALLS
) -> float:
    """The best of an ascending grid, and of a golden-section search between its neighbours."""
    values = [function(point) for point in grid]
    at = int(np.argmax(values))
    best, most = grid[at], values[at]
    ends = [grid[max(at - 1, 0)], grid[min(at + 1, len(grid) - 1)]]
    for _ in range(calls - len(grid)):
        side = int(ends[1] - best > best - ends[0])
        probe = best + _GOLDEN * (ends[side] - best)
        found = function(probe)
        if found > most:
            ends[1 - side], best, most = best, probe, found
        else:
            ends[side] = probe
    return best
