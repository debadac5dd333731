"""From evidence to a consensus, wherever the updates are: two passes, and the inference between.

An `Engine` makes the two passes: in process, from files, on a device, or on many machines. It never
sees a prior; the code here never sees an update.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from statistics import median_low
from time import perf_counter
from typing import Any, Protocol

import numpy as np

from consilience.arrays import Array, Matrix, Positions, Vector
from consilience.beliefs import Beliefs, Estimator, Given, with_centre
from consilience.consensus import Consensus
from consilience.errors import ConsilienceError, check_argument
from consilience.estimators.catalogue import Method
from consilience.estimators.coordinatewise import TrimmedMean
from consilience.estimators.judgement import Judgement
from consilience.estimators.layers import stands_out
from consilience.evidence import Block, Evidence, Layers
from consilience.memory import Memory
from consilience.passes.blas import one_thread
from consilience.passes.corroborate import Witnesses, corroborated, voices_of
from consilience.passes.sampling import PLACES, places_of
from consilience.require import Require
from consilience.text import shown

# For a pair, the ratio of sampled to exact distance may differ from that of other pairs by this
# share, plus chance. If it differs more, the sample missed something, and all coordinates are read.
_SURPRISE = 0.02
_REASON = 1000  # characters; a reason may quote foreign text


class Engine(Protocol):
    """Where the updates of a round are, and where the passes over them run."""

    @property
    def given(self) -> tuple[str, ...]:
        """Everybody who sent something, in the caller's order."""
        ...

    @property
    def parties(self) -> tuple[str, ...]:
        """Whose updates are usable, as far as known by now."""
        ...

    @property
    def rejected(self) -> Mapping[str, str]:
        """The others, with reasons."""
        ...

    @property
    def size(self) -> int:
        """K, the number of floating-point coordinates of an update that are evidence."""
        ...

    @property
    def linear(self) -> bool:
        """Whether the value can only be a weighted sum: coordinates are then not treated one by
        one, and corroboration does not apply."""
        ...

    def observe(self, random: np.random.Generator, *, exact: bool) -> Evidence:
        """Return the evidence, from a sample of the coordinates unless ``exact``. Parties whose
        updates prove unusable are dropped."""
        ...

    def look(self, places: Positions) -> Array:
        """Return the parties' coordinates at the given places, in ascending order: (J, n)."""
        ...

    def layers(self, reference: int, random: np.random.Generator) -> Layers | None:
        """Return the distances tensor by tensor, from a sample, where possible. The reference is a
        party not far from the others."""
        ...

    def combine(
        self, weights: Vector, ring: Positions | None, witnesses: Witnesses | None
    ) -> tuple[Vector, Vector]:
        """Form the weighted sum (the last weight is the centre's), clipped where parties lack
        witnesses. ``ring`` is an order of all parties: return each one's mean squared distance from
        its predecessor, and the mean square of what was clipped. If these are not finite, parties
        with unusable updates are dropped."""
        ...

    def reduce(self, rule: TrimmedMean, *, exact: bool) -> tuple[Vector, Vector]:
        """Form the value of a coordinate-wise rule; return each party's share in it and its mean
        squared distance from it. If these are not finite: as in `combine`."""
        ...

    def finish(self, weights: Vector) -> Any:
        """Return the value in the caller's form."""
        ...


def deliberate(
    engine: Engine,
    method: Method,
    memory: Memory | None = None,
    sample_counts: Mapping[str, float] | None = None,
    *,
    exact: bool = False,
    seed: int | None = None,
    seconds: Mapping[str, float] | None = None,
    trusted_counts: bool = False,
    require: Require | None = None,
) -> Consensus:
    """Return the consensus of an engine's updates; update the memory.

    ``seed`` makes the sample of coordinates repeatable; ``seconds`` were spent before;
    ``trusted_counts``: sample counts are verified, not mere claims; ``require``: what the round
    must have to count. If it does not count, nothing is formed or remembered.
    """
    check_known(memory, require)
    random = np.random.default_rng(seed)
    round = _Round(engine, dict(seconds or {}), trusted_counts, require or Require())
    if isinstance(method, TrimmedMean):
        return round.reduced(method, random, exact=exact)
    for asked in ("remembers", "follows"):
        if not hasattr(method, asked):
            raise _mistaken(method, f"does not say whether it {asked}", f"{asked} = True or False")
    return round.weighed(method, memory, sample_counts, random, exact=exact)


