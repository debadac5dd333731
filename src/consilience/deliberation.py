"""From evidence to weights and a sum, wherever the updates are: two passes and what lies between.

An `Engine` makes the two passes: in process (`InProcess`), from files, on many machines. It never
sees a prior; what is decided here never sees an update.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median_low
from time import perf_counter
from typing import Any, Protocol

import numpy as np

from consilience.beliefs import Beliefs, Estimator, Given, with_centre
from consilience.combine import Storage, combine, foretold
from consilience.errors import ConsilienceError
from consilience.evidence import Evidence, Positions, Vector, observe
from consilience.memory import Memory
from consilience.tensors import Array
from consilience.text import shown
from consilience.trails import Trails
from consilience.updates import Updates

# How far off the jury is must be what sampled evidence foretold within this share, or else
# something hides between the sampled coordinates, and all are looked at.
_SURPRISE = 0.02


class Engine(Protocol):
    """Where the updates of a round are, and where the passes over them run."""

    @property
    def parties(self) -> tuple[str, ...]:
        """Whose updates are usable, as far as is known by now."""
        ...

    @property
    def size(self) -> int:
        """K, the number of floating-point coordinates of an update."""
        ...

    def observe(self, *, exact: bool) -> Evidence:
        """Return the evidence; parties whose updates prove unusable are left out from then on."""
        ...

    def look(self, places: Positions) -> Array:
        """Return the parties' coordinates at some places, in ascending order: (J, n)."""
        ...

    def combine(self, weights: Vector, *, check: bool) -> float:
        """Form the weighted sum (the last weight is the centre's), and return how far off the jury
        is, if ``check``: see `combine.combine`. Where that is not finite, parties whose updates are
        unusable are left out from then on."""
        ...


class InProcess:
    """Updates in this process's memory."""

    def __init__(self, updates: Updates) -> None:
        self.updates = updates
        self.value: Storage = {}

    @property
    def parties(self) -> tuple[str, ...]:
        """Whose updates are usable."""
        return self.updates.parties

    @property
    def size(self) -> int:
        """K."""
        return self.updates.size

    def observe(self, *, exact: bool) -> Evidence:
        """Return the evidence, and drop unusable updates."""
        self.updates, evidence = observe(self.updates, exact=exact)
        return evidence

    def look(self, places: Positions) -> Array:
        """Return the parties' coordinates at some places."""
        return self.updates.look(places)

    def combine(self, weights: Vector, *, check: bool) -> float:
        """Make the sum the value."""
        self.value, off = combine(self.updates, weights, check=check)
        if not np.isfinite(off):
            self.updates = self.updates.screened()
        return off


@dataclass(frozen=True, eq=False)
class Verdict:
    """What a round came to."""

    evidence: Evidence  # with what was remembered
    trails: Trails | None  # likewise
    given: Given  # to the method, besides
    beliefs: Beliefs
    weights: Vector  # of the engine's parties, and the centre
    seen: int  # coordinates the evidence is from
    seconds: dict[str, float]


def deliberate(
    engine: Engine,
    estimator: Estimator,
    memory: Memory | None = None,
    sample_counts: Mapping[str, float] | None = None,
    *,
    exact: bool = False,
) -> Verdict:
    """Observe, infer, and have the engine form the sum."""
    started = perf_counter()
    now = engine.observe(exact=exact)
    observed = perf_counter()

    evidence = now if memory is None else memory.recall(now)
    (block,) = now.blocks
    trails = lasting = known = None
    if memory is not None:
        known = memory.known
        if estimator.follows:
            trails = memory.followed(block, engine.size, engine.look)
            lasting = trails.evidence(len(block.parties))
    given = Given(_counts_of(engine.parties, sample_counts), known, block, lasting)
    beliefs = estimator.infer(evidence if estimator.remembers else now, given)
    weights = with_centre(_weights_of(engine.parties, beliefs, estimator))
    weights[-1] *= abs(weights[-1]) > 1e-12  # what rounding leaves is no weight
    inferred = perf_counter()
    sampled = block.count < engine.size
    quiet: Any = "ignore" if sampled else "warn"  # what a sample missed is handled below
    with np.errstate(over=quiet, invalid=quiet):
        off = engine.combine(weights, check=sampled)
        expected = foretold(weights, block)
    rounding = 1e-12 * float(np.median(block.distances[-1]))  # of numbers as long as these
    if sampled and not abs(off - expected) <= _SURPRISE * expected + rounding:
        explained = engine.parties != block.parties  # an unusable update is out
        return deliberate(engine, estimator, memory, sample_counts, exact=not explained)
    seconds = {
        "evidence": observed - started,
        "inference": inferred - observed,
        "combination": perf_counter() - inferred,
    }
    return Verdict(evidence, trails, given, beliefs, weights, int(block.count), seconds)


def _counts_of(
    parties: tuple[str, ...], sample_counts: Mapping[str, float] | None
) -> dict[str, float] | None:
    """Return a sample count for each party of the round, and for nobody else. Who said nothing is
    taken to have as many as the median party."""
    said = {p: sample_counts[p] for p in parties if p in sample_counts} if sample_counts else {}
    if not said:
        return None
    typical = median_low(said.values())
    return {party: said.get(party, typical) for party in parties}


def _weights_of(parties: tuple[str, ...], beliefs: Beliefs, estimator: Estimator) -> Vector:
    weights = beliefs.weights_of(parties)
    if not np.isfinite(weights).all():
        party = parties[int(np.argmin(np.isfinite(weights)))]
        raise ConsilienceError(
            f"{shown(repr(estimator))} gave party {shown(party)} a weight that is not finite: "
            "expected numbers; mend the estimator, or choose another method"
        )
    return weights
