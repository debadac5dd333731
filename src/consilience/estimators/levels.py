"""Noise levels from distances: s_j + s_l = D_jl for as many pairs of parties as possible.

The sum Σ |1 − D_jl/(s_j + s_l)|^½ over the pairs that met is minimised by reweighted least squares:
a root rather than an absolute value, lest a few close pairs outweigh many that fit. Relative to the
*predicted* distance, so that a pair closer than expected costs at most one. A pair counts as often
as it met: the sum is then one over rounds, in which whoever takes a new name every round has no
more pairs than whoever stays.

The sum has more than one minimum, and adversaries aim for the wrong one. Half a party's median
distance is a good start where most of its peers are quiet, half its lower quartile where most are
far, and a gradual one where a group is as far from itself as from the others; the lowest end is
taken. Where nearly all pairs fit, there is only one. A camp of parties that are near each other can
be the quiet ones, or in league: a start takes it for the quiet ones, so that both can be compared.

How well the pairs fit says how far levels can be believed: the slack ρ. What the levels leave of
the distances is covariance.
"""

from __future__ import annotations

from bisect import bisect_left
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from consilience.arrays import Matrix, Positions, Vector
from consilience.passes import loops

Starts = tuple[tuple[float, float], ...]

# Guards against rounding: no choice of method.
_SAME = 1e-8  # of the typical distance: closer are copies, whatever their noise
_WORTH_TELLING = 1e-2  # of the smallest noise worth telling from none: levels stay positive
_PULL = 1e-6  # towards the start, at least, for parties the pairs leave undetermined
_SAME_END = 5e-3  # relative: levels that differ by less are the same
_STEPS = 20  # from the covariance that the pairs ask for to independence
_TIE = 1e-9  # of a sum of what pairs count: what rounding may leave between two halves
_JITTER = 1e-6  # of the variances: what a covariance may lack to a positive definite one


class Descent(NamedTuple):
    """How a fit goes on from its start: fields of `Pairwise`, which has the reasons."""

    exact: float
    hardening: float
    tolerance: float
    max_iterations: int
    pull: float = _PULL


def fit_levels(
    distances: Matrix,
    met: Matrix,
    smallest: float,
    starts: Starts,
    nearly_all: float,
    descent: Descent,
) -> End:
    """Return the lowest end of all starts.

    A start is the quantile of a party's distances that its level starts at half of, and the misfit
    that counts as none to begin with. ``met`` is how often each two met, relative to those who
    did most; ``smallest`` the least noise worth telling from none.
    """
    met = np.ascontiguousarray(met, float)
    quantiles = {0.5: _of_peers(distances, met, 0.5)}
    least = _least(quantiles[0.5], smallest)
    lowest = float(np.sqrt(descent.exact) * met.sum())  # the objective, if all pairs fit
    found: list[End] = []
    for share, bar in starts:
        if share not in quantiles:
            quantiles[share] = _of_peers(distances, met, share)
        start = np.maximum(0.5 * quantiles[share], least)
        end = _descend((distances, met), start, bar, least, descent, found)
        if end.objective < np.inf:
            found.append(end)
            if end.objective <= nearly_all * lowest:
                break
    return min(found, key=lambda end: end.objective)


def fit_camp(
    distances: Matrix, met: Matrix, smallest: float, camp: Positions, descent: Descent
) -> End:
    """Return where the fit ends that starts from a camp of quiet parties: all of the distance
    between them and the others is then the others'."""
    met = np.ascontiguousarray(met, float)
    there = np.zeros(len(met), bool)
    there[camp] = True
    near = met * there
    none = ~near.any(axis=1)  # of the camp were met by these: all their peers stand for it
    near[none] = met[none]
    from_camp = _of_peers(distances, near, 0.5)
    quiet = 0.5 * float(np.median(from_camp[camp]))
    start = np.where(there, 0.5 * from_camp, from_camp - quiet)
    least = _least(_of_peers(distances, met, 0.5), smallest)
    return _descend((distances, met), np.maximum(start, least), 0.0, least, descent, [])


def _least(typical: Vector, smallest: float) -> float:
    """Return the least that a level may be, given the parties' typical distances."""
    return max(_SAME * float(np.median(typical)), _WORTH_TELLING * smallest)