def check_known(memory: Memory | None, require: Require | None) -> None:
    """Raise if these are not what they should be, as a path or a mapping is not."""
    check_argument("memory", memory, Memory | None, "a Memory (a file: Memory.load(path))")
    check_argument("require", require, Require | None, "a Require, such as Require(parties=3)")


class _Round:
    """One round on its way from updates to a consensus."""

    def __init__(
        self, engine: Engine, seconds: dict[str, float], trusted_counts: bool, require: Require
    ) -> None:
        self.engine, self.seconds = engine, seconds
        self.trusted_counts, self.require = trusted_counts, require

    def weighed(
        self,
        estimator: Estimator,
        memory: Memory | None,
        sample_counts: Mapping[str, float] | None,
        random: np.random.Generator,
        *,
        exact: bool,
    ) -> Consensus:
        """Observe, infer, combine; once more if the evidence turns out to be incomplete."""
        engine = self.engine
        now, block = self._observed(random, exact=exact)
        started = perf_counter()
        evidence = now if memory is None else memory.recall(now)
        relay = known = past = None
        if memory is not None:
            known, past = memory.known, memory.beyond(evidence, now)
            if estimator.follows:
                relay = memory.followed(block.parties, engine.size, engine.look)
        with one_thread():
            lasting = None if relay is None else relay.evidence(len(block.parties))
            counts = _counts_of(engine.parties, sample_counts)
            given = Given(counts, known, block, lasting, past, self.trusted_counts)
            beliefs = _inferred(estimator, evidence if estimator.remembers else now, given)
            weights = with_centre(_weights_of(engine.parties, beliefs, estimator))
            weights[-1] *= abs(weights[-1]) > 1e-12  # remove what is only rounding
            weights, witnesses = self._corroborated(weights, beliefs, random)
        judgement = Judgement(evidence, given, beliefs)
        self._check(weights, judgement)
        self._took("inference", started)
        alone = self._combined(block, weights, witnesses, random)
        if alone is None:
            explained = engine.parties != block.parties  # an unusable update was dropped
            return self.weighed(
                estimator, memory, sample_counts, random, exact=exact or not explained
            )
        judgement = self._located(judgement, block, random)
        value = engine.finish(weights[:-1])
        if memory is not None:
            memory.keep(now, beliefs, relay)
        return self._concluded(value, weights, judgement, block, beliefs=beliefs, alone=alone)

    def reduced(self, rule: TrimmedMean, random: np.random.Generator, *, exact: bool) -> Consensus:
        """Apply a coordinate-wise rule; the evidence serves only the reasons."""
        engine = self.engine
        while True:
            now, block = self._observed(random, exact=False)
            started = perf_counter()
            shares, squares = engine.reduce(rule, exact=exact)
            self._took("combination", started)
            if engine.parties == block.parties:
                break
        noise = np.sqrt(squares) if len(engine.parties) > 1 else np.full(1, np.nan)
        weights, judgement = np.append(shares, 0.0), Judgement(now, Given(now=block))
        self._check(weights, judgement)
        judgement = self._located(judgement, block, random)
        value = engine.finish(shares)
        return self._concluded(value, weights, judgement, block, noise=noise)

    def _check(self, weights: Vector, judgement: Judgement) -> None:
        """Raise if the round lacks what it must have to count."""
        engine, require = self.engine, self.require
        groups = judgement.groups if require.suspects < 1 else ()
        require.check(engine.given, _effective(weights[:-1]), engine.rejected, groups)

    def _located(
        self, judgement: Judgement, block: Block, random: np.random.Generator
    ) -> Judgement:
        """If somebody stands out, look at single tensors to say in which."""
        if not stands_out(block):
            return judgement
        started = perf_counter()
        layers = self.engine.layers(int(np.argmin(block.typical_distances)), random)
        self._took("evidence", started)
        return replace(judgement, layers=layers)

    def _observed(self, random: np.random.Generator, *, exact: bool) -> tuple[Evidence, Block]:
        started = perf_counter()
        now = self.engine.observe(random, exact=exact)
        self._took("evidence", started)
        (block,) = now.blocks
        return now, block

    def _corroborated(
        self, weights: Vector, beliefs: Beliefs, random: np.random.Generator
    ) -> tuple[Vector, Witnesses | None]:
        """Return the weights that count and the witnesses, None if no support is needed. The last
        weight, the centre's, is unchanged."""
        size, rule = self.engine.size, beliefs.corroboration
        if rule is not None and rule.always and self.engine.linear:
            raise ConsilienceError(
                "corroboration goes coordinate by coordinate, and the sum of these updates can "
                "only be formed whole: leave it out, for instance with Pairwise(corroborate=False)"
            )
        few = len(weights) < 3 or (size < PLACES and not (rule and rule.always))
        if rule is None or self.engine.linear or few:
            return weights, None
        sample = self.engine.look(places_of(size, random))
        voices = voices_of(beliefs.groups, self.engine.parties)
        counted, witnesses = corroborated(sample, weights[:-1], rule, voices)
        return np.append(counted, weights[-1]), witnesses

    def _combined(
        self,
        block: Block,
        weights: Vector,
        witnesses: Witnesses | None,
        random: np.random.Generator,
    ) -> Vector | None:
        """Have the sum formed. Return the share of each party's squared difference that was
        clipped, or None if the sampled evidence is not representative of all coordinates.

        Sampled and exact distances are compared for a random ring of pairs. All of them may differ
        by one common factor, which heavy tails cause and weights do not depend on. If a pair
        differs by another factor, the sample missed something.
        """
        started = perf_counter()
        engine, count = self.engine, len(block.parties)
        ring = random.permutation(count)
        sampled = block.count < engine.size and count > 1
        apart, alone = engine.combine(weights, ring if sampled else None, witnesses)
        self._took("combination", started)
        if engine.parties != block.parties:
            return None
        seen = block.distances[ring, np.roll(ring, 1)]
        if sampled and not _unsurprising(apart[ring], seen, block.count):
            return None
        if witnesses is None:
            return np.zeros(0)
        return np.minimum(alone / np.maximum(block.residuals(weights)[:-1], 1e-300), 1.0)

    def _concluded(
        self,
        value: Any,
        weights: Vector,
        judgement: Judgement,
        block: Block,
        *,
        beliefs: Beliefs | None = None,
        noise: Vector | None = None,
        alone: Vector | None = None,
    ) -> Consensus:
        """Put the results in the caller's order, and count the effective parties."""
        engine = self.engine
        position = {party: j for j, party in enumerate(engine.parties)}
        here = {party: position[party] for party in engine.given if party in position}
        order = list(here.values())
        told = {} if beliefs is None else _told_by(beliefs, engine.parties)
        noise = told["noise"] if noise is None else noise
        covariance: Matrix | None = told.get("covariance")
        said, cut = weights[:-1], np.zeros(0) if alone is None else alone
        diagnostics = {
            "iterations": 0 if beliefs is None else beliefs.iterations,
            "converged": True if beliefs is None else beliefs.converged,
            "objective": () if beliefs is None else beliefs.objective,
            "coordinates_seen": int(block.count),
            "seconds": self.seconds,
            "effective_parties": _effective(said),
        }
        return Consensus(
            value,
            parties=tuple(here),
            weights={p: float(said[here[p]]) if p in here else 0.0 for p in engine.given},
            noise={p: float(noise[here[p]]) if p in here else np.nan for p in engine.given},
            covariance=None if covariance is None else covariance[np.ix_(order, order)],
            rejected={
                p: shown(engine.rejected[p], _REASON) for p in engine.given if p in engine.rejected
            },
            variance=told.get("variance"),
            beliefs=beliefs,
            diagnostics=diagnostics,
            center_weight=float(weights[-1]),
            judgement=judgement,
            uncorroborated={p: float(cut[j]) for p, j in here.items()} if cut.size else {},
        )

    def _took(self, step: str, started: float) -> None:
        self.seconds[step] = self.seconds.get(step, 0.0) + perf_counter() - started


