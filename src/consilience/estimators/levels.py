"""Noise levels from distances: s_j + s_l = D_jl for as many pairs of parties as possible.

The sum Σ |1 − D_jl/(s_j + s_l)|^½ over the pairs that met is minimised by reweighted least squares:
a root rather than an absolute value, lest a few close pairs outweigh many that fit. Relative to the
*predicted* distance, so that a pair closer than expected costs at most one. A pair counts as often
as it met: the sum is then one over rounds, in which whoever takes a new name every round has no
more pairs than whoever stays.

The sum has more than one minimum, and adversaries aim for the wrong one. Half a party's median
distance is a good start where most of its peers are quiet, half its lower quartile where most are
far, and a gradual one where a group is as far from itself as from the others; the lowest end is
taken. Where nearly all pairs fit, there is only one.

How well the pairs fit says how far levels can be believed: the slack ρ. What the levels leave of
the distances is covariance.
"""

from __future__ import annotations

from bisect import bisect_left
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from consilience.arrays import Matrix, Vector

Starts = tuple[tuple[float, float], ...]

# Guards against rounding: no choice of method.
_SAME = 1e-8  # of the typical distance: closer are copies, whatever their noise
_WORTH_TELLING = 1e-2  # of the smallest noise worth telling from none: levels stay positive
_PULL = 1e-6  # towards the start, for parties the pairs leave undetermined
_STEPS = 20  # from the covariance that the pairs ask for to independence
_TIE = 1e-9  # of a sum of what pairs count: what rounding may leave between two halves
_JITTER = 1e-6  # of the variances: what a covariance may lack to a positive definite one


class Descent(NamedTuple):
    """How a fit goes on from its start: fields of `Pairwise`, which has the reasons."""

    exact: float
    hardening: float
    tolerance: float
    max_iterations: int


def fit_levels(
    distances: Matrix,
    met: Matrix,
    smallest: float,
    starts: Starts,
    nearly_all: float,
    descent: Descent,
) -> tuple[Vector, int]:
    """Return the levels of the lowest end of all starts, and the iterations that one took.

    A start is the quantile of a party's distances that its level starts at half of, and the misfit
    that counts as none to begin with. ``met`` is how often each two met, relative to those who
    did most; ``smallest`` the least noise worth telling from none.
    """
    quantiles = {0.5: _of_peers(distances, met, 0.5)}
    least = max(_SAME * float(np.median(quantiles[0.5])), _WORTH_TELLING * smallest)
    lowest, found = np.sqrt(descent.exact) * met.sum(), []
    for share, bar in starts:
        if share not in quantiles:
            quantiles[share] = _of_peers(distances, met, share)
        start = np.maximum(0.5 * quantiles[share], least)
        found.append(_descend(distances, met, start, least, bar, descent))
        if found[-1][1] <= nearly_all * lowest:
            break
    levels, _, iterations = min(found, key=lambda end: end[1])
    return levels, iterations


def _descend(
    distances: Matrix, met: Matrix, start: Vector, least: float, bar: float, descent: Descent
) -> tuple[Vector, float, int]:
    """Return the levels, the objective and the iterations of a fit from this start.

    A misfit below the bar counts as none; the bar sinks to what really is none.
    """
    from scipy.linalg.lapack import dposv  # here, since it takes longer to import than the rest

    exact, hardening, tolerance, max_iterations = descent
    bar, room = max(exact, bar), np.empty((4, *met.shape))
    levels, iterations, place = start, 0, np.diag_indices(len(start))
    while iterations < max_iterations:
        iterations += 1
        A, diagonal, right = _equations(distances, met, levels, bar, room)
        diagonal *= 1 + _PULL
        A[place] = diagonal
        right += _PULL * diagonal * start / levels
        before, levels = levels, np.maximum(levels * dposv(A, right)[1], least)
        if bar == exact and np.max(np.abs(levels - before) / (levels + before)) < tolerance:
            break
        bar = max(exact, hardening * bar)
    misfit = np.maximum(np.abs(1 - distances / (levels[:, None] + levels)), exact)
    return levels, float((met * np.sqrt(misfit)).sum()), iterations


