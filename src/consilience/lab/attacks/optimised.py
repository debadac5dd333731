"""Adversaries who try their attack on the very aggregator in use, and send the worst.

The measure is how far the consensus moves from the mean μ of the honest updates. At most twenty
calls of the aggregator: a grid, then a golden-section search around its best point. A rule that
excludes outliers is moved furthest just before it notices, so the search may fall off a cliff; it
keeps the best point it has seen.

With `every`, there is a search only every so many rounds, and its result is sent in between, for
when rounds are expensive.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from consilience.arrays import Array
from consilience.lab.attacks.crafted import moments
from consilience.lab.attacks.registry import Attack, Knowledge, register, send

CALLS = 20
# All customary values are included, so that an optimised attack is at least as bad as a plain one.
# The grid is denser where an adversary is about as far from μ as an honest party.
TAUS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.7, 1.0, 2.0, 4.0, 10.0, 30.0, 100.0)
SIZES = (0.3, 0.5, 1.0, 1.25, 1.5, 2.5, 10.0)
_GOLDEN = (3 - 5**0.5) / 2


@register
def optimised_ipm(knowledge: Knowledge, taus: Sequence[float] = TAUS, every: int = 1) -> Attack:
    """−τμ, with the worst τ in the range of the grid `taus`."""
    return _optimised(knowledge, lambda mu, sd, tau: -tau * mu, sorted(taus), every)


@register
def optimised_alie(knowledge: Knowledge, sizes: Sequence[float] = SIZES, every: int = 1) -> Attack:
    """μ − z·sd, with the worst z of either sign; `sizes` is the grid, without signs."""
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
            return moved if np.isfinite(moved) else np.inf  # NaN is the greatest success

        if rounds % every == 0:
            best = maximise(displacement, grid)
        rounds += 1
        return send(bad(mu, sd, best), honest, count)

    return attack


def maximise(
    function: Callable[[float], float], grid: Sequence[float], calls: int = CALLS
) -> float:
    """The best point of an ascending grid and of a golden-section search between its neighbours."""
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