def _unsurprising(exact: Vector, sampled: Vector, count: float) -> bool:
    """Tell whether exact distances agree with those from a sample of ``count`` coordinates, up to a
    common factor.

    By chance each has a relative error of √(2/n), and the largest and the least of J such errors
    differ by about 2√(2 log 2J) times as much.
    """
    if not np.isfinite(exact).all():
        return False
    rounding = 1e-12 * float(np.median(exact))
    chance = 2 * np.sqrt(2 * np.log(2 * len(exact))) * np.sqrt(2 / count)
    ratio = (exact + rounding) / np.maximum(sampled + rounding, 1e-300)
    return bool(ratio.max() <= (1 + _SURPRISE + chance) * ratio.min())


def _effective(weights: Vector) -> float:
    """Return the effective number of parties, (Σ|w|)²/Σw²; zero if all weights are."""
    largest = float(np.abs(weights).max())
    shares = np.abs(weights) / largest if largest > 0 else weights
    return float(shares.sum()) ** 2 / float(shares @ shares) if largest > 0 else 0.0


def _told_by(beliefs: Beliefs, parties: tuple[str, ...]) -> dict[str, Any]:
    """Return what beliefs say about a round's parties, in their order there."""
    position = {party: j for j, party in enumerate(beliefs.parties)}
    here = [position[party] for party in parties]
    found: dict[str, Any] = {"noise": beliefs.noise[here]}
    if beliefs.covariance is not None:
        found["covariance"] = beliefs.covariance[np.ix_(here, here)]
    if beliefs.variance is not None:
        found["variance"] = float(beliefs.variance[beliefs.evidence.find(parties)])
    return found


