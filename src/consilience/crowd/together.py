"""Finds who moves together, from the distances between parties, without the truth.

For parties j and l with n tasks in common, D_jl is their mean squared difference. If they err
independently, n D_jl/(s_j + s_l) is a χ² with n degrees of freedom; if one copies the other, it is
many times smaller. With few tasks in common chance matters much, so parties are compared by the log
likelihood ratio of copying (a fraction ρ of the distance, a tenth) to independence:

    ℓ_jl = n/2 · (log 1/ρ − (1/ρ − 1) D_jl/(s_j + s_l)).

Agreement on one task is worth at most log(1/ρ)/2, so that a coarse scale, where equal answers are
common, does not make a clique. Parties are clustered by the mean ℓ between clusters as long as it
is positive. The m(m − 1)/2 pairs of the m parties that rated a task are not independent: they have
only m − 1 independent differences. So a cluster is judged by its ratings, not by its pairs: with
m_i members who rated task i, p_j = 1/s_j, and x̄_i the mean of their ratings weighted by p_j,

    ℓ = Σ_i ((m_i − 1) log 1/ρ − (1/ρ − 1) Σ_j p_j (x_ij − x̄_i)²)/2,

which is ℓ_jl for two. Under independence E[exp ℓ] = 1, so the probability of ℓ > t is below
exp(−t). A cluster is accepted if chance makes one like it in fewer than one crowd in twenty, given
the number of possible clusters of its size, and if each member raises ℓ by more than log J.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import lgamma
from typing import Any

import numpy as np
import numpy.typing as npt

from consilience.arrays import Mask, Positions, Vector
from consilience.crowd.ratings import Ratings, medians, total

_COPY = 0.1  # ρ
_NONE = 1e-9  # smallest difference, relative to the ratings' typical squared deviation
_TINY = 1e-12  # smallest part of a sum that is not rounding
_DOUBT = np.log(20)  # significance: one crowd in twenty
_MOST_PAIRS = 5_000_000  # pairs of ratings of the same task, over all tasks
_MOST_PARTIES = 3000  # most parties to cluster: those with the closest peers


@dataclass(frozen=True, eq=False)
class Pairs:
    """Pairs of parties that rated the same tasks: mean squared differences and numbers of tasks."""

    first: Positions
    second: Positions
    distance: Vector
    count: Vector
    parties: int
    least: float  # a squared difference; smaller ones tell little more
    rows: Any  # (J, I), sparse: the compared ratings, about each task's median

    @classmethod
    def of(cls, ratings: Ratings, values: Vector) -> Pairs:
        """Return the pairs for a value in each row: the ratings or their residuals."""
        from scipy.sparse import csr_array, triu  # here, as it is slow to import

        kept = _thinned(ratings)
        # About each task's median, as a difference of large numbers would hide a small one.
        middle = medians(ratings.task, values, ratings.per_task)
        rest = (values - middle[ratings.task])[kept]
        at, size = (ratings.task[kept], ratings.party[kept]), ratings.size
        seen = csr_array((np.ones(rest.size), at), shape=size)
        given = csr_array((rest, at), shape=size)
        squares = csr_array((rest**2, at), shape=size).T @ seen
        difference = squares + squares.T - 2 * (given.T @ given)
        # Count and sum as real and imaginary part, since a zero sum would not be stored.
        counts: Any = seen.T @ seen
        both = triu(difference + 1j * counts, 1).tocoo()
        first, second = (place.astype(np.intp) for place in both.coords)
        count = both.data.imag
        distance = np.maximum(both.data.real, 0.0) / count
        return cls(first, second, distance, count, size[1], _least(ratings.value), given.T.tocsr())

    def sums(self, first: Vector, second: Vector) -> Vector:
        """Return each party's sum over its pairs."""
        each = np.append(self.first, self.second)
        return total(each, np.append(first, second), self.parties)

    def evidence(self, levels: Vector) -> Vector:
        """Return ℓ of each pair."""
        # If no difference is expected, equal answers are not evidence.
        expected = levels[self.first] + levels[self.second] + self.least
        ratio = (self.distance + self.least) / expected
        return _worth(self.count, self.count * ratio)


def _least(values: Vector) -> float:
    """Return the variance of rounding to the steps of the ratings' scale, such as stars.

    Equal answers are common there. With this variance added they are no evidence of copying:
    E[exp ℓ] < 1 for rounded normal errors of any size. A step is the distance of a typical rating
    from the next different one.
    """
    different, times = np.unique(values, return_counts=True)
    if different.size < 2:
        return _NONE
    gap = np.diff(different, prepend=-np.inf, append=np.inf)
    step = np.median(np.repeat(np.minimum(gap[1:], gap[:-1]), times))
    return max(float(step) ** 2 / 12, _NONE)


def _thinned(ratings: Ratings) -> Mask:
    """Choose rows so that the pairs of ratings of the same task are not too many in all.

    Tasks with the most ratings are thinned: they have most of the pairs, and lose least.
    """
    count = ratings.per_task.astype(np.float64)
    most = float(count.max())
    while np.sum(np.minimum(count, most) ** 2) > max(_MOST_PAIRS, count.size):
        most *= 0.9
    chance = np.minimum(most / count, 1.0)[ratings.task]
    return np.random.default_rng(0).random(chance.size) <= chance


