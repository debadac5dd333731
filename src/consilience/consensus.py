"""aggregate(): the one verb, and the consensus it returns."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, Protocol

import numpy as np

from consilience.beliefs import Beliefs, Estimator, Given
from consilience.catalogue import DEFAULT, Method, resolve
from consilience.combine import reduce_coordinates
from consilience.coordinatewise import TrimmedMean
from consilience.deliberation import InProcess, Verdict, deliberate
from consilience.errors import ConsilienceError, RecordFileError
from consilience.estimators.uncertainty import noise_intervals
from consilience.evidence import Matrix, Vector, observe
from consilience.judgement import Judgement
from consilience.memory import Memory
from consilience.record import Record
from consilience.text import shown
from consilience.updates import Updates, parse

log = logging.getLogger(__name__)

_REASON = 1000  # characters; what a reason quotes is a stranger's
_MOSTLY = 0.5  # of the weight: from here on the value is the centre's rather than the parties'


@dataclass(frozen=True, eq=False)
class Consensus:
    """The combined update, and the beliefs it came from."""

    value: Any  # structure, dtypes and device of the updates
    parties: tuple[str, ...]  # whose updates were usable, in the order given
    weights: dict[str, float]  # of everybody; zero for the rejected
    noise: dict[str, float]  # standard deviation per coordinate; NaN where unknown
    covariance: Matrix | None  # (J, J), in the order of parties
    rejected: dict[str, str]  # party -> reason
    variance: float | None  # of the value about the truth, per coordinate: VB only
    beliefs: Beliefs | None = field(repr=False)  # None for coordinate-wise rules
    diagnostics: dict[str, Any] = field(repr=False)
    center_weight: float = 0.0  # what the parties' weights lack to one, where there is a prior
    judgement: Judgement | None = field(default=None, repr=False)

    @property
    def reasons(self) -> dict[str, str]:
        """Why each party stands out that does, or was rejected: the same whatever the method."""
        found = {} if self.judgement is None else self.judgement.reasons
        here = {party: found[party] for party in self.parties if party in found}
        return {**here, **self.rejected}

    @property
    def groups(self) -> tuple[tuple[str, ...], ...]:
        """The sets of parties that move together."""
        return () if self.judgement is None else self.judgement.groups

    @property
    def caveats(self) -> tuple[str, ...]:
        """Why this is no all-clear, even where no party stands out."""
        compared = len(self.parties) if self.judgement is None else self.judgement.compared
        said = []
        if len(self.parties) == 1 and compared < 3:
            said.append("only 1 usable party: nobody to judge it by")
        elif compared < 3:
            said.append("only 2 usable parties: neither can be judged by the other")
        if abs(self.center_weight) >= _MOSTLY:
            percent = f"{100 * self.center_weight:.0f} % of the weight"
            said.append(f"the centre holds {percent}: the value is mostly the centre's")
        return tuple(said)

    def noise_intervals(self, level: float = 0.95) -> dict[str, tuple[float, float]]:
        """Return an interval for each party's noise (ivar-vb and icov-vb).

        For ICOV they cover as stated with ``posterior="joint"``; the paper's factorised posterior
        understates noise that parties share, and so do its intervals.
        """
        if self.beliefs is None:
            raise ConsilienceError("coordinate-wise rules have no model of noise")
        ends = noise_intervals(self.beliefs, level)
        by_party = dict(zip(self.beliefs.parties, ends, strict=True))
        return {p: (float(by_party[p][0]), float(by_party[p][1])) for p in self.parties}


def aggregate(
    updates: Any,
    method: str | Method = DEFAULT,
    memory: Memory | None = None,
    center: Any = None,
    sample_counts: Mapping[str, float] | Sequence[float] | None = None,
    *,
    exact: bool = False,
    record: Record | str | os.PathLike[str] | None = None,
) -> Consensus:
    """Combine the updates of a round into a consensus, trusting each party as far as it deserves.

    Args:
        updates: ``{party id: update}``, a sequence of updates, or a (J, K) array. An update is a
            tensor (numpy, torch, anything with ``__array__`` or ``__dlpack__``), or a mapping or
            sequence of updates. Never changed.
        method: a name from `methods`, or an estimator with parameters, such as ``IVAR("mle")``.
        memory: what earlier rounds taught; brought up to date if the round succeeds.
        center: where a prior expects the truth: the previous global model if the updates are
            parameters. Zero, for gradients and differences, if not given.
        sample_counts: how many samples each party says it used. ``mean`` and ``geometric-median``
            weigh by them, ``pairwise`` makes from half a vote to two of them; the other methods
            infer quality from the evidence.
        exact: look at every coordinate also where a sample of them would do.
        record: the run's record, or its file, to add this round to (see docs/record.md).

    A party whose update cannot be used is rejected with a reason, and the round goes on.
    """
    chosen = resolve(method)
    started = perf_counter()
    parsed = parse(updates, center)
    counts, bad = _counts(sample_counts, parsed)
    parsed = parsed.without(bad)
    if isinstance(chosen, TrimmedMean):
        consensus = _coordinatewise(parsed, chosen, started, exact=exact)
    else:
        consensus = _evidence_based(parsed, chosen, memory, counts, started, exact=exact)
    consensus.diagnostics["method"] = method if isinstance(method, str) else repr(method)
    if record is not None:
        _write_down(consensus, record)
    return consensus


def _write_down(consensus: Consensus, record: Record | str | os.PathLike[str]) -> None:
    """Add to a record, which is not worth losing a consensus for."""
    try:
        (record if isinstance(record, Record) else Record(record)).append(consensus)
    except (OSError, RecordFileError) as error:
        log.error(
            "the round is missing from its record, the consensus is not: %s", shown(error, 500)
        )


def _evidence_based(
    updates: Updates,
    estimator: Estimator,
    memory: Memory | None,
    sample_counts: Mapping[str, float] | None,
    started: float,
    *,
    exact: bool,
) -> Consensus:
    engine = InProcess(updates)
    parsed = perf_counter() - started
    verdict = deliberate(engine, estimator, memory, sample_counts, exact=exact)
    result = engine.updates.rebuild(engine.value, verdict.weights[:-1])
    if memory is not None:
        memory.keep(verdict.evidence, verdict.beliefs, verdict.trails)
    return conclude(engine.updates, result, verdict, {"parsing": parsed})


class Roll(Protocol):
    """Who sent something, and whose update was usable."""

    @property
    def given(self) -> tuple[str, ...]:
        """Everybody, in the caller's order."""
        ...

    @property
    def parties(self) -> tuple[str, ...]:
        """Those whose updates were used."""
        ...

    @property
    def rejected(self) -> Mapping[str, str]:
        """The others, with reasons."""
        ...


