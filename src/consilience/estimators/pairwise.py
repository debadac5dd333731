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
  ρ times less and less: its precision counts. Only where levels are spread, so that not even the
  closest half of them agree, does a quieter one count for more.
- *Slack.* ρ, from 1 to 3, is how far levels can be believed. If the distances fit sums of levels as
  well as chance allows, the errors are independent noise, ρ = 1, and trust is inverse variance. If
  they do not, parties differ by more than noise, as they do when their data differ, and a large
  s_j may be the only party that knows something. With a memory, errors that fade over rounds show
  that they are noise (see `persistence`).

Two camps of about as many parties, each near its own and far from the other, have two explanations
that fit about as well: either may be in league. Then both are heard, and the consensus is *torn*.

Distances of few coordinates are first drawn towards the typical one, and nobody is named for what
chance explains (see `certainty`).

In no coordinate does a party count far beyond what others reach (see `passes.corroborate`).

docs/pairwise.md has the reasons, what was tried, and what it cannot survive.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, fields
from functools import reduce
from numbers import Real
from typing import Any, NamedTuple

import numpy as np

from consilience.arrays import Mask, Matrix, Positions, Vector
from consilience.beliefs import NOTHING, Beliefs, Given, Lasting
from consilience.errors import ConsilienceError
from consilience.estimators.certainty import beyond_chance, learnt, steadied
from consilience.estimators.changes import expected_distances, on_one_scale
from consilience.estimators.degenerate import infer_from_meetings
from consilience.estimators.levels import (
    Descent,
    End,
    Starts,
    covariance_of,
    fit_camp,
    fit_levels,
    slack_of,
)
from consilience.estimators.persistence import kept_of, lasting_shares, slack_from
from consilience.estimators.reasons import REMARKABLE, TOGETHER, explain, groups_of, linked
from consilience.estimators.sharing import agreement, chance, common_level
from consilience.estimators.weighing import (
    bounded,
    claims,
    fewness,
    heaviest,
    shorth,
    trust,
    votes,
    with_past,
)
from consilience.evidence import Evidence, pooled_distances
from consilience.passes.corroborate import Corroboration
from consilience.updates.votes import at_most_half, middle

_BY_CHANCE = 0.67  # of a standard deviation: half of all that is normal is within it

# What a field may be, from and to.
_MUCH = 1e6
_ALLOWED = {
    "most_slack": (1, 10),
    "fitting": (0.01, 0.99),
    "vote_power": (0, 10),
    "quietest_pair": (0, 2),
    "deviations": (0, 10),
    "many": (1, _MUCH),
    "few": (0, _MUCH),
    "nearest": (0.01, 1),
    "heed": (0, 1),
    "most_heed": (1, _MUCH),
    "loudest": (1, _MUCH),
    "longest": (1, _MUCH),
    "quiet": (0, 1),
    "doubt": (0, 10),
    "most_claimed": (1, _MUCH),
    "exact": (1e-4, 1),
    "anchored": (0, _MUCH),
    "nearly_all": (1, _MUCH),
    "hardening": (0, 0.99),
    "tolerance": (0, 1),
    "together": (0.01, 1),
    "remarkable": (1, _MUCH),
    "max_iterations": (1, _MUCH),
    "fading": (0, 1),
    "lasting": (0.01, 1),
    "enough_rounds": (1, _MUCH),
    "outlasting": (1, _MUCH),
    "mild": (0, 1),
    "camp": (0.01, 1),
}


