"""Who moves together: found from the distances between parties, without the truth.

For parties j and l with n tasks in common, D_jl is their mean squared difference. If they err
independently, n D_jl/(s_j + s_l) is a χ² of n degrees of freedom; if one copies the other, it is
many times smaller. With few tasks in common chance does much, so what counts is the logarithm of
how much likelier the differences are under copying (a tenth of the distance, ρ) than under chance:

    ℓ_jl = n/2 · (log 1/ρ − (1/ρ − 1) D_jl/(s_j + s_l)).

Agreement on one task is worth at most log(1/ρ)/2, so that ratings on a coarse scale, where equal
answers are common, do not make a clique. Parties are clustered by the mean ℓ between clusters as
long as it is positive. The pairs of m parties that rated one task are not independent: there are
m(m − 1)/2 of them, but only m − 1 differences. So a cluster is judged by its ratings, not by its
pairs, with m_i members who rated task i, p_j = 1/s_j, and x̄_i the mean of theirs weighted by p_j:

    ℓ = Σ_i ((m_i − 1) log 1/ρ − (1/ρ − 1) Σ_j p_j (x_ij − x̄_i)²)/2,

which is ℓ_jl for two. Under chance E[exp ℓ] = 1, so ℓ > t happens with a probability below
exp(−t). A cluster is believed if chance would make one like it in fewer than one crowd in twenty,
however many clusters of its size there could be, and if each member raises ℓ by more than log J.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import lgamma
from typing import Any

import numpy as np
import numpy.typing as npt

from consilience.arrays import Positions, Vector
from consilience.crowd.ratings import Ratings, medians, total

_COPY = 0.1  # ρ
_NONE = 1e-9  # of the ratings' typical squared deviation: smaller differences are none
_TINY = 1e-12  # of a sum: less is rounding
_DOUBT = np.log(20)  # one crowd in twenty
_MOST_PAIRS = 5_000_000  # of ratings of one task, over all tasks
_MOST_PARTIES = 3000  # to be clustered: those with the closest peers, if there are more


@dataclass(frozen=True, eq=False)
class Pairs:
    """Pairs of parties that rated the same tasks: their mean squared difference, and how many."""

    first: Positions
    second: Positions
    distance: Vector
    count: Vector
    parties: int
    least: float  # squared difference: smaller ones say little more
    rows: Any  # (J, I), sparse: the ratings that were compared, each about its task's median

    @classmethod
    def of(cls, ratings: Ratings, values: Vector) -> Pairs:
        """Return the pairs for a value in each row: the ratings, or what is left of them."""
        from scipy.sparse import csr_array, triu  # here, as it is slow to import

        kept = _thinned(ratings)
        # About each task's median, lest the difference of large numbers hide a small one.
        middle = medians(ratings.task, values, ratings.per_task)
        rest = (values - middle[ratings.task])[kept]
        at, size = (ratings.task[kept], ratings.party[kept]), ratings.size
        seen = csr_array((np.ones(rest.size), at), shape=size)
        given = csr_array((rest, at), shape=size)
        squares = csr_array((rest**2, at), shape=size).T @ seen
        difference = squares + squares.T - 2 * (given.T @ given)
        # As real and imaginary part, since a sum that happens to be zero is not stored.
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
        # Where no difference is expected, none is no evidence.
        expected = levels[self.first] + levels[self.second] + self.least
        ratio = (self.distance + self.least) / expected
        return _worth(self.count, self.count * ratio)


def _least(values: Vector) -> float:
    """Return the variance of rounding to the steps of the ratings' scale: stars, say.

    Equal answers are common there, and this is as much as makes them no better than chance
    allows: with it E[exp ℓ] < 1 for rounded normal errors of any size. A step is what a typical
    rating is from the next that is not equal to it.
    """
    different, times = np.unique(values, return_counts=True)
    if different.size < 2:
        return _NONE
    gap = np.diff(different, prepend=-np.inf, append=np.inf)
    step = np.median(np.repeat(np.minimum(gap[1:], gap[:-1]), times))
    return max(float(step) ** 2 / 12, _NONE)


def _thinned(ratings: Ratings) -> npt.NDArray[np.bool_]:
    """Choose rows such that the pairs of ratings in each task are not too many in all.

    Tasks with the most ratings are thinned: their pairs are most, and the least missed.
    """
    count = ratings.per_task.astype(np.float64)
    most = float(count.max())
    while np.sum(np.minimum(count, most) ** 2) > max(_MOST_PAIRS, count.size):
        most *= 0.9
    chance = np.minimum(most / count, 1.0)[ratings.task]
    return np.random.default_rng(0).random(chance.size) <= chance


def starting_levels(pairs: Pairs, iterations: int = 10) -> Vector:
    """Return error variances s_j with s_j + s_l ≈ D_jl for the pairs that look independent.

    From half of each party's median distance, as in `pairwise`: most pairs are independent. Then by
    expectation maximisation: of a difference d = e_j − e_l, e_j² is expected to be
    s_j s_l/(s_j + s_l) + d² s_j²/(s_j + s_l)². A pair counts as far as it is likelier by chance.
    NaN for a party that met nobody.
    """
    a, b, D = pairs.first, pairs.second, pairs.distance
    # On a coarse scale most distances may be zero, which is no reason to believe in no noise.
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
    """Return half of each party's median distance to its peers, by tasks in common."""
    party = np.concatenate([pairs.first, pairs.second])
    distance, count = np.tile(pairs.distance, 2), np.tile(pairs.count, 2)
    order = np.lexsort((distance, party))
    reached = np.cumsum(count[order])
    tasks = total(party, count, pairs.parties)
    middle = np.searchsorted(reached, np.cumsum(tasks) - tasks / 2).clip(0, party.size - 1)
    half: Vector = np.where(tasks > 0, 0.5 * distance[order][middle], np.nan)
    return half