class End(NamedTuple):
    """Where a start led to."""

    levels: Vector
    objective: float
    iterations: int


def _descend(
    pairs: tuple[Matrix, Matrix],
    start: Vector,
    bar: float,
    least: float,
    descent: Descent,
    found: list[End],
) -> End:
    """Return where a fit from this start ends, at infinity once it is where another one ended.

    A misfit below the bar counts as none; the bar sinks to what really is none. A pair of predicted
    distance p weighs V = max(|1 − D/p|, bar)^(−3/2)/p², and the equations of an iteration are
    Σ_l V_jl (s_j + s_l) = Σ_l V_jl D_jl. Where parties are many, conjugate gradients solve them:
    with the diagonal divided out nearly all eigenvalues are near one, and a few steps do. Where
    they do not, as where a level is hardly determined, Cholesky's decomposition does.
    """
    levels, others = np.empty_like(start), np.array([end.levels for end in found])
    how = bar, *descent[:4], max(descent.pull, _PULL), least, _SAME_END
    iterations, objective = loops.current.descend(pairs, start, others, levels, how)
    return End(levels, objective, iterations)


def _of_peers(values: Matrix, met: Matrix, share: float) -> Vector:
    """Return a (lower) quantile of each row over the peers that were met, as often as they were."""
    there = met > 0
    values = np.where(there, values, np.inf)
    if (met == there).all():  # as often as each other: no need to sort
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
    seen, misfit = _pairs(counts), 1 - _pairs(distances) / _pairs(levels[:, None] + levels)
    met = seen > 0
    if not met.all():
        seen, misfit = seen[met], misfit[met]
    if misfit.size == 0:
        return 1.0
    misfit = np.abs(misfit, out=misfit)
    misfit *= np.sqrt(seen / 2)
    by_chance = NormalDist().inv_cdf((1 + fitting) / 2)  # that quantile of |N(0, 1)|
    worse = _quantile(misfit, seen, fitting) / by_chance
    return float(np.clip(np.sqrt(worse), 1.0, most_slack))


def _pairs(matrix: Matrix) -> Vector:
    """Return what a symmetric matrix says of each two."""
    return np.concatenate([row[j + 1 :] for j, row in enumerate(matrix)])


def _quantile(values: Vector, counts: Vector, share: float) -> float:
    """Return a quantile in which a value counts as often as it was seen, interpolated between
    neighbours."""
    if (counts == counts[0]).all():  # no need to sort
        place = share * (len(values) - 1)
        low = int(place)
        high = min(low + 1, len(values) - 1)
        ordered = np.partition(values, (low, high))
        return float(ordered[low] + (place - low) * (ordered[high] - ordered[low]))
    order = np.argsort(values, kind="stable")
    n = counts[order]
    places = np.cumsum(n) - 0.5 * (n + n[0])
    return float(np.interp(share * places[-1], places, values[order]))


def covariance_of(distances: Matrix, counts: Matrix, levels: Vector) -> Matrix:
    """Return Φ_jl = (s_j + s_l − D_jl)/2, drawn towards independence until it is a covariance.

    As far as it takes, in steps of a twentieth: to find the nearest covariance would cost more than
    all the rest. Whatever is drawn further than a covariance is one, so a bisection finds the step.
    """
    from scipy.linalg.lapack import dpotrf  # here, since it takes longer to import than the rest

    bound = np.sqrt(levels)
    bound = bound[:, None] * bound  # products of levels may overflow
    products = levels[:, None] + levels
    products -= distances
    products *= 0.5
    np.clip(products, -bound, bound, out=products)
    products[counts == 0] = 0.0
    kept = np.linspace(1, 0, _STEPS + 1)

    def possible(step: int) -> bool:
        drawn = np.multiply(products, kept[step], out=bound)
        np.fill_diagonal(drawn, (1 + _JITTER) * levels)
        return bool(dpotrf(drawn.T, lower=True, clean=False, overwrite_a=True)[1] == 0)

    # The first step often is enough, and each takes a decomposition: larger and larger ones first.
    low, high = -1, 0
    while high < _STEPS and not possible(high):
        low, high = high, min(2 * high + 1, _STEPS)
    step = bisect_left(range(high), True, low + 1, key=possible)
    products *= kept[step]
    np.fill_diagonal(products, levels)
    return products
