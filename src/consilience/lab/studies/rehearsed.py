"""Adversaries who rehearse: they run the whole training beforehand, and keep what harms most.

    python -m consilience.lab.studies.rehearsed [--out docs/data/rehearsed.json] [--workers 2]

They know the rule and everybody's data. An adversary that asks the aggregator (`attacks.adaptive`)
sees one round ahead; these see the accuracy at the end. The robustness protocol on MNIST, beside 10
honest parties. A search tries four known plans and 20 random ones, then changes the three worst so
far, twice, three ways each: 42 trainings with one seed (44 against `pairwise`, see below). The
worst three plans are then run with two more seeds. Finished searches are not made again.

Adversary k sends μ + z·d + noise·sd·ε_k, with d as long as sd, between ±sd and −μ. It may wait for
a number of rounds, and attack in some rounds only; in the others it sends μ + noise·sd·ε_k. By
`pairwise`, parties count less whose errors the others do not explain. Those who attack it know
that. So a third of their plans have a mixture of the honest parties' errors in place of noise,
which these explain. In another third every second adversary has the opposite noise of the one
before: then the others of two such pairs explain each of the four.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from multiprocessing.pool import Pool
from pathlib import Path
from typing import Any

import numpy as np

from consilience.arrays import Array
from consilience.lab.attacks import SUITE, register
from consilience.lab.attacks.crafted import moments
from consilience.lab.attacks.registry import Attack, Knowledge, send
from consilience.lab.experiments.lineup import NONE, ORACLE, method_of
from consilience.lab.experiments.robustness import PLANS, run
from consilience.lab.runner import processes, write_rows
from consilience.lab.tables import where

Case = tuple[str, float, int]  # split, worker momentum, number of adversaries
_DIFFERENT = [(split, 0.0, f) for split in ("dirichlet-1", "dirichlet-0.1") for f in (1, 4)]
_MOMENTUM = [(split, 0.9, 4) for split in ("dirichlet-1", "dirichlet-0.1")]
CASES: dict[str, list[Case]] = {
    "pairwise": [("iid", 0.0, 1), ("iid", 0.0, 4), *_DIFFERENT, *_MOMENTUM],
    "geometric-median": _DIFFERENT,
}
NOISE, MIXED, PAIRED = "noise", "mixed", "paired"
RANDOM, KEPT, CHANGES, GENERATIONS, CONFIRMED, SEEDS = 20, 3, 3, 2, 3, 3
_NAME, _STEADY = "rehearsed", 20  # the label of the attack, and the seed of noise that lasts


@dataclass(frozen=True)
class Plan:
    """What the adversaries agree on."""

    z: float  # displacement, in lengths of sd
    against: float  # share of −μ in its direction; the rest is ±sd
    sign: int
    noise: float  # of each one's own, in sd
    steady: bool  # whether that noise is the same in every round
    wait: int  # rounds before the first attack
    every: int  # an attack in one round of so many
    own: str = NOISE  # or MIXED or PAIRED: what each one has instead of noise

    @classmethod
    def drawn(cls, rng: np.random.Generator) -> Plan:
        """Return a random plan, with noise."""
        return cls(
            round(float(np.exp(rng.uniform(np.log(0.3), np.log(12)))), 2),
            round(float(rng.choice([0.0, 0.0, rng.uniform(), 1.0])), 2),
            int(rng.choice([-1, 1])),
            float(rng.choice([0.0, 0.3, 0.5, 1.0, 1.5])),
            bool(rng.uniform() < 2 / 3),
            int(rng.choice([0, 0, 100])),
            int(rng.choice([1, 1, 2, 5])),
        )

    def changed(self, rng: np.random.Generator) -> Plan:
        """Return the plan with another size, and one more difference."""
        z = round(self.z * float(np.exp(rng.normal(0, 0.3))), 2)
        name = str(rng.choice(["against", "sign", "noise", "steady", "wait", "every"]))
        return replace(self, z=z, **{name: getattr(Plan.drawn(rng), name)})


# What is known to harm: one or four that send μ − sd, just below the bar on what lasts; above it;
# the disguise that lasts (`attacks.AIMED`); and against μ.
KNOWN = (
    Plan(z=0.8, against=0.0, sign=-1, noise=0.0, steady=True, wait=0, every=1),
    Plan(z=1.5, against=0.0, sign=-1, noise=0.0, steady=True, wait=0, every=1),
    Plan(z=1.0, against=0.0, sign=-1, noise=1.0, steady=True, wait=0, every=1),
    Plan(z=1.0, against=1.0, sign=-1, noise=0.0, steady=True, wait=0, every=1),
)


def rehearsed(knowledge: Knowledge, **plan: Any) -> Attack:
    """Send what the plan says."""
    how, rounds = Plan(**plan), 0

    def attack(honest: Array, count: int, rng: np.random.Generator) -> Array:
        nonlocal rounds
        rounds += 1
        mu, sd = moments(honest)
        rng = np.random.default_rng(_STEADY) if how.steady else rng
        bad = mu + how.noise * _own(how.own, honest, count, rng)
        if rounds > how.wait and rounds % how.every == 0:
            size = float(np.linalg.norm(sd))
            d = how.sign * (1 - how.against) * _unit(sd) - how.against * _unit(mu)
            bad += how.z * size * _unit(d)
        return send(bad, honest, count)

    return attack


def _own(kind: str, honest: Array, count: int, rng: np.random.Generator) -> Array:
    """Return what each adversary has for itself, about as long as sd; (count, K)."""
    mu, sd = moments(honest)
    if kind == MIXED:
        shares = rng.standard_normal((count, len(honest))) / np.sqrt(len(honest))
        mixed: Array = shares @ (honest - mu)
        return mixed
    noise: Array = sd * rng.standard_normal((count, mu.size))
    if kind == PAIRED:
        noise[1::2] = -noise[: count - 1 : 2]
    return noise


def _unit(vector: Array) -> Array:
    found: Array = vector / (np.linalg.norm(vector) or 1.0)
    return found


def accuracy(method: str, case: Case, plan: Plan | None, seed: int) -> float:
    """Return the final accuracy of a training; without a plan nobody attacks."""
    split, momentum, adversaries = case
    if plan is not None:
        register(rehearsed)
        SUITE[_NAME] = (_NAME, asdict(plan))
    settings = {
        "attack": NONE if plan is None else _NAME,
        "heterogeneity": split,
        "adversaries": adversaries,
        "momentum": momentum,
        "seed": seed,
        "rounds": PLANS["mlp"].rounds,
    }
    return float(run("mlp", method_of(method, adversaries, adversaries), settings)[-1]["final"])


Train = Callable[[Sequence[tuple[Plan, int]]], list[float]]


def search(train: Train, owns: Sequence[str] = (NOISE,)) -> dict[Plan, float]:
    """Return the plans that harm most, and the accuracies with the first seed. The first plans have
    each kind of ``owns`` in turn, and what is known to harm in all of them."""
    rng = np.random.default_rng(0)
    found: dict[Plan, float] = {}

    def worst(plans: Iterable[Plan]) -> list[Plan]:
        new = [plan for plan in dict.fromkeys(plans) if plan not in found]
        found.update(zip(new, train([(plan, 0) for plan in new]), strict=True))
        return sorted(found, key=lambda plan: found[plan])

    drawn = [Plan.drawn(rng) for _ in range(RANDOM)]
    of_own = [replace(plan, own=own) for plan in KNOWN if plan.noise for own in owns[1:]]
    for k, plan in enumerate(drawn):
        own = owns[k % len(owns)]
        drawn[k] = replace(plan, own=own, noise=plan.noise or float(own != NOISE))
    top = worst([*KNOWN, *of_own, *drawn])
    for _ in range(GENERATIONS):
        top = worst(plan.changed(rng) for plan in top[:KEPT] for _ in range(CHANGES))
    return {plan: found[plan] for plan in top[:CONFIRMED]}


def confirmed(train: Train, first: dict[Plan, float], clean: Sequence[float]) -> dict[str, Any]:
    """Return the worst of the plans over all seeds, in points below the oracle."""
    more = train([(plan, seed) for plan in first for seed in range(1, SEEDS)])
    ends = np.column_stack([[*first.values()], np.reshape(more, (len(first), -1))])
    points = 100 * (ends - np.array(clean))
    worst = int(points.mean(1).argmin())
    return {
        "below": round(float(points[worst].mean()), 2),
        "of_seeds": [round(float(each), 2) for each in points[worst]],
        "plan": asdict([*first][worst]),
    }


def main() -> None:
    """Search against every method in every case that the file lacks; print and save after each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("docs/data/rehearsed.json"))
    parser.add_argument("--methods", default=",".join(CASES))
    parser.add_argument("--workers", type=int, default=1)
    how = parser.parse_args()
    rows = json.loads(how.out.read_text()) if how.out.exists() else []
    with processes(how.workers) as pool:
        for method in how.methods.split(","):
            for case in CASES[method]:
                about = dict(zip(("heterogeneity", "momentum", "adversaries"), case, strict=True))
                about["method"] = method
                if where(rows, **about):
                    continue
                clean = pool.starmap(accuracy, [(ORACLE, case, None, s) for s in range(SEEDS)])
                train = partial(_trained, pool, method, case)
                owns = (NOISE, MIXED, PAIRED) if method == "pairwise" else (NOISE,)
                worst = search(train, owns)
                rows.append(about | confirmed(train, worst, clean))
                print(*rows[-1].values(), flush=True)
                write_rows(how.out, rows)


def _trained(pool: Pool, method: str, case: Case, runs: Sequence[tuple[Plan, int]]) -> list[float]:
    full = [(method, case, plan, seed) for plan, seed in runs]
    found: list[float] = pool.starmap(accuracy, full, chunksize=1)
    return found


if __name__ == "__main__":
    main()
