"""Pairwise consensus: what distances alone can tell, told nothing about who is honest.

Party j sends x_j = y + e_j. Only differences between parties are observable, so all the evidence
about the errors is D_jl = ‖x_j − x_l‖²/K = Φ_jj + Φ_ll − 2Φ_jl. It stays the same under
Φ → Φ + a1ᵀ + 1aᵀ, while the weights do not: some assumption has to choose a. Here: **most pairs are
independent**. Noise levels s_j are sought with s_j + s_l ≈ D_jl for as many pairs as possible;
what is left, κ_jl = 1 − D_jl/(s_j + s_l), is correlation, found without an estimate of y.

The weight of a party is its vote times its trust.

- *One voice, one vote, and less for copies.* Parties that err together count as one, and a voice
  that many repeat is suspect: v_j = (1 + Σ_l κ_jl^m)⁻², m = ρ(ρ + 1)/2, so a clique of g copies
  has 1/g of a vote. With a memory, κ is also that of the parties' averages over rounds (see
  `trails`), in which the noise that hides a shared purpose has faded; the larger of the two counts.
- *Bounded trust.* A party's level is compared with the typical one, t. Better than t counts as t;
  up to min(2, ρ) times the typical length it is heard in full, beyond that no louder, and beyond
  ρ times less and less: its precision counts.
- *Slack.* ρ, from 1 to 3, is how far levels can be believed. If the distances fit sums of levels as
  well as chance allows, the errors are independent noise, ρ = 1, and trust is inverse variance. If
  they do not, parties differ by more than noise, as they do when their data differ, and a large
  s_j may be the only party that knows something.

docs/pairwise.md has the reasons, what was tried, and what it cannot survive.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median_low
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from consilience.beliefs import NOTHING, Beliefs, Given
from consilience.errors import ConsilienceError
from consilience.estimators.degenerate import infer_from_meetings
from consilience.estimators.reasons import explain, groups_of
from consilience.evidence import Block, Evidence, Matrix, Vector, pooled_distances, residuals
from consilience.votes import at_most_a_third

Pairs = npt.NDArray[np.bool_]

# The more a party's errors exceed the others', the less it has to say about what is typical: levels
# count s^-1/5 in their median. Ten quiet parties so outvote twenty that are 32 times as noisy, and
# seven that whisper do not outvote ten honest ones unless they are six times as quiet.
_HEED = 0.2
_MOST_HEED = 4.0  # times that of the median party, lest two copies near the mean decide
_LOUDEST = 2.0  # typical lengths: how far a party is heard in full, slack permitting
_MOST_SLACK = 3.0
_MOST_CLAIMED = 2.0  # votes, for however many samples
# A misfit this small, relative to the distance, is none.
_EXACT = 1e-2
_NEARLY_ALL = 1.25  # times the sum's lowest value: at most one pair in 36 does not fit at all
_SAME = 1e-8  # of the typical distance: closer are copies, whatever their noise
_PULL = 1e-6  # towards half the typical distance, for parties the pairs leave undetermined
_RARELY, _MANY = 2.0, 50  # standard deviations, among so many parties
_LEAST_NEAR = 0.2  # cubed, of the expected distance: nearer is no chance, however little was seen
_UPPER_QUARTILE = 1.15  # of |N(0, 1)|


@dataclass(frozen=True)
class Pairwise:
    """Independent voices, heard once each. ``slack`` is ρ; None finds it from the evidence."""

    slack: float | None = None
    max_iterations: int = 100

    remembers = follows = True

    def __post_init__(self) -> None:
        if self.slack is not None and not 1 <= self.slack <= _MOST_SLACK:
            raise ConsilienceError(f"slack lies between 1 and {_MOST_SLACK:g}, found {self.slack}")

    def infer(self, evidence: Evidence, given: Given = NOTHING) -> Beliefs:
        """Return levels, correlations and weights, with a reason for each party that stands out."""
        return infer_from_meetings(evidence, lambda met: self._infer(met, given))

    def _infer(self, evidence: Evidence, given: Given) -> Beliefs:
        seen = self._read(evidence, self.slack)
        levels, shared = seen.levels, seen.shared
        if given.lasting is not None and given.lasting.smallest < np.inf:
            there = [evidence.parties.index(party) for party in given.lasting.parties]
            at = np.ix_(there, there)
            lasting = self._read(Evidence((given.lasting,)), seen.slack)
            shared[at] = np.maximum(shared[at], lasting.shared)
        trusted = trust(levels / seen.typical, seen.slack)
        trusted *= claims(evidence.parties, given.sample_counts)
        weights, lengths = [], np.ones(len(levels))
        for block, members in zip(evidence.blocks, evidence.members, strict=True):
            w = votes(shared[np.ix_(members, members)]) * trusted[members]
            now = given.now
            if now is not None and set(now.parties) == set(block.parties):
                w, lengths[members] = bounded(w, now.ordered(block.parties))
            w = at_most_half(w)
            weights.append(w / w.sum())
        groups = groups_of(evidence.parties, shared)
        return Beliefs(
            evidence,
            tuple(weights),
            np.sqrt(levels),
            covariance_of(*pooled_distances(evidence), levels),
            iterations=seen.iterations,
            converged=seen.iterations < self.max_iterations,
            groups=groups,
            reasons=explain(evidence.parties, groups, np.sqrt(levels / seen.typical), lengths),
        )

    def _read(self, evidence: Evidence, slack: float | None) -> _Reading:
        distances, counts = pooled_distances(evidence)
        levels, iterations = fit_levels(
            distances, counts > 0, evidence.smallest, self.max_iterations
        )
        slack = slack or slack_of(distances, levels, counts)
        return _Reading(levels, iterations, slack, *common_level(distances, counts, levels, slack))


class _Reading(NamedTuple):
    """What distances tell."""

    levels: Vector  # s
    iterations: int
    slack: float  # ρ
    typical: float  # t
    shared: Matrix  # (J, J): how much of a voice each two share


def fit_levels(
    distances: Matrix, met: Pairs, smallest: float, max_iterations: int = 100
) -> tuple[Vector, int]:
    """Return levels with s_j + s_l = D_jl for as many pairs as possible, and the iterations taken.

    Minimises Σ |1 − D_jl/(s_j + s_l)|^½ over the pairs that met, by reweighted least squares: a
    root rather than an absolute value, lest a few close pairs outweigh many that fit. Relative to
    the *predicted* distance, so that a pair closer than expected costs at most one.

    The sum has more than one minimum, and adversaries aim for the wrong one. Half a party's median
    distance is a good start where most of its peers are quiet, half its lower quartile where most
    are far, and a gradual one where a group is as far from itself as from the others; the lowest
    end is taken. Where nearly all pairs fit, there is only one.
    """
    least = max(_SAME * float(np.median(_of_peers(distances, met, 0.5))), 1e-2 * smallest)
    lowest, found = np.sqrt(_EXACT) * np.count_nonzero(met), []
    for share, exact in ((0.5, _EXACT), (0.25, _EXACT), (0.5, 1.0)):
        start = np.maximum(0.5 * _of_peers(distances, met, share), least)
        found.append(_descend(distances, met, start, least, exact, max_iterations))
        if found[-1][1] <= _NEARLY_ALL * lowest:
            break
    levels, _, iterations = min(found, key=lambda end: end[1])
    return levels, iterations


def _descend(
    distances: Matrix, met: Pairs, start: Vector, least: float, exact: float, max_iterations: int
) -> tuple[Vector, float, int]:
    """Return the levels, the objective and the iterations of a fit from this start.

    A misfit below ``exact`` counts as none, a bar that sinks to what really is none.
    """
    from scipy.linalg.lapack import dposv  # here, since it takes longer to import than the rest

    levels, iterations, place = start, 0, np.diag_indices(len(start))
    while iterations < max_iterations:
        iterations += 1
        share, ratio = _predict(distances, levels)
        misfit = np.maximum(np.abs(1 - ratio), exact)
        W = met / (misfit * np.sqrt(misfit))
        # In units of the present levels, as these may be thirty orders of magnitude apart. The
        # other party's share is one less this one's.
        W *= share
        A = W - W * share
        A[place] = diagonal = (1 + _PULL) * np.einsum("jl,jl->j", W, share)
        right = np.einsum("jl,jl->j", W, ratio) + _PULL * diagonal * start / levels
        before, levels = levels, np.maximum(levels * dposv(A, right)[1], least)
        if exact == _EXACT and np.max(np.abs(levels - before) / (levels + before)) < 1e-5:
            break
        exact = max(_EXACT, 0.7 * exact)
    misfit = np.maximum(np.abs(1 - _predict(distances, levels)[1]), _EXACT)
    return levels, float(np.sqrt(misfit[met]).sum()), iterations


def _predict(distances: Matrix, levels: Vector) -> tuple[Matrix, Matrix]:
    """Return s_j/(s_j + s_l), and D_jl/(s_j + s_l)."""
    predicted = levels[:, None] + levels
    return levels[:, None] / predicted, distances / predicted


def _of_peers(values: Matrix, met: Pairs, share: float) -> Vector:
    """Return a (lower) quantile of each row over the peers that were met."""
    place = (share * (met.sum(axis=1) - 1)).astype(np.intp)
    ordered = np.partition(np.where(met, values, np.inf), np.unique(place), axis=1)
    quantile: Vector = ordered[np.arange(len(values)), place]
    return quantile


def slack_of(distances: Matrix, levels: Vector, counts: Matrix) -> float:
    """Return ρ: the root of how many times worse than by chance three quarters of the pairs fit.

    Of independent noise in n coordinates, D_jl/(s_j + s_l) has the standard deviation √(2/n). The
    upper quartile rather than the median: adversaries can make their own pairs fit to make the
    honest look as if they did, and erring on the side of slack costs efficiency alone.
    """
    a, b = np.nonzero(np.triu(counts, 1))
    misfit = np.abs(1 - distances[a, b] / (levels[a] + levels[b])) * np.sqrt(counts[a, b] / 2)
    if misfit.size == 0:
        return 1.0
    worse = float(np.quantile(misfit, 0.75)) / _UPPER_QUARTILE
    return float(np.clip(np.sqrt(worse), 1.0, _MOST_SLACK))


def common_level(
    distances: Matrix, counts: Matrix, levels: Vector, slack: float
) -> tuple[float, Matrix]:
    """Return the typical level t, and how much of a voice each two parties share: κ^m, (J, J).

    With slack, a pair is not believed quieter than typical: nearness is then read as correlation.
    """
    met, nearest = counts > 0, 1 - chance(counts)
    doubt = slack * (slack + 1) / 2  # m: honest parties with similar data correlate, too
    heed = np.minimum((levels / np.median(levels)) ** -_HEED, _MOST_HEED)
    typical, shared = _middle(levels, heed), np.zeros_like(distances)
    for _ in range(3):  # who is typical depends on who counts, and a little the other way round
        expected = np.maximum(levels[:, None] + levels, 1.5 * (1 - slack**-2) * typical)
        shared = np.where(met, np.clip(1 - distances / expected / nearest, 0, 1) ** doubt, 0.0)
        typical = _middle(levels, votes(shared) * heed)
    return typical, shared


def chance(counts: Matrix) -> Matrix:
    """Return the correlation that two independent parties rarely seem to have, n coordinates seen.

    D_jl/(s_j + s_l) is then χ²/n; by Wilson and Hilferty its cube root is nearly normal, with mean
    1 − 2/9n and variance 2/9n. What seems to be shared by chance adds up over peers, so that it
    matters where these are many, and the bar is raised with their number.
    """
    variance = 2 / (9 * np.maximum(counts, 1e-300))
    rarely = _RARELY * min(1.0, len(counts) / _MANY) ** 3
    nearest: Matrix = np.maximum(1 - variance - rarely * np.sqrt(variance), _LEAST_NEAR) ** 3
    return 1 - nearest


def votes(shared: Matrix) -> Vector:
    """Return each party's vote: (1 + Σ_l κ_jl^m)⁻²."""
    size: Vector = 1 + shared.sum(axis=1)
    return size**-2.0