def groups(pairs: Pairs, levels: Vector) -> Positions:
    """Return for each party the first of those it moves with: itself, if it moves alone."""
    from scipy.cluster.hierarchy import fcluster, linkage  # brings much with it

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
        # Without the worst of them the others may be beyond doubt. Of many some go at a time, for
        # this to end soon.
        go = max((doubtful + 1) // 2, members.size // 50)
        members = np.delete(members, np.argsort(support, kind="stable")[:go])
    return members[:0]


def _log_ways(parties: int, members: int) -> float:
    return lgamma(parties + 1) - lgamma(members + 1) - lgamma(parties - members + 1)


def _joint_evidence(rows: Any, levels: Vector, least: float) -> tuple[float, Vector]:
    """Return ℓ of a cluster, and by how much each member raises it; ``rows`` are its members'."""
    rows = rows.tocoo()
    (who, task), x = rows.coords, rows.data
    tasks, task = np.unique(task, return_inverse=True)
    size = tasks.size
    p = 1 / (levels[who] + least / 2)
    count, P = (total(task, one, size)[task] for one in (np.ones_like(p), p))
    off = x - total(task, p * x, size)[task] / P
    # Each about the mean of the others, of variance 1/(P − p). Where nobody else is, nothing.
    others = np.where(count > 1, np.maximum(P - p, _TINY * P), 1.0)
    surprise = p * off**2 * P / others + least * p * others / P
    support = np.where(count > 1, _worth(1.0, surprise), 0.0)
    found = _worth(1 - 1 / count, p * (off**2 + least / 2 * (1 - p / P)))
    return float(found.sum()), total(who, support, rows.shape[0])


def _worth(free: Vector | float, squares: Vector) -> Vector:
    """Return the logarithm of how much likelier sums of squares are under copying."""
    worth: Vector = 0.5 * (free * np.log(1 / _COPY) - (1 / _COPY - 1) * squares)
    return worth