def conclude(roll: Roll, value: Any, verdict: Verdict, seconds: dict[str, float]) -> Consensus:
    """Return the consensus that a verdict came to."""
    beliefs = verdict.beliefs
    position = {party: j for j, party in enumerate(beliefs.parties)}
    here = [position[party] for party in roll.parties]
    block = beliefs.evidence.find(roll.parties)
    return _consensus(
        roll,
        value,
        verdict.weights[:-1],
        beliefs.noise[here],
        None if beliefs.covariance is None else beliefs.covariance[np.ix_(here, here)],
        None if beliefs.variance is None else float(beliefs.variance[block]),
        beliefs,
        {
            "iterations": beliefs.iterations,
            "converged": beliefs.converged,
            "objective": beliefs.objective,
            "coordinates_seen": verdict.seen,
            "seconds": {**seconds, **verdict.seconds},
        },
        Judgement(verdict.evidence, verdict.given, beliefs),
        float(verdict.weights[-1]),
    )


def _coordinatewise(
    updates: Updates, rule: TrimmedMean, started: float, *, exact: bool
) -> Consensus:
    updates, evidence = observe(updates)  # for the reasons alone
    with np.errstate(over="ignore", invalid="ignore"):
        value, shares, squares = reduce_coordinates(updates, rule, exact=exact)
    if not np.isfinite(squares).all():  # only now is the culprit looked for
        updates, evidence = observe(updates.screened())
        value, shares, squares = reduce_coordinates(updates, rule, exact=exact, precise=True)
    noise = np.sqrt(squares) if len(updates.parties) > 1 else np.full(1, np.nan)
    result = updates.rebuild(value, shares)
    seconds = {"combination": perf_counter() - started}
    diagnostics = {"iterations": 0, "converged": True, "objective": (), "seconds": seconds}
    judgement = Judgement(evidence, Given(now=evidence.blocks[0]))
    return _consensus(updates, result, shares, noise, None, None, None, diagnostics, judgement)