def trust(relative: Vector, slack: float) -> Vector:
    """Return how much of its vote a party keeps, given its level relative to the typical one."""
    length = np.sqrt(np.maximum(relative, 1e-300))
    full = min(_LOUDEST, slack)
    kept: Vector = np.minimum(1.0, np.minimum(full / length, full * slack / length**2))
    return kept


def claims(parties: tuple[str, ...], sample_counts: Mapping[str, float] | None) -> Vector:
    """Return how much more than its vote a party gets for the samples it says it has, ½ to 2.

    A claim nobody can check; what more samples are worth shows in the noise level anyway.
    """
    if not sample_counts:
        return np.ones(len(parties))
    typical = median_low(sample_counts.values())
    said = np.array([sample_counts.get(party, typical) for party in parties])
    with np.errstate(over="ignore"):  # a claim may be as large as a number can be
        return np.clip(said / typical, 1 / _MOST_CLAIMED, _MOST_CLAIMED)


def bounded(weights: Vector, now: Block) -> tuple[Vector, Vector]:
    """Bound what each party's pull comes to in this very round; return also the lengths.

    Levels remember; a party may have been quiet until now. No residual counts for more than three
    times the typical one. A heavy party is close to a consensus of its own making, so no party has
    more than a third of the say in what is typical: nobody is the measure of all the others.
    """
    distances = now.distances[:-1, :-1]
    # Of copies all but one are at no distance from their mean: no length to compare others with.
    least = 0.5 * np.sqrt(now.smallest / 2) if now.smallest < np.inf else 1.0
    # To begin with, about the middle of most parties: a far one that weighs much would be left
    # behind in small steps only.
    lengths = np.sqrt(now.typical_distances / (now.typical or 1.0))
    kept = np.minimum(1.0, _MOST_SLACK / np.maximum(lengths, 1.0))
    for _ in range(20):
        w = at_most_half(weights * kept)
        lengths = np.sqrt(np.maximum(residuals(distances, w / w.sum()), 0.0))
        typical = _middle(np.maximum(lengths, least), at_most_a_third(w))
        lengths /= typical
        before, kept = kept, np.minimum(1.0, _MOST_SLACK / np.maximum(lengths, 1.0))
        if np.abs(kept - before).max() < 1e-6:
            break
    return weights * kept, lengths