@dataclass(frozen=True, repr=False)
class Pairwise:
    """Independent voices, heard once each. docs/pairwise.md has the formulas beside the fields.

    How far levels are believed:

    - ``slack``: ρ; None finds it from the evidence.
    - ``most_slack``: ρ at most. At 3 κ counts to the sixth power: with the third, honest parties
      with similar data lose their votes.
    - ``fitting``: the share of pairs that must fit for no slack. Not half: adversaries can make
      their own pairs fit. Not all: theirs need not fit either.

    What a memory adds (see `persistence`):

    - ``fading``: the share of parties whose errors must fade over rounds for no slack. Not half:
      adversaries can let theirs fade where honest data differ. Not three quarters: four of
      fourteen could let theirs last where they do not.
    - ``lasting``: the share of an error that lasts from which on slack is not reduced. On MNIST it
      is 0.05 where data are IID, and 0.4 with Dirichlet 1.
    - ``enough_rounds``: equal ones; of fewer, chance leaves too much.
    - ``outlasting``: typical trails that what lasts of a party's error may be at full trust, in
      squares; up to twice as much where most errors last. Honest parties have 1.4 on MNIST where
      data are IID, and 4.5 where they differ, in which case a bar at 3 costs accuracy.

    Corroboration (see `passes.corroborate`):

    - ``corroborate``: whether a party counts in a coordinate only near others: True, False, or
      None, for where parties are enough and hardly any is the only one to know something.
    - ``mild``: the share of most errors that lasts up to which parties differ by noise or mildly:
      whoever stands alone then counts less, too. On MNIST it is 0.6 with Dirichlet 1.

    Votes:

    - ``vote_power``: a party with g − 1 copies has g to minus this of a vote. At 1 a clique would
      have a whole vote, which stops training where data differ; at 2 it has 1/g.
    - ``quietest_pair``: with much slack, no pair is expected nearer than so many typical levels.
      A typical pair has two; honest ones a little nearer are not yet correlated.
    - ``deviations``, ``many``, ``few``: what strangers share by chance, in standard deviations,
      where parties are this many or coordinates this few. With few parties little adds up, and two
      deviations would hide quiet adversaries.
    - ``nearest``: the cube root of the nearest that chance brings two parties, however little was
      seen. Two at less than 0.2³ = 0.008 of the expected distance are no strangers.
    - ``most_claimed``: votes, for however many samples. Nobody can check the claim.

    Trust:

    - ``heed``: in the median that says what is typical, a level s counts s to minus this. At 1/5
      ten quiet parties outvote twenty 32 times as noisy, and seven adversaries do not outvote ten
      honest parties unless six times as quiet.
    - ``most_heed``: times that of the median party, lest two copies near the mean decide.
    - ``loudest``: typical lengths up to which a party is heard in full, slack permitting. With 1.5
      accuracy is lost where data differ and nobody attacks.
    - ``quiet``: a party quieter than typical may count for more: up to this power of the ratio
      between the largest and the smallest level of the closest half. Where half of the levels
      agree, that is one: anybody can be quiet.
    - ``doubt``: the slack of trust is √(ρ² + doubt²) where distances say nothing of their own, and
      ρ where they say all. The less levels are known, the more they may differ.
    - ``longest``: typical lengths that a residual counts for at most in its round: nobody's pull is
      more than three honest votes'.

    Two camps:

    - ``camp``: the share of the parties that a group has which may be right. With a quarter at most
      three fits are tried; smaller groups do not come near to an equal explanation.

    The fit of the levels (see `levels`):

    - ``starts``: the quantile of a party's distances to start from, and the misfit that counts as
      none at first. With one start, or without the gradual third, an adaptive attack wins.
    - ``exact``: the misfit that counts as none, at least: half of the pairs misfit by less than
      0.67 √(2/n) by chance. A hundredth is chance in 10,000 coordinates.
    - ``anchored``: coordinates that a level's start is worth. Of three parties one of which is far
      away, distances do not tell how the noise of the other two is shared out.
    - ``nearly_all``: times the objective's lowest value; below, no other start is tried. At 1.25
      at most one pair in 36 does not fit at all.
    - ``hardening``: what is left of a gradual start's misfit after an iteration. Slowly, lest it
      end in the nearest minimum; at 0.7 it takes 13.
    - ``tolerance``, ``max_iterations``: the relative change of levels that ends a fit, less than
      chance makes of them, and how long it may take.

    Reasons:

    - ``together``: from this share of a voice on, two parties are said to move together: half.
    - ``remarkable``: times typical; less noise is not worth a sentence. Three, as for lengths.
    """

    slack: float | None = None
    max_iterations: int = 100
    _: KW_ONLY
    most_slack: float = 3.0
    fitting: float = 0.75
    vote_power: float = 2.0
    quietest_pair: float = 1.5
    deviations: float = 2.0
    many: float = 50
    few: float = 100
    nearest: float = 0.2
    most_claimed: float = 2.0
    heed: float = 0.2
    most_heed: float = 4.0
    loudest: float = 2.0
    longest: float = 3.0
    quiet: float = 0.5
    doubt: float = 1.5
    starts: Starts = ((0.5, 0.0), (0.25, 0.0), (0.5, 1.0))
    exact: float = 1e-2
    anchored: float = 0.2
    nearly_all: float = 1.25
    hardening: float = 0.7
    tolerance: float = 1e-5
    together: float = TOGETHER
    remarkable: float = REMARKABLE
    fading: float = 2 / 3
    lasting: float = 0.25
    enough_rounds: float = 5.0
    outlasting: float = 3.0
    corroborate: bool | None = None
    mild: float = 0.6
    camp: float = 0.25

    remembers = follows = True

    def __post_init__(self) -> None:
        for name, (least, most) in _ALLOWED.items():
            _check(name, getattr(self, name), least, most)
        if self.slack is not None:
            _check("slack", self.slack, 1, self.most_slack)
        _check_starts(self.starts)
        if self.corroborate not in (True, False, None):
            raise ConsilienceError(
                f"corroborate is True, False or None, found {self.corroborate!r}"
            )

    def __repr__(self) -> str:
        """Name only what was set: a record of every round holds this."""
        told = ((f.name, getattr(self, f.name), f.default) for f in fields(self))
        changed = (f"{name}={value!r}" for name, value, default in told if value != default)
        return f"{type(self).__name__}({', '.join(changed)})"

    def infer(self, evidence: Evidence, given: Given = NOTHING) -> Beliefs:
        """Return levels, correlations and weights, with a reason for each party that stands out."""
        return infer_from_meetings(evidence, lambda met: self._infer(met, given))

    def _infer(self, evidence: Evidence, given: Given) -> Beliefs:
        past = given.lasting
        if past is not None and past.block.least_distance == np.inf:
            past = None  # all averages are equal
        views = [
            self._weighed(evidence, given, past, share, seen)
            for share, seen in self._explanations(evidence, given, past)
        ]
        seen, parties = views[0].seen, evidence.parties
        said = [sum(each) for each in zip(*(view.weights for view in views), strict=True)]
        weights, lengths = self._bounded(evidence, given, said)
        # What parties are told holds in every view.
        groups = groups_of(parties, reduce(np.minimum, [v.shared for v in views]), self.together)
        relative = reduce(np.minimum, [view.relative for view in views])
        return Beliefs(
            evidence,
            weights,
            np.sqrt(seen.levels),
            covariance_of(seen.distances, seen.counts, seen.levels),
            typical=seen.typical,
            iterations=seen.end.iterations,
            converged=seen.end.iterations < self.max_iterations,
            groups=groups,
            reasons=self._reasons(evidence, seen, groups, relative, lengths),
            slack=seen.slack,
            corroboration=self.corroboration_after(past),
            camps=tuple(
                tuple(party for party, in_it in zip(parties, view.camp, strict=True) if in_it)
                for view in views
                if view.camp is not None
            ),
        )

    def _explanations(
        self, evidence: Evidence, given: Given, past: Lasting | None
    ) -> list[tuple[float, _Reading]]:
        """Return what explains the distances about as well as anything, the best first, with the
        share in which each is heard.

        Where a large group is in league, it may be the group that is right, and others in league.
        That is heard the less, the more pairs misfit, and not from one party's pairs on.
        """
        most, known = self.most_slack_after(past), self._samples(evidence, given)[1]
        found = [(0.0, self._read(evidence, known, self.slack, most))]
        least = found[0][1].end.objective
        for camp in self._camps(found[0][1]):
            other = self._read(evidence, known, self.slack, most, camp)
            if any(np.isin(group, camp, invert=True).all() for group in self._camps(other)):
                # Else the others are merely noisy, or the camp are copies.
                one = 2 * float(other.met[np.ix_(camp, camp)].sum()) / len(camp)
                found.append(((other.end.objective - least) / one, other))
        found.sort(key=lambda each: each[0])
        heard = [(1 - (worse - found[0][0]), seen) for worse, seen in found]
        total = sum(share for share, _ in heard if share > 0)
        return [(share / total, seen) for share, seen in heard if share > 0]

    def _camps(self, seen: _Reading) -> list[Positions]:
        """Return the groups that are large enough to be right."""
        least = self.camp * len(seen.levels)
        return [group for group in linked(seen.shared, self.together) if len(group) >= least]

    def _weighed(
        self,
        evidence: Evidence,
        given: Given,
        past: Lasting | None,
        share: float,
        seen: _Reading,
    ) -> _View:
        """Return the weights that follow from an explanation, times the share it is heard in."""
        shared, (counts, known) = seen.shared, self._samples(evidence, given)
        relative = seen.few * with_past(seen.levels / seen.typical, evidence, given.past)
        trusted = self._trust(relative, seen, quiet=not given.trusted_counts)
        camp = None if share == 1 else heaviest(votes(shared, self.vote_power) * trusted)
        if past is not None:
            there = [evidence.parties.index(party) for party in past.block.parties]
            at = np.ix_(there, there)
            quiet = None if camp is None else np.flatnonzero(camp[there])
            left = Evidence((past.block,))
            lasting = self._read(left, known[there], seen.slack, seen.slack, quiet)
            shared[at] = np.maximum(shared[at], lasting.shared)
            trusted[there] *= kept_of(past, self.enough_rounds, self.outlasting)
        trusted *= counts
        weights, alone = [], len(evidence.blocks) == 1
        for members in evidence.members:
            mine = shared if alone else shared[np.ix_(members, members)]
            w = votes(mine, self.vote_power) * trusted[members]
            weights.append(share * w / w.sum())
        return _View(seen, weights, shared, relative, camp)

    def _bounded(
        self, evidence: Evidence, given: Given, said: list[Vector]
    ) -> tuple[tuple[Vector, ...], Vector]:
        """Return each block's weights, none too heavy nor, in this very round, too loud; and the
        lengths of this round's parties, over the typical one."""
        weights, lengths, now = [], np.ones(len(evidence.parties)), given.now
        known = self._samples(evidence, given)[1]
        for w, block, members in zip(said, evidence.blocks, evidence.members, strict=True):
            if now is not None and set(now.parties) == set(block.parties):
                here = steadied(now.ordered(block.parties))
                w, lengths[members] = bounded(w, here, self.longest, known[members])
            w = at_most_half(w)
            weights.append(w / w.sum())
        return tuple(weights), lengths

    def _reasons(
        self,
        evidence: Evidence,
        seen: _Reading,
        groups: tuple[tuple[str, ...], ...],
        relative: Vector,
        lengths: Vector,
    ) -> dict[str, str]:
        """Return a reason for each party that stands out by more than chance explains."""
        # Misfits ρ² times as large as by chance are those of ρ⁴ times fewer coordinates.
        known = evidence.worth / seen.slack**4
        squares = np.stack([relative, lengths**2])
        squares = np.where(beyond_chance(squares, known, seen.own), squares, 1.0)
        noise, lengths = np.sqrt(squares)
        return explain(evidence.parties, groups, noise, lengths, self.remarkable, self.longest)

    def _samples(self, evidence: Evidence, given: Given) -> tuple[Vector, Vector]:
        """Return each party's samples over those of the typical one: as they count, and as they
        are known to be."""
        most = _MUCH if given.trusted_counts else self.most_claimed
        counts = claims(evidence.parties, given.sample_counts, most)
        return counts, counts if given.trusted_counts else np.ones(len(counts))

    def _quietest(self, samples: Vector) -> float | Matrix:
        """Return how near two parties are expected at least, in typical levels: nearer where both
        are known to have many samples."""
        if samples.max() <= 1:
            return self.quietest_pair
        quiet = 0.5 * self.quietest_pair / np.maximum(samples, 1.0)
        pairs: Matrix = quiet[:, None] + quiet
        return pairs

    def _trust(self, relative: Vector, seen: _Reading, *, quiet: bool) -> Vector:
        """Return the trust in parties whose levels, relative to the typical one, are these;
        ``quiet``: whether a quieter one may count for more."""
        slack = min(float(np.hypot(seen.slack, self.doubt * (1 - seen.own))), self.most_slack)
        more = self.quiet * shorth(np.log(seen.levels)) / seen.slack**2
        most = float(np.exp(more)) if quiet else 1.0
        return trust(relative, slack, self.loudest, most)

    def most_slack_after(self, past: Lasting | None) -> float:
        """Return ρ at most: less than ``most_slack`` where errors are known to fade."""
        if past is None:
            return self.most_slack
        shares = lasting_shares(past, self.enough_rounds)
        return slack_from(shares, self.fading, self.lasting, self.most_slack)

    def corroboration_after(self, past: Lasting | None) -> Corroboration | None:
        """Return whether, and how strictly, others must stand beside a party."""
        if self.corroborate is False:
            return None
        mild = False
        if past is not None:
            shares = lasting_shares(past, self.enough_rounds)
            mild = float(np.quantile(shares, self.fading)) <= self.mild
        return Corroboration(always=bool(self.corroborate), mild=mild)

    def _read(
        self,
        evidence: Evidence,
        samples: Vector,
        slack: float | None,
        most_slack: float,
        camp: Positions | None = None,
    ) -> _Reading:
        """Return what distances tell of parties with so many times the typical samples; with a
        camp, if that is taken for the quiet parties. Once more where rounds differ in noise."""
        seen = self._read_as_is(evidence, samples, slack, most_slack, camp)
        same = on_one_scale(evidence, seen.levels)
        if same is evidence:
            return seen
        return self._read_as_is(same, samples, slack, most_slack, camp)

    def _read_as_is(
        self,
        evidence: Evidence,
        samples: Vector,
        slack: float | None,
        most_slack: float,
        camp: Positions | None,
    ) -> _Reading:
        distances, counts = pooled_distances(evidence)
        alone = len(evidence.blocks) == 1  # then every two met equally often
        met = counts / counts.max()
        often = met if alone else counts / evidence.counts[:, None]
        prior = learnt(distances, counts)
        count, distances = prior.count, prior.blended(distances, counts)
        exact = max(self.exact, min(1.0, _BY_CHANCE * float(np.sqrt(2 / count))))
        pull = self.anchored / count
        descent = Descent(exact, self.hardening, self.tolerance, self.max_iterations, pull)
        fit = distances, met, evidence.least_noise
        if camp is None or not camp.size:
            end = fit_levels(*fit, self.starts, self.nearly_all, descent)
        else:
            end = fit_camp(*fit, camp, descent)
        levels = end.levels
        slack = slack or slack_of(distances, levels, counts, self.fitting, most_slack)
        relative = levels / middle(levels, evidence.counts)
        present = 1 + float(often.sum(axis=1).max())  # parties in a round
        # By chance strangers seem to share something: more where few coordinates were seen, and
        # where there are many peers, over whom it adds up.
        rarely = max(self.few / (self.few + count), min(1.0, present / self.many) ** 3)
        seen = counts[:1, 1:2] if alone else counts  # one number says it for all pairs
        heed = np.minimum(relative**-self.heed, self.most_heed) * evidence.counts
        typical, shared = common_level(
            distances,
            often,
            levels,
            expected_distances(evidence, levels),
            slack,
            heed=heed,
            nearest=1 - chance(seen, rarely * self.deviations, self.nearest),
            quietest_pair=self._quietest(samples),
            vote_power=self.vote_power,
        )
        shared *= agreement(count, len(levels))
        few = fewness(levels / typical, samples, heed)
        return _Reading(distances, counts, end, met, slack, typical, shared, prior.own, few)