def _counts_of(
    parties: tuple[str, ...], sample_counts: Mapping[str, float] | None
) -> dict[str, float] | None:
    """Return a sample count for each party of the round. A party that gave none is taken to have
    the median count."""
    said = {p: sample_counts[p] for p in parties if p in sample_counts} if sample_counts else {}
    if not said:
        return None
    typical = median_low(said.values())
    return {party: said.get(party, typical) for party in parties}


def _inferred(estimator: Estimator, evidence: Evidence, given: Given) -> Beliefs:
    """Return a method's beliefs. It may be a caller's own method, so the shapes are checked."""
    beliefs = estimator.infer(evidence, given)
    if not isinstance(beliefs, Beliefs):
        raise _mistaken(estimator, f"returned {type(beliefs).__name__}", "Beliefs")
    sizes = [np.shape(weights) for weights in beliefs.weights]
    expected = [(len(block.parties),) for block in beliefs.evidence.blocks]
    if sizes != expected:
        raise _mistaken(estimator, f"returned weights of shapes {sizes}", f"{expected}")
    if np.shape(beliefs.noise) != (len(beliefs.parties),):
        found = f"returned noise of shape {np.shape(beliefs.noise)}"
        raise _mistaken(estimator, found, f"{(len(beliefs.parties),)}")
    weights = tuple(np.asarray(each, np.float64) for each in beliefs.weights)
    return replace(beliefs, weights=weights, noise=np.asarray(beliefs.noise, np.float64))


def _mistaken(estimator: object, found: str, expected: str) -> ConsilienceError:
    return ConsilienceError(
        f"{shown(repr(estimator))} {found}: expected {expected}; mend the estimator, or choose "
        "another method"
    )


def _weights_of(parties: tuple[str, ...], beliefs: Beliefs, estimator: Estimator) -> Vector:
    weights = beliefs.weights_of(parties)
    if not np.isfinite(weights).all():
        party = parties[int(np.argmin(np.isfinite(weights)))]
        found = f"gave party {shown(party)} a weight that is not finite"
        raise _mistaken(estimator, found, "numbers")
    return weights
