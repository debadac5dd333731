"""Noise levels from distances: s_j + s_l = D_jl for as many pairs of parties as possible.

The sum Σ |1 − D_jl/(s_j + s_l)|^½ over the pairs that met is minimised by reweighted least squares.
It has a root, not an absolute value, or a few close pairs would outweigh many that fit. It is
relative to the *predicted* distance, so that a pair closer than expected costs at most one. A pair
counts as often as it met: whoever takes a new name every round then has no more pairs than whoever
stays.

The sum has several minima, and adversaries aim for the wrong one. Half a party's median distance is
a good start if most of its peers are quiet, half its lower quartile if most are far, and a gradual
one if the members of a group are as far from each other as from the others. The lowest end is
taken; if nearly all pairs fit, there is only one. Parties near each other may be quiet, or they may
collude: one more start assumes that a camp is quiet, so that both can be compared.

How well the pairs fit tells how far levels can be trusted: the slack ρ. What the levels do not
explain of the distances is covariance.
"""

from __future__ import annotations

from bisect import bisect_left
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from consilience.arrays import Matrix, Positions, Vector
from consilience.passes import loops

Starts = tuple[tuple[float, float], ...]

# Guards against rounding, not parameters of the method.
_SAME = 1e-8  # of the typical distance: closer parties are copies
_WORTH_TELLING = 1e-2  # of the smallest noise that can be told from none: keeps levels positive
_PULL = 1e-6  # the least pull towards the start, for parties that the pairs leave undetermined
_SAME_END = 5e-3  # relative difference of levels that count as equal
_STEPS = 20  # from the covariance that the pairs suggest to independence
_TIE = 1e-9  # share within which two halves count as a tie, for rounding
_JITTER = 1e-6  # of the variances: what a covariance may lack to be positive definite


class Descent(NamedTuple):
    """How a fit proceeds: fields of `Pairwise`, which gives the reasons."""

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

    A start is a quantile and a misfit: levels start at half that quantile of a party's distances,
    and smaller misfits count as zero at first. ``met`` is how often each two met, relative to the
    most frequent pair; ``smallest`` is the least noise that can be told from none.
    """
    met = np.ascontiguousarray(met, float)
    quantiles = {0.5: of_peers(distances, met, 0.5)}
    least = _least(quantiles[0.5], smallest)
    lowest = float(np.sqrt(descent.exact) * met.sum())  # the objective if all pairs fit
    found: list[End] = []
    for share, bar in starts:
        if share not in quantiles:
            quantiles[share] = of_peers(distances, met, share)
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
    """Return the end of the fit that starts with a camp as the quiet parties: all of the distance
    between them and the others is then the noise of the others."""
    met = np.ascontiguousarray(met, float)
    there = np.zeros(len(met), bool)
    there[camp] = True
    near = met * there
    none = ~near.any(axis=1)  # met nobody of the camp: all their peers stand for it
    near[none] = met[none]
    from_camp = of_peers(distances, near, 0.5)
    quiet = 0.5 * float(np.median(from_camp[camp]))
    start = np.where(there, 0.5 * from_camp, from_camp - quiet)
    least = _least(of_peers(distances, met, 0.5), smallest)
    return _descend((distances, met), np.maximum(start, least), 0.0, least, descent, [])


def _least(typical: Vector, smallest: float) -> float:
    """Return the least possible level, given the parties' typical distances."""
    return max(_SAME * float(np.median(typical)), _WORTH_TELLING * smallest)


class End(NamedTuple):
    """The end of a fit."""

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
    """Return where a fit from this start ends; at infinity if it meets the end of another.

    Misfits below the bar count as zero; the bar sinks to its final value. A pair with predicted
    distance p has the weight V = max(|1 − D/p|, bar)^(−3/2)/p², and the equations of an iteration
    are Σ_l V_jl (s_j + s_l) = Σ_l V_jl D_jl. With many parties they are solved by conjugate
    gradients: scaled by the diagonal nearly all eigenvalues are near one, and a few steps are
    enough. If they are not, as when a level is hardly determined, a Cholesky decomposition is used.
    """
    levels, others = np.empty_like(start), np.array([end.levels for end in found])
    how = bar, *descent[:4], max(descent.pull, _PULL), least, _SAME_END
    iterations, objective = loops.current.descend(pairs, start, others, levels, how)
    return End(levels, objective, iterations)


def of_peers(values: Matrix, met: Matrix, share: float) -> Vector:
    """Return a (lower) quantile of each row over the peers, weighted by how often they were met."""
    there = met > 0
    values = np.where(there, values, np.inf)
    if (met == there).all():  # all equally often: no need to sort
        place = (share * (there.sum(axis=1) - 1)).astype(np.intp)
        ordered = np.partition(values, np.unique(place), axis=1)
    else:
        order = np.argsort(values, axis=1, kind="stable")
        ordered = np.take_along_axis(values, order, axis=1)
        below = np.cumsum(np.take_along_axis(met, order, axis=1), axis=1)
        one = below[:, -1] / there.sum(axis=1)  # weight of a typical peer
        place = np.argmax(below > (1 + _TIE) * share * (below[:, -1] - one)[:, None], axis=1)
    quantile: Vector = ordered[np.arange(len(values)), place]
    return quantile


def slack_of(
    distances: Matrix, levels: Vector, counts: Matrix, fitting: float, most_slack: float
) -> float:
    """Return ρ: the root of how many times worse than by chance most pairs fit.

    With independent noise in n coordinates, D_jl/(s_j + s_l) has the standard deviation √(2/n).
    ``fitting`` is the share of pairs considered, more than half: adversaries can make their own
    pairs fit, as if the honest ones did. Too much slack only costs efficiency.
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
    """Return the entries of a symmetric matrix, one for each pair."""
    return np.concatenate([row[j + 1 :] for j, row in enumerate(matrix)])


def _quantile(values: Vector, counts: Vector, share: float) -> float:
    """Return a weighted quantile, interpolated between neighbours."""
    if (counts == counts[0]).all():  # equal weights: no need to sort
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
    """Return Φ_jl = (s_j + s_l − D_jl)/2, shrunk towards independence until it is a covariance.

    As little as necessary, in steps of a twentieth: the nearest covariance would cost more than all
    the rest. After a valid step all further ones are valid, so a bisection finds the first.
    """
    from scipy.linalg.lapack import dpotrf  # here, as its import takes longer than all others

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

    # The first steps are often enough, and each costs a decomposition: so try growing steps first.
    low, high = -1, 0
    while high < _STEPS and not possible(high):
        low, high = high, min(2 * high + 1, _STEPS)
    step = bisect_left(range(high), True, low + 1, key=possible)
    products *= kept[step]
    np.fill_diagonal(products, levels)
    return products
