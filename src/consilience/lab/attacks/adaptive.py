"""Adversaries who know the rule and search for what it overlooks.

Each sends μ + z·d + n·r·ε_j. d is a direction as long as an honest party's typical deviation from
the honest mean μ, r that deviation per coordinate, and ε_j the adversary's own noise: a shared
displacement, hidden in enough independent noise to look like separate parties. They may also split
into groups, which share a part of their direction, or push opposite ways.

The search looks for the plan that moves the consensus furthest from μ: first several different
tries, then one change at a time to the best so far, with at most forty calls of the aggregator. All
noise is drawn beforehand, so that tries differ only in the plan. It is the same in every round, as
a memory would average out what changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import numpy as np

from consilience.arrays import Array
from consilience.lab.attacks.crafted import moments
from consilience.lab.attacks.registry import Attack, Knowledge, register, send

CALLS = 40
NOISES = (0.0, 0.3, 0.5, 0.7, 1.0, 2.0)
SIZES = (0.2, 0.3, 0.55, 0.75, 1.4, 2.0, 5.0, 10.0, 100.0)
# Number of groups, each with direction (d + own)/√2; −2: every third adversary pushes along −d.
SPLITS = (1, 2, 3, -2)
_STEADY = 20  # seed of the noise that stays the same
# z, n and groups: a little aside, each alone; as far as honest parties are from each other; and
# groups far off, whose distances from one another are like those of separate, noisy parties.
_TRIES = (
    (1.0, 0.5, 1),
    (1.5, 0.0, 1),
    (1.7, 2.0, 1),
    (3.0, 1.0, 2),
    (3.0, 1.0, 3),
    (4.0, 0.5, 3),
    (30.0, 1.0, 2),
    (30.0, 1.0, 3),
)


@dataclass(frozen=True)
class Plan:
    """What the adversaries agree on."""

    direction: int
    z: float
    noise: float
    groups: int = 1


@register
def adaptive(knowledge: Knowledge, calls: int = CALLS, every: int = 1) -> Attack:
    """The worst found combination of displacement, direction, noise and number of groups.

    calls  at most so many of the aggregator in a search
    every  search only every so many rounds, and send the last plan in between
    """
    aggregate = knowledge.aggregate
    if aggregate is None:
        raise ValueError("an adaptive attack tries the aggregator: give Knowledge an `aggregate`")

    rounds, plan = 0, Plan(0, 0.0, 0.0)

    def attack(honest: Array, count: int, rng: np.random.Generator) -> Array:
        nonlocal rounds, plan
        scene = _Scene(honest, count, rng)
        if rounds % every == 0:
            plan = _search(scene, aggregate, calls)
        rounds += 1
        return scene.sent(plan)

    return attack


def _search(scene: _Scene, aggregate: Callable[[Array], Array], calls: int) -> Plan:
    """Return the plan that moves the aggregator furthest from μ, among those the calls allow."""
    found: dict[Plan, float] = {}

    def best(plans: Iterable[Plan]) -> Plan:
        """Try the new plans while calls are left; return the best so far."""
        for plan in plans:
            if plan not in found and len(found) < calls:
                with np.errstate(all="ignore"):
                    value = aggregate(np.vstack([scene.honest, scene.sent(plan)]))
                    moved = float(np.linalg.norm(value - scene.mu))
                found[plan] = moved if np.isfinite(moved) else np.inf
        return max(found, key=lambda plan: found[plan])

    directions = range(len(scene.directions))
    best(Plan(d, 0.4, 1.0) for d in directions)
    top = best(Plan(1, *values) for values in _TRIES)
    top = best(replace(top, z=z) for z in SIZES)
    top = best(replace(top, noise=noise) for noise in NOISES)
    top = best(replace(top, groups=groups) for groups in SPLITS)
    top = best(replace(top, direction=d) for d in directions)
    for step in (1.3, 1.15):
        top = best(replace(top, z=top.z * factor) for factor in (1 / step, step))
    return top


class _Scene:
    """What all plans are made from: directions, directions of groups, and noise."""

    def __init__(self, honest: Array, count: int, rng: np.random.Generator) -> None:
        self.honest, self.count = honest, count
        self.mu, sd = moments(honest)
        # If honest parties do not differ (there may be one only), a step is as long as μ.
        length = float(np.linalg.norm(sd) or np.linalg.norm(self.mu) or 1.0)
        self.rms = length / np.sqrt(self.mu.size)
        away = self.mu - honest[rng.integers(len(honest))]
        steady = np.random.default_rng(_STEADY)
        drawn = steady.standard_normal((4, self.mu.size))
        self.directions = [_scaled(d, length) for d in (-self.mu, sd, -sd, drawn[0], away)]
        self.own = [_scaled(d, length) for d in drawn[1:]]
        self.noise = steady.standard_normal((count, self.mu.size))

    def sent(self, plan: Plan) -> Array:
        """What the adversaries send, (f, K)."""
        d = self.directions[plan.direction]
        if plan.groups == -2:
            steps = [d, d, -d]
        elif plan.groups == 1:
            steps = [d]
        else:
            steps = [(d + own) / np.sqrt(2) for own in self.own[: plan.groups]]
        shared = np.stack([steps[j % len(steps)] for j in range(self.count)])
        sent = self.mu + plan.z * shared + plan.noise * self.rms * self.noise
        return send(sent, self.honest, self.count)


def _scaled(direction: Array, length: float) -> Array:
    scaled: Array = direction * (length / (np.linalg.norm(direction) or 1.0))
    return scaled