class _Reading(NamedTuple):
    """What distances tell."""

    distances: Matrix  # D, (J, J)
    counts: Matrix  # (J, J): the coordinates behind each
    end: End  # of the fit
    met: Matrix  # (J, J): how often each two did, relative to those who did most
    slack: float  # ρ
    typical: float  # t
    shared: Matrix  # (J, J): how much of a voice each two share
    own: float  # share of the distances that is not the prior's
    few: Vector  # a level of 1/few times the typical is what a party's samples explain

    @property
    def levels(self) -> Vector:
        """s, (J,)."""
        return self.end.levels


class _View(NamedTuple):
    """What follows from an explanation."""

    seen: _Reading
    weights: list[Vector]  # of each block, times the share in which the view is heard
    shared: Matrix  # with what averages over rounds say
    relative: Vector  # (J,): levels, over the typical one, with the past
    camp: Mask | None  # (J,): whom it believes, where it is not the only view


def _check(name: str, value: object, least: float, most: float) -> None:
    if not isinstance(value, Real) or not least <= float(value) <= most:
        raise ConsilienceError(f"{name} lies between {least:g} and {most:g}, found {value!r}")


def _check_starts(starts: Any) -> None:
    pairs = isinstance(starts, tuple) and all(isinstance(s, tuple) and len(s) == 2 for s in starts)
    if not starts or not pairs:
        raise ConsilienceError(f"starts are pairs ((quantile, misfit), …), found {starts!r}")
    for quantile, misfit in starts:
        _check("a start's quantile", quantile, 0, 1)
        _check("a start's misfit", misfit, 0, 1)
