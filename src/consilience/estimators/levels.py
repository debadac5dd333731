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
from collections.abc import Iterator
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from consilience.arrays import Matrix, Vector

Starts = tuple[tuple[float, float], ...]

# Guards against rounding: no choice of method.
_SAME = 1e-8  # of the typical distance: closer are copies, whatever their noise
_WORTH_TELLING = 1e-2  # of the smallest noise worth telling from none: levels stay positive
_PULL = 1e-6  # towards the start, at least, for parties the pairs leave undetermined
_SAME_END = 5e-3  # relative: levels that differ by less are the same
_MANY, _GRADIENTS, _SOLVED = 100, 20, 1e-7  # parties, steps, and the relative error that ends them
_CACHED = 1 << 14  # numbers of each array that is worked on
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
) -> tuple[Vector, int]:
    """Return the levels of the lowest end of all starts, and the iterations that one took.

    A start is the quantile of a party's distances that its level starts at half of, and the misfit
    that counts as none to begin with. ``met`` is how often each two met, relative to those who
    did most; ``smallest`` the least noise worth telling from none.
    """
    quantiles = {0.5: _of_peers(distances, met, 0.5)}
    least = max(_SAME * float(np.median(quantiles[0.5])), _WORTH_TELLING * smallest)
    problem = _Problem(distances, met, least, descent.exact, max(descent.pull, _PULL))
    found: list[_End] = []
    for share, bar in starts:
        if share not in quantiles:
            quantiles[share] = _of_peers(distances, met, share)
        start = np.maximum(0.5 * quantiles[share], least)
        end = _descend(problem, start, bar, descent, found)
        if end is not None:
            found.append(end)
            if end.objective <= nearly_all * problem.lowest:
                break
    best = min(found, key=lambda end: end.objective)
    return best.levels, best.iterations


class _End(NamedTuple):
    """Where a start led to."""

    levels: Vector
    objective: float
    iterations: int


def _descend(
    problem: _Problem, start: Vector, bar: float, descent: Descent, found: list[_End]
) -> _End | None:
    """Return where a fit from this start ends; None once it is where another one ended.

    A misfit below the bar counts as none; the bar sinks to what really is none.
    """
    exact, hardening, tolerance, max_iterations, _ = descent
    bar, levels, iterations = max(exact, bar), start, 0
    while iterations < max_iterations:
        iterations += 1
        before, levels = levels, problem.improved(levels, start, bar)
        if bar == exact and _apart(levels, before) < tolerance:
            break
        if any(_apart(levels, end.levels) < _SAME_END for end in found):
            return None
        bar = max(exact, hardening * bar)
    return _End(levels, problem.objective(levels), iterations)


def _apart(levels: Vector, others: Vector) -> float:
    return float(np.max(np.abs(levels - others) / (levels + others)))


class _Problem:
    """The pairs to fit, and room to work in, made once: fresh arrays take longer than the sums.

    Rows are worked on a few at a time, as many as stay in the processor's cache.
    """

    def __init__(
        self, distances: Matrix, met: Matrix, least: float, exact: float, pull: float
    ) -> None:
        size = len(distances)
        self.distances, self.met = distances, met
        self.least, self.exact, self.pull = least, exact, pull
        self.lowest = float(np.sqrt(exact) * met.sum())  # the objective, if all pairs fit
        self.weights, self.ones = np.empty((size, size)), np.ones(size)
        self.rows = max(1, _CACHED // size)
        self.room = np.empty((2, min(self.rows, size), size))

    def _blocks(self, levels: Vector) -> Iterator[tuple[slice, Matrix, Matrix]]:
        """Yield some rows, the distances that the levels predict for them, and room."""
        column, row = np.stack([levels, self.ones], axis=1), np.stack([self.ones, levels])
        for first in range(0, len(levels), self.rows):
            rows = slice(first, first + self.rows)
            predicted, misfit = self.room[:, : len(levels[rows])]
            # The sums of two levels, as a product: numpy takes three times as long to add them.
            yield rows, np.matmul(column[rows], row, out=predicted), misfit

    def improved(self, levels: Vector, start: Vector, bar: float) -> Vector:
        """Return the levels of the least squares reweighted at these.

        A pair of predicted distance p weighs V = max(|1 − D/p|, bar)^(−3/2)/p², and the equations
        are Σ_l V_jl (s_j + s_l) = Σ_l V_jl D_jl.
        """
        V, diagonal, right = self.weights, np.empty(len(levels)), np.empty(len(levels))
        for rows, p, misfit in self._blocks(levels):
            D, v = self.distances[rows], V[rows]
            np.abs(np.subtract(p, D, out=misfit), out=misfit)
            np.maximum(misfit, np.multiply(p, bar, out=v), out=misfit)
            p *= misfit
            np.sqrt(p, out=p)
            p *= misfit
            np.divide(self.met[rows], p, out=v)
            np.matmul(v, self.ones, out=diagonal[rows])
            np.vecdot(v, D, out=right[rows])
        right += self.pull * diagonal * start
        np.fill_diagonal(V, (1 + self.pull) * diagonal)
        return np.maximum(_solved(V, right, levels), self.least)

    def objective(self, levels: Vector) -> float:
        """Return the sum of the roots of all misfits."""
        total = 0.0
        for rows, p, misfit in self._blocks(levels):
            np.divide(self.distances[rows], p, out=misfit)
            np.abs(np.subtract(1, misfit, out=misfit), out=misfit)
            np.sqrt(np.maximum(misfit, self.exact, out=misfit), out=misfit)
            total += float(np.vdot(misfit, self.met[rows]))
        return total


def _solved(A: Matrix, right: Vector, guess: Vector) -> Vector:
    """Return the x with Ax = right.

    By conjugate gradients where parties are many: with the diagonal divided out, nearly all
    eigenvalues are then near one, and a few steps do. Where they do not, as where a level is hardly
    determined, and where parties are few, by Cholesky's decomposition.
    """
    x = _by_gradients(A, right, guess) if len(guess) >= _MANY else None
    if x is None:
        from scipy.linalg.lapack import dposv  # here, since it takes longer to import than the rest

        x = dposv(A, right)[1]
    return x


def _by_gradients(A: Matrix, right: Vector, guess: Vector) -> Vector | None:
    x, residual, before = guess, right - A @ guess, np.inf
    step, diagonal, close = np.zeros_like(x), np.diag(A), _SOLVED * guess
    for _ in range(_GRADIENTS):
        correction = residual / diagonal
        if (np.abs(correction) <= close).all():
            return x
        size = float(residual @ correction)
        step = correction + size / before * step
        pulled = A @ step
        far = size / float(step @ pulled)
        x, residual, before = x + far * step, residual - far * pulled, size
    return None


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
    pairs = np.triu(counts > 0, 1)
    misfit = distances[pairs]
    misfit /= (levels[:, None] + levels)[pairs]
    np.abs(np.subtract(1, misfit, out=misfit), out=misfit)
    seen = counts[pairs]
    misfit *= np.sqrt(seen / 2)
    if misfit.size == 0:
        return 1.0
    by_chance = NormalDist().inv_cdf((1 + fitting) / 2)  # that quantile of |N(0, 1)|
    worse = _quantile(misfit, seen, fitting) / by_chance
    return float(np.clip(np.sqrt(worse), 1.0, most_slack))


def _quantile(values: Vector, counts: Vector, share: float) -> float:
    """Return a quantile in which a value counts as often as it was seen, interpolated between
    neighbours."""
    if (counts == counts[0]).all():  # numpy's own, which need not sort
        return float(np.quantile(values, share, overwrite_input=True))
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
