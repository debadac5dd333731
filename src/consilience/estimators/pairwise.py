"""Pairwise consensus: what distances alone can tell, without knowing who is honest.

Party j sends x_j = y + e_j. Only differences between parties are observable, so all the evidence
about the errors is D_jl = ‖x_j − x_l‖²/K = Φ_jj + Φ_ll − 2Φ_jl. It is invariant under Φ → Φ + a1ᵀ +
1aᵀ, but the weights are not: some assumption has to choose a. Here: **most pairs are independent**.
Noise levels s_j are fitted with s_j + s_l ≈ D_jl for as many pairs as possible; the rest, κ_jl = 1
− D_jl/(s_j + s_l), is correlation, found without an estimate of y.

The weight of a party is its vote times its trust.

- *One voice, one vote, and less for copies.* Parties that err together count as one, and a voice
  that many repeat is suspect: v_j = (1 + Σ_l κ_jl^m)⁻², m = ρ(ρ + 1)/2, so a clique of g copies
  has 1/g of a vote. With a memory, κ is also that of the parties' averages over rounds (see
  `trails`), in which the noise that hides a shared purpose has faded; the larger of the two counts.
- *Bounded trust.* A party's level is compared with the typical one, t. Better than t counts as t.
  Up to min(2, ρ) times the typical length a party is trusted in full, beyond that its pull is
  constant, and beyond ρ times it decreases: its precision counts. Only if levels are spread, so
  that not even the closest half of them agree, does a quieter party count for more.
- *Slack.* ρ, from 1 to 3, is how far levels cannot be trusted. If the distances fit sums of levels
  as well as chance allows, errors are independent noise, ρ = 1, and trust is inverse variance. If
  not, parties differ by more than noise, as they do when their data differ, and a party with a
  large s_j may be the only one that knows something. With a memory, errors that fade over rounds
  are known to be noise (see `persistence`). A party whose lasting error is far longer than others
  have, or not explained by theirs (see `unshared`), is trusted less.

If there are two camps of about equal size, each near its own members and far from the other camp,
two explanations fit about equally well: either camp may collude. Then both are heard, and the
consensus is *torn*.

Distances from few coordinates are first shrunk towards the typical one, and nobody is named for
what chance explains (see `certainty`).

In no coordinate does a party count far beyond what others reach (see `passes.corroborate`).

docs/pairwise.md has the reasons, docs/tried.md what was tried, docs/limits.md what defeats it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import NamedTuple

import numpy as np

from consilience.arrays import Mask, Matrix, Positions, Vector
from consilience.beliefs import NOTHING, Beliefs, Given, Lasting
from consilience.estimators.camps import Explanation, Source, explanations
from consilience.estimators.certainty import beyond_chance, steadied
from consilience.estimators.choices import MUCH, Choices
from consilience.estimators.degenerate import infer_from_meetings
from consilience.estimators.levels import covariance_of
from consilience.estimators.persistence import (
    kept_of,
    known_to_last,
    lasting_lengths,
    lasting_shares,
    lasts_of,
    most_lasting,
    now_lasting,
    slack_from,
)
from consilience.estimators.reading import Reading, read
from consilience.estimators.reasons import Lasts, explain, groups_of
from consilience.estimators.unshared import kept_unshared
from consilience.estimators.weighing import (
    bounded,
    claims,
    heaviest,
    shorth,
    trust,
    votes,
    with_past,
)
from consilience.evidence import Evidence
from consilience.passes.corroborate import Corroboration
from consilience.updates.votes import at_most_half

_LONGER = 2  # times as many rounds: before that nobody loses trust for what others do not share
_THREE = 3  # parties of a camp in averages: two are often near each other there by chance


@dataclass(frozen=True, repr=False)
class Pairwise(Choices):
    """The default method: one vote for each independent voice. Its fields are those of `Choices`.

    >>> import consilience as cs
    >>> cs.Pairwise(corroborate=True)
    Pairwise(corroborate=True)
    """

    remembers = follows = True

    def infer(self, evidence: Evidence, given: Given = NOTHING) -> Beliefs:
        """Return levels, correlations and weights, with a reason for each party that stands out."""
        return infer_from_meetings(evidence, lambda met: self._infer(met, given))

    def _infer(self, evidence: Evidence, given: Given) -> Beliefs:
        past = given.lasting
        if past is not None and past.block.least_distance == np.inf:
            past = None  # all averages are equal
        there = _there(evidence, given)
        sources = self._sources(evidence, given, past)
        views = _once_each(
            [
                self._weighed(evidence, given, past, explanation, sources, there)
                for explanation in explanations(self, sources)
            ]
        )
        seen, present = views[0].seen, tuple(evidence.parties[j] for j in there)
        said = [
            sum(view.share * w for view, w in zip(views, each, strict=True))
            for each in zip(*(view.weights for view in views), strict=True)
        ]
        weights, lengths = self._bounded(evidence, given, said)
        heard = _heard(evidence, weights, past)
        # What is said about parties must hold in every view, and of those who are there.
        shared = reduce(np.minimum, [view.shared for view in views])[np.ix_(there, there)]
        groups = groups_of(present, shared, self.together)
        relative = reduce(np.minimum, [view.relative for view in views])
        lasting = reduce(Lasts.both, [view.lasting for view in views])
        return Beliefs(
            evidence,
            weights,
            np.sqrt(seen.levels),
            covariance_of(seen.distances, seen.counts, seen.levels),
            typical=seen.typical,
            iterations=seen.end.iterations,
            converged=seen.end.iterations < self.max_iterations,
            groups=groups,
            reasons=self._reasons(evidence, seen, groups, relative, lengths, lasting),
            slack=seen.slack,
            corroboration=self._corroboration(past, heard),
            camps=_camps(present, [view.trusts for view in views]),
            lasts=0.0 if past is None else lasts_of(past, self.enough_rounds, heard),
        )

    def _sources(self, evidence: Evidence, given: Given, past: Lasting | None) -> list[Source]:
        """Return the evidence about this round, and the parties' averages over rounds."""
        most, known = self.most_slack_after(past), self._samples(evidence, given)[1]
        # What is known to last is no noise: then being quiet is less of a merit.
        lasts = 0.0 if past is None else known_to_last(past, self)

        def now(camp: Positions | None = None) -> Reading:
            return read(self, evidence, known, self.slack, most, lasts, camp)

        found = [Source(np.arange(len(known)), now(), now, self.league)]
        if past is not None:
            there = np.array([evidence.parties.index(party) for party in past.block.parties])
            left, slack = Evidence((past.block,)), found[0].first.slack
            # An average over more rounds is like more samples: what has faded is no shared voice.
            samples = known[there] * past.rounds / np.median(past.rounds)

            def averages(camp: Positions | None = None) -> Reading:
                return read(self, left, samples, slack, slack, lasts, camp)

            found.append(Source(there, averages(), averages, self.together, _THREE))
        return found

    def _weighed(
        self,
        evidence: Evidence,
        given: Given,
        past: Lasting | None,
        explanation: Explanation,
        sources: list[Source],
        present: Positions,
    ) -> _View:
        """Return the weights that follow from an explanation."""
        share, seen, camp = explanation
        shared, counts = seen.shared, self._samples(evidence, given)[0]
        relative = seen.few * with_past(seen.levels / seen.typical, evidence, given.past)
        trusted = self._trust(relative, seen, quiet=not given.trusted_counts)
        lasts = Lasts.nothing(len(trusted))
        if past is not None:
            there, averages, of_camp, *_ = sources[1]
            if camp is None and share < 1:
                camp = np.flatnonzero(heaviest(votes(shared, self.vote_power) * trusted))
            if camp is not None and not np.isin(there, camp).all():
                # Otherwise all are quiet now, and only averages tell one camp from the other.
                averages = of_camp(np.flatnonzero(np.isin(there, camp)))
            at = np.ix_(there, there)
            shared[at] = np.maximum(shared[at], averages.shared)
            heard = votes(shared[at], self.vote_power)
            kept, (lasts.longer[there], lasts.alone[there]) = self._kept(past, heard)
            trusted[there] *= kept
        trusts = heaviest((votes(shared, self.vote_power) * trusted)[present])
        trusted *= counts
        weights, alone = [], len(evidence.blocks) == 1
        for members in evidence.members:
            mine = shared if alone else shared[np.ix_(members, members)]
            w = votes(mine, self.vote_power) * trusted[members]
            weights.append(w / w.sum())
        return _View(share, seen, weights, shared, relative, trusts, lasts)

    def _bounded(
        self, evidence: Evidence, given: Given, said: list[Vector]
    ) -> tuple[tuple[Vector, ...], Vector]:
        """Return each block's weights, with none too heavy or, in this round, too loud; and the
        lengths of this round's parties, relative to the typical one."""
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
        seen: Reading,
        groups: tuple[tuple[str, ...], ...],
        relative: Vector,
        lengths: Vector,
        lasting: Lasts,
    ) -> dict[str, str]:
        """Return a reason for each party that stands out by more than chance explains."""
        # Misfits ρ² times as large as by chance are those of ρ⁴ times fewer coordinates.
        known = evidence.worth / seen.slack**4
        squares = np.stack([relative, lengths**2])
        squares = np.where(beyond_chance(squares, known, seen.own), squares, 1.0)
        noise, lengths = np.sqrt(squares)
        limits = self.remarkable, self.longest
        return explain(evidence.parties, groups, noise, lengths, *limits, lasting)

    def _samples(self, evidence: Evidence, given: Given) -> tuple[Vector, Vector]:
        """Return each party's samples relative to the typical party's: as they count, and as they
        are known."""
        most = MUCH if given.trusted_counts else self.most_claimed
        counts = claims(evidence.parties, given.sample_counts, most)
        return counts, counts if given.trusted_counts else np.ones(len(counts))

    def _trust(self, relative: Vector, seen: Reading, *, quiet: bool) -> Vector:
        """Return the trust in parties, given their levels relative to the typical one; ``quiet``
        tells whether a quieter one may count for more."""
        slack = min(float(np.hypot(seen.slack, self.doubt * (1 - seen.own))), self.most_slack)
        more = self.quiet * shorth(np.log(seen.levels)) / seen.slack**2
        most = float(np.exp(more)) if quiet else 1.0
        return trust(relative, slack, self.loudest, most)

    def _kept(self, past: Lasting, heard: Vector) -> tuple[Vector, Lasts]:
        """Return the share of its trust that each party keeps, given what lasts of its error, and
        what is remarkable about that.

        Where errors last, it may be the only one to know something, and keeps some. If that were
        forgotten, its error would grow, and its trust fall further.
        """
        lasts = now_lasting(past, self.enough_rounds, heard)
        most = most_lasting(past, lasts)
        known = kept_of(past, self.enough_rounds, self.outlasting, lasts, heard)
        shared = np.ones(len(known))
        if self.unshared is not None:
            # In the first rounds, too little is known of how much lasts.
            enough = _LONGER * self.enough_rounds
            shared = kept_unshared(past, enough, self.unshared / (1 - most) ** 4, heard)
        both = known * shared
        cut = (both <= 1 / self.remarkable) & (both < 1)
        longer = np.where(cut & (known <= shared), lasting_lengths(past, heard), 0.0)
        return np.maximum(both, self.owner * most**2), Lasts(longer, cut & (shared <= known))

    def most_slack_after(self, past: Lasting | None) -> float:
        """Return the largest ρ: less than ``most_slack`` if errors are known to fade."""
        if past is None:
            return self.most_slack
        shares = lasting_shares(past, self.enough_rounds)
        return slack_from(shares, self.fading, self.lasting, self.most_slack)

    def _corroboration(self, past: Lasting | None, heard: Vector) -> Corroboration | None:
        """Return whether, and how strictly, other parties must support what a party sends;
        ``heard`` are the weights of the parties with a past."""
        if self.corroborate is False:
            return None
        mild = settled = False
        if past is not None:
            shares = lasting_shares(past, self.enough_rounds)
            mild = float(np.quantile(shares, self.fading)) <= self.mild
            settled = lasts_of(past, self.enough_rounds, heard) > self.settled
        return Corroboration(always=bool(self.corroborate), mild=mild, settled=settled)


