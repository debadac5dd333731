"""Accelerated fixed-point iterations whose objective never falls.

Block coordinate ascent can be slow along ridges of its objective. Anderson acceleration uses the
last few steps to extrapolate to where their differences would vanish. If that lowers the objective,
or leads to values that are not finite, the plain step is taken instead. In exact arithmetic no
plain step lowers the objective; if one does by more than rounding, or fails, the limit of precision
is reached and the climb ends before it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

import numpy as np

from consilience.arrays import Vector

State = TypeVar("State")

# Relative, of the objective: a sum of thousands of logarithms of either sign.
ROUNDING = 1e-11


@dataclass(frozen=True)
class Step(Generic[State]):
    """One iteration: its result, the objective there, and what is watched for convergence."""

    state: State
    objective: float
    watched: Vector


@dataclass(frozen=True)
class Climb(Generic[State]):
    """How a climb went."""

    last: Step[State]
    objective: tuple[float, ...]
    converged: bool


def climb(
    step: Callable[[State], Step[State]],
    state: State,
    *,
    pack: Callable[[State], Vector],
    unpack: Callable[[Vector, State], State],
    tolerance: float,
    max_iterations: int,
    depth: int = 6,
) -> Climb[State]:
    """Iterate until nothing watched changes by more than the tolerance. ``depth=0`` is plain.

    Raise LinAlgError if not even the first step can be computed.
    """
    objective: list[float] = []
    history: list[tuple[Vector, Vector]] = []  # the results of plain steps, and their lengths
    safe: Step[State] | None = None  # the last accepted step
    start = state  # where it started
    for _ in range(max_iterations):
        taken = _attempt(step, state)
        if safe is None:
            if taken is None:
                raise np.linalg.LinAlgError("the numbers are too far apart to compute with")
        elif taken is None or _falls(taken.objective, objective[-1], plain=state is safe.state):
            if state is safe.state:
                return Climb(replace(safe, state=start), tuple(objective), False)
            state, history = safe.state, []  # the extrapolation failed
            continue
        elif np.abs(taken.watched - safe.watched).max() <= tolerance:
            objective.append(taken.objective)
            return Climb(taken, tuple(objective), True)
        objective.append(taken.objective)
        safe, start = taken, state
        if depth == 0:
            state = taken.state
            continue
        arrived = pack(taken.state)
        history = [*history[-depth:], (arrived, arrived - pack(state))]
        state = unpack(_extrapolate(history), taken.state) if len(history) > 1 else taken.state
    assert safe is not None
    return Climb(safe, tuple(objective), False)


def _falls(after: float, before: float, *, plain: bool) -> bool:
    """Tell whether a step lowers the objective; for a plain one, by more than rounding."""
    return not after >= before - (ROUNDING * max(abs(after), abs(before)) if plain else 0.0)


def _attempt(step: Callable[[State], Step[State]], state: State) -> Step[State] | None:
    """Return the step from a state, or None if rounding makes it fail."""
    try:
        with np.errstate(over="raise", invalid="raise", divide="raise"):
            return step(state)
    except (np.linalg.LinAlgError, FloatingPointError):
        return None


def _extrapolate(history: list[tuple[Vector, Vector]]) -> Vector:
    arrived = np.array([place for place, _ in history])
    went = np.array([move for _, move in history])
    mix = np.linalg.lstsq(np.diff(went, axis=0).T, went[-1], rcond=1e-8)[0]
    extrapolated: Vector = arrived[-1] - mix @ np.diff(arrived, axis=0)
    return extrapolated