def _equations(
    distances: Matrix, met: Matrix, levels: Vector, bar: float, room: Matrix
) -> tuple[Matrix, Vector, Vector]:
    """Return the matrix of the reweighted least squares, its diagonal apart, and the right side.

    In units of the present levels, as these may be thirty orders of magnitude apart. All in
    ``room``, (4, J, J), made once: with fresh arrays an iteration takes twice as long.
    """
    share, ratio, W, A = room
    predicted = np.add(levels[:, None], levels, out=A)
    np.divide(levels[:, None], predicted, out=share)
    np.divide(distances, predicted, out=ratio)
    misfit = np.subtract(1, ratio, out=A)
    np.maximum(np.abs(misfit, out=misfit), bar, out=misfit)
    np.multiply(misfit, np.sqrt(misfit, out=W), out=W)  # to the power 3/2: see the objective
    np.divide(met, W, out=W)
    W *= share
    # The other party's share is one less this one's.
    np.subtract(W, np.multiply(W, share, out=A), out=A)
    return A, np.einsum("jl,jl->j", W, share), np.einsum("jl,jl->j", W, ratio)


def _of_peers(values: Matrix, met: Matrix, share: float) -> Vector:
    """Return a (lower) quantile of each row over the peers that were met, as often as they were."""
    there = met > 0
    values = np.where(there, values, np.inf)
    if (met[there] == 1).all():  # as often as each other: no need to sort
        place = (share * (there.sum(axis=1) - 1)).astype(np.intp)
        ordered = np.partition(values, np.unique(place), axis=1)
    else:
        order = np.argsort(values, axis=1, kind="stable")
        ordered = np.take_along_axis(values, order, axis=1)
        below = np.cumsum(np.take_along_axis(met, order, axis=1), axis=1)
        one = below[:, -1] / there.sum(axis=1)  # what a typical peer counts
        place = np.argmax(below > (1 + _TIE) * share * (below[:, -1] - one)[:, None], axis=1)
    quantile: Vector = ordered[np.arange(len(values)), place]
    return quantile


def slack_of(
    distances: Matrix, levels: Vector, counts: Matrix, fitting: float, most_slack: float
) -> float:
    """Return ρ: the root of how many times worse than by chance most of the pairs fit.

    Of independent noise in n coordinates, D_jl/(s_j + s_l) has the standard deviation √(2/n).
    ``fitting`` of the pairs, more than half: adversaries can make their own pairs fit to make the
    honest look as if they did, and erring on the side of slack costs efficiency alone.
    """
    a, b = np.nonzero(np.triu(counts, 1))
    misfit = np.abs(1 - distances[a, b] / (levels[a] + levels[b])) * np.sqrt(counts[a, b] / 2)
    if misfit.size == 0:
        return 1.0
    by_chance = float(
        f"{NormalDist().inv_cdf((1 + fitting) / 2):.3g}"
    )  # that quantile of |N(0, 1)|
    worse = _quantile(misfit, counts[a, b], fitting) / by_chance
    return float(np.clip(np.sqrt(worse), 1.0, most_slack))


def _quantile(values: Vector, counts: Vector, share: float) -> float:
    """Return a quantile in which a value counts as often as it was seen, interpolated between
    neighbours; where all were seen as often, numpy's own."""
    order = np.argsort(values, kind="stable")
    n = counts[order]
    places = np.cumsum(n) - 0.5 * (n + n[0])
    return float(np.interp(share * places[-1], places, values[order]))


def covariance_of(distances: Matrix, counts: Matrix, levels: Vector) -> Matrix:
    """Return Φ_jl = (s_j + s_l − D_jl)/2, drawn towards independence until it is a covariance.

    As far as it takes, in steps of a twentieth: to find the nearest covariance would cost more than
    all the rest. Whatever is drawn further than a covariance is one, so a bisection finds the step.
    """
    products = np.where(counts > 0, 0.5 * (levels[:, None] + levels - distances), 0.0)
    bound = np.outer(np.sqrt(levels), np.sqrt(levels))  # products of levels may overflow
    products = np.clip(products, -bound, bound)
    np.fill_diagonal(products, 0.0)
    kept = np.linspace(1, 0, _STEPS + 1)

    def possible(step: int) -> bool:
        try:
            np.linalg.cholesky(kept[step] * products + np.diag(levels + _JITTER * levels))
        except np.linalg.LinAlgError:
            return False
        return True

    step = 0 if possible(0) else bisect_left(range(_STEPS), True, 1, key=possible)
    covariance: Matrix = kept[step] * products + np.diag(levels)
    return covariance