def _heard(evidence: Evidence, weights: tuple[Vector, ...], past: Lasting | None) -> Vector:
    """Return the weights of this round's parties, in the order of their averages. Those of earlier
    rounds must not add up, or a few who always come would decide what is typical."""
    if past is None:
        return np.empty(0)
    at = evidence.find(past.block.parties)
    found = dict(zip(evidence.blocks[at].parties, weights[at], strict=True))
    return np.array([found[party] for party in past.block.parties])


class _View(NamedTuple):
    """What follows from an explanation."""

    share: float
    seen: Reading
    weights: list[Vector]  # of each block
    shared: Matrix  # includes what averages over rounds tell
    relative: Vector  # (J,): levels relative to the typical one, with the past
    trusts: Mask  # of this round's parties
    lasting: Lasts


def _there(evidence: Evidence, given: Given) -> Positions:
    """Return the positions of this round's parties; all, if it is not known who they are."""
    now = set(evidence.parties if given.now is None else given.now.parties)
    return np.array([j for j, party in enumerate(evidence.parties) if party in now], np.intp)


def _once_each(views: list[_View]) -> list[_View]:
    """Return the views with shares in which no camp is heard twice: those that trust the same
    parties have the largest of their shares together. The readings of a round and of averages may
    differ in who belongs to a camp, and then tell of it twice."""
    same = [[v.share for v in views if (v.trusts == view.trusts).all()] for view in views]
    shares = [v.share * max(each) / sum(each) for v, each in zip(views, same, strict=True)]
    return [v._replace(share=x / sum(shares)) for v, x in zip(views, shares, strict=True)]


def _camps(parties: tuple[str, ...], trusts: list[Mask]) -> tuple[tuple[str, ...], ...]:
    """Return whom each view trusts; nobody if all of them trust the same parties."""
    camps = [tuple(p for p, is_in in zip(parties, each, strict=True) if is_in) for each in trusts]
    distinct = tuple(dict.fromkeys(camps))
    return distinct if len(distinct) > 1 else ()