def at_most_half(weights: Vector) -> Vector:
    """Return the weights, none larger than that of all the others together.

    However well one party fits, the others are the only witnesses to that.
    """
    others = float(np.sort(weights)[:-1].sum())
    return np.minimum(weights, others) if others > 0 else weights


def covariance_of(distances: Matrix, counts: Matrix, levels: Vector) -> Matrix:
    """Return Φ_jl = (s_j + s_l − D_jl)/2, drawn towards independence until it is a covariance.

    As far as it takes, in steps of a twentieth: to find the nearest covariance would cost more than
    all the rest.
    """
    products = np.where(counts > 0, 0.5 * (levels[:, None] + levels - distances), 0.0)
    bound = np.outer(np.sqrt(levels), np.sqrt(levels))  # products of levels may overflow
    products = np.clip(products, -bound, bound)
    np.fill_diagonal(products, 0.0)
    for kept in np.linspace(1, 0, 21):
        covariance: Matrix = kept * products + np.diag(levels)
        try:
            np.linalg.cholesky(covariance + 1e-6 * np.diag(levels))
        except np.linalg.LinAlgError:
            continue
        break
    return covariance


def _middle(values: Vector, weights: Vector) -> float:
    """Return the weighted median of positive values, interpolated between neighbours."""
    order = np.argsort(values, kind="stable")
    w = weights[order]
    place = np.cumsum(w) - 0.5 * w
    return float(np.exp(np.interp(0.5 * w.sum(), place, np.log(values[order]))))