def _consensus(
    roll: Roll,
    value: Any,
    weights: Vector,
    noise: Vector,
    covariance: Matrix | None,
    variance: float | None,
    beliefs: Beliefs | None,
    diagnostics: dict[str, Any],
    judgement: Judgement,
    center_weight: float = 0.0,
) -> Consensus:
    """Put the results in the caller's order, and count the parties that have a say."""
    position = {party: j for j, party in enumerate(roll.parties)}
    order = [position[party] for party in roll.given if party in position]
    said = float(np.abs(weights).sum()) ** 2 / float(weights @ weights)
    return Consensus(
        value,
        tuple(roll.parties[j] for j in order),
        {p: float(weights[position[p]]) if p in position else 0.0 for p in roll.given},
        {p: float(noise[position[p]]) if p in position else np.nan for p in roll.given},
        None if covariance is None else covariance[np.ix_(order, order)],
        {p: shown(roll.rejected[p], _REASON) for p in roll.given if p in roll.rejected},
        variance,
        beliefs,
        {**diagnostics, "effective_parties": said},
        center_weight,
        judgement,
    )


def _counts(
    sample_counts: Mapping[str, float] | Sequence[float] | None, updates: Updates
) -> tuple[dict[str, float] | None, dict[str, str]]:
    """Return usable sample counts by party, and the parties whose count is none, with reasons.

    A count that is missing is no reason to reject anybody; a count that is no count is one.
    """
    if sample_counts is None:
        return None, {}
    if isinstance(sample_counts, Mapping) or _names_parties(sample_counts, updates):
        named: Any = sample_counts
        given = {str(party): count for party, count in named.items()}
    elif len(sample_counts) == len(updates.given):
        given = dict(zip(updates.given, sample_counts, strict=True))
    else:
        raise ConsilienceError(
            f"{len(updates.given)} updates but {len(sample_counts)} sample counts"
        )
    said = {party: _count(given[party]) for party in updates.parties if party in given}
    if said and all(count == 0 for count in said.values()):
        return None, {}  # nobody counts
    bad = {
        party: f"its sample count is {_described(given[party])}, expected a positive number"
        for party, count in said.items()
        if not 0 < count < np.inf
    }
    return {party: count for party, count in said.items() if party not in bad}, bad


def _names_parties(counts: Any, updates: Updates) -> bool:
    """Tell whether these are a series of pandas whose index is of ids, not of places."""
    index = getattr(counts, "index", None)
    if index is None or callable(index):  # as a list's is
        return False
    return not set(map(str, index)).isdisjoint(updates.given)


def _count(said: Any) -> float:
    try:
        return float(said)
    except Exception:  # text, a list, 10**400, or whatever a stranger's number raises
        return np.nan


def _described(found: Any) -> str:
    try:
        return shown(repr(found))
    except Exception:  # numbers of thousands of digits have no text
        return f"of type {type(found).__name__}"
