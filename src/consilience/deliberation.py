"""From evidence to weights and a sum, wherever the updates are: two passes and what lies between.

An `Engine` makes the two passes: in process (`InProcess`), from files, on many machines. It never
sees a prior; what is decided here never sees an update.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from time import perf_counter
from typing import Protocol

import numpy as np

from consilience.beliefs import Beliefs, Estimator, Given, with_centre
from consilience.combine import Storage, combine
from consilience.evidence import Evidence, Matrix, Vector, observe, residuals
from consilience.memory import Memory
from consilience.updates import Updates

# Sampled evidence foretells how far each party lies from the consensus; the second pass measures
# it. Beyond _OFF the evidence is corrected, and if the weights then differ as much, the sum is made
# again. Beyond _SURPRISE something hides between the sampled coordinates: all are looked at.
_OFF = 0.0075
_SURPRISE = 0.1
# Parties so many times farther (squared) from zero than from the consensus are near it.
_NEAR = 1e3


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

    def combine(self, weights: Vector, *, measure: bool, near: bool) -> Vector:
        """Form the weighted sum (the last weight is the centre's), and return each party's mean
        squared distance from it if ``measure``: see `combine.combine`. Where there is no distance,
        parties whose updates are unusable are left out from then on."""
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

    def combine(self, weights: Vector, *, measure: bool, near: bool) -> Vector:
        """Make the sum the value."""
        self.value, squares = combine(self.updates, weights, measure=measure, near=near)
        if not np.isfinite(squares).all():
            self.updates = self.updates.screened()
        return squares


@dataclass(frozen=True, eq=False)
class Verdict:
    """What a round came to."""

    evidence: Evidence  # with what was remembered
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

    def infer(now: Evidence) -> tuple[Evidence, Beliefs, Vector]:
        evidence = now if memory is None else memory.recall(now)
        given = Given(sample_counts, None if memory is None else memory.known, now.blocks[0])
        beliefs = estimator.infer(evidence if estimator.remembers else now, given)
        weights = with_centre(beliefs.weights_of(engine.parties))
        weights[-1] *= abs(weights[-1]) > 1e-12  # what rounding leaves is no weight
        return evidence, beliefs, weights

    evidence, beliefs, weights = infer(now)
    inferred = perf_counter()
    block = now.blocks[0]
    if block.count >= engine.size:
        engine.combine(weights, measure=False, near=False)
    else:
        with np.errstate(over="ignore", invalid="ignore"):  # what a sample missed is handled here
            squares = engine.combine(weights, measure=True, near=_near(block.distances, weights))
            off = _relative(squares, block.residuals(weights))
        if not off <= _SURPRISE:
            explained = engine.parties != block.parties  # an unusable update is out
            return deliberate(engine, estimator, memory, sample_counts, exact=not explained)
        if off > _OFF:
            before = weights
            evidence, beliefs, weights = infer(Evidence((block.corrected(weights, squares),)))
            if _relative(weights, before) > _OFF:
                engine.combine(weights, measure=False, near=False)
    seconds = {
        "evidence": observed - started,
        "inference": inferred - observed,
        "combination": perf_counter() - inferred,
    }
    return Verdict(evidence, beliefs, weights, int(block.count), seconds)


def _near(distances: Matrix, weights: Vector) -> bool:
    """Tell whether some party lies much closer to the consensus than to the centre."""
    apart = residuals(distances, weights)
    return bool((distances[-1, :-1] > _NEAR * apart[:-1]).any())


def _relative(found: Vector, expected: Vector) -> float:
    """Return the largest relative difference, or NaN. What is nine digits below the largest value
    counts as zero."""
    least = 1e-9 * float(np.abs(expected).max()) + 1e-300
    return float((np.abs(found - expected) / (np.abs(expected) + least)).max())