def starting_levels(pairs: Pairs, iterations: int = 10) -> Vector:
    """Return error variances s_j with s_j + s_l ≈ D_jl for the pairs that look independent.

    They start from half of each party's median distance, as in `pairwise`: most pairs are
    independent. Then expectation maximisation: for a difference d = e_j − e_l, the expectation of
    e_j² is s_j s_l/(s_j + s_l) + d² s_j²/(s_j + s_l)². A pair is weighted by the probability that
    it is independent. NaN for a party that met nobody.
    """
    a, b, D = pairs.first, pairs.second, pairs.distance
    # On a coarse scale most distances may be zero, but that does not mean no noise.
    levels = np.maximum(_half_median_distance(pairs), pairs.least)
    for _ in range(iterations):
        sum_ = np.maximum(levels[a] + levels[b], 1e-300)
        chance = pairs.count / (1 + np.exp(np.clip(pairs.evidence(levels), -50, 50)))
        left = levels[a] * levels[b] / sum_
        first, second = (left + (levels[one] / sum_) ** 2 * D for one in (a, b))
        weight = pairs.sums(chance, chance)
        expected = pairs.sums(chance * first, chance * second)
        levels = np.divide(expected, weight, out=levels.copy(), where=weight > 0)
    return levels


def _half_median_distance(pairs: Pairs) -> Vector:
    """Return half of each party's median distance to its peers, weighted by common tasks."""
    party = np.concatenate([pairs.first, pairs.second])
    distance, count = np.tile(pairs.distance, 2), np.tile(pairs.count, 2)
    order = np.lexsort((distance, party))
    reached = np.cumsum(count[order])
    tasks = total(party, count, pairs.parties)
    middle = np.searchsorted(reached, np.cumsum(tasks) - tasks / 2).clip(0, party.size - 1)
    half: Vector = np.where(tasks > 0, 0.5 * distance[order][middle], np.nan)
    return half


def groups(pairs: Pairs, levels: Vector) -> Positions:
    """Return, for each party, the first of those it moves with; itself if it moves alone."""
    from scipy.cluster.hierarchy import fcluster, linkage  # here, as it imports much

    found = np.arange(pairs.parties)
    evidence = pairs.evidence(levels)
    best = np.zeros(pairs.parties)
    np.maximum.at(best, pairs.first, evidence)
    np.maximum.at(best, pairs.second, evidence)
    near = np.sort(np.argsort(-best, kind="stable")[:_MOST_PARTIES])
    near = near[best[near] > 0]
    if near.size < 2:
        return found
    place = np.full(pairs.parties, -1)
    place[near] = np.arange(near.size)
    a, b = place[pairs.first], place[pairs.second]
    inside = (a >= 0) & (b >= 0)
    votes = np.zeros((near.size, near.size))
    votes[a[inside], b[inside]] = votes[b[inside], a[inside]] = evidence[inside]
    top = float(votes.max())
    upper = np.triu_indices(near.size, 1)
    tree = linkage(top - votes[upper], "average")
    for label in _clusters(fcluster(tree, np.nextafter(top, 0), "distance")):
        members = _believed(pairs, near[label], levels)
        found[members] = members.min(initial=pairs.parties)
    return found


def _clusters(label: npt.NDArray[np.int32]) -> list[Positions]:
    order = np.argsort(label, kind="stable")
    cuts = np.flatnonzero(np.diff(label[order])) + 1
    return [members for members in np.split(order, cuts) if members.size > 1]


def _believed(pairs: Pairs, members: Positions, levels: Vector) -> Positions:
    """Return the members of a cluster that chance does not explain: all, some or none."""
    parties = pairs.parties
    while members.size > 1:
        found, support = _joint_evidence(pairs.rows[members], levels[members], pairs.least)
        doubtful = int(np.sum(support < np.log(parties)))
        if not doubtful:
            ways = _log_ways(parties, members.size)
            return members if found > ways + _DOUBT else members[:0]
        # Without its worst members a cluster may be beyond doubt. Several go at once from a large
        # one, to end soon.
        go = max((doubtful + 1) // 2, members.size // 50)
        members = np.delete(members, np.argsort(support, kind="stable")[:go])
    return members[:0]


def _log_ways(parties: int, members: int) -> float:
    return lgamma(parties + 1) - lgamma(members + 1) - lgamma(parties - members + 1)


def _joint_evidence(rows: Any, levels: Vector, least: float) -> tuple[float, Vector]:
    """Return ℓ of a cluster, and how much each member raises it; ``rows`` are the members'."""
    rows = rows.tocoo()
    (who, task), x = rows.coords, rows.data
    tasks, task = np.unique(task, return_inverse=True)
    size = tasks.size
    p = 1 / (levels[who] + least / 2)
    count, P = (total(task, one, size)[task] for one in (np.ones_like(p), p))
    off = x - total(task, p * x, size)[task] / P
    # Each about the mean of the others, of variance 1/(P − p); zero if there are no others.
    others = np.where(count > 1, np.maximum(P - p, _TINY * P), 1.0)
    surprise = p * off**2 * P / others + least * p * others / P
    support = np.where(count > 1, _worth(1.0, surprise), 0.0)
    found = _worth(1 - 1 / count, p * (off**2 + least / 2 * (1 - p / P)))
    return float(found.sum()), total(who, support, rows.shape[0])


def _worth(free: Vector | float, squares: Vector) -> Vector:
    """Return the log likelihood ratio of copying to independence for sums of squares."""
    worth: Vector = 0.5 * (free * np.log(1 / _COPY) - (1 / _COPY - 1) * squares)
    return worth
