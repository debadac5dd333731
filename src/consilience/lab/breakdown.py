"""Breakdown curves: how far adversaries move each method, by their number.

Ten honest parties send x_j = y + N(0, 1), in K coordinates, y ~ N(0, 1); beside them f adversaries
use each attack of the suite that needs no training and is not malformed. The error is the root mean
square of the consensus about y, divided by that of the honest mean: 1 is as good as knowing who is
honest. Multi-Krum is told f, where it accepts it; the others are told nothing, and the trimmed mean
cuts a fifth at either end.

Two more scenes: twenty adversaries who send N(0, scale²), against y of size 0.1 and 1; and honest
parties alone, whose noise variances or standard deviations are spread geometrically over a factor
of 50. There the error is divided by that of the mean with the true inverse variances.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from rich.console import Console

from consilience import aggregate
from consilience.arrays import Array
from consilience.errors import ConsilienceError
from consilience.estimators.catalogue import Method
from consilience.estimators.selection import Krum
from consilience.lab.attacks import MALFORMED, NEEDS_TRAINING, SUITE, Attack, Knowledge, make
from consilience.lab.figures import save
from consilience.lab.runner import Cell, Row, Tick, complete
from consilience.lab.tables import markdown, where

Rule = Callable[[Array], Array]

HONEST, SPREAD = 10, 50.0
ATTACKS = tuple(label for label in SUITE if label not in NEEDS_TRAINING | MALFORMED)
# Paul Tol's muted scheme.
METHODS = {
    "pairwise": "#AA4499",
    "mean": "#888888",
    "geometric-median": "#999933",
    "coordinate-median": "#117733",
    "trimmed-mean": "#44AA99",
    "multi-krum": "#88CCEE",
    "ivar-vb": "#332288",
    "icov-vb": "#CC6677",
}


@dataclass(frozen=True)
class Plan:
    """Which cells to run, and what is in them."""

    methods: tuple[str, ...] = tuple(METHODS)
    adversaries: tuple[int, ...] = tuple(range(13))
    attacks: tuple[str, ...] = ATTACKS
    size: int = 10_000
    seeds: int = 3


QUICK = Plan(
    methods=("pairwise", "mean", "coordinate-median"),
    adversaries=(0, 2, 5),
    attacks=tuple(label for label in ATTACKS if label != "adaptive"),
    size=2000,
    seeds=1,
)


def bench(plan: Plan, out: Path, console: Console) -> Path:
    """Run what is not finished, and write breakdown.json, the figure and the page."""
    summary = summarise(complete(cells(plan), out, console))
    out.mkdir(parents=True, exist_ok=True)
    (out / "breakdown.json").write_text(json.dumps(summary, indent=1) + "\n")
    save(_figure(summary["worst"]), out / "figures", "breakdown")
    page = out / "breakdown.md"
    page.write_text(_page(summary))
    return page


def cells(plan: Plan) -> list[Cell]:
    """One cell per method and seed."""
    counts, attacks = "-".join(map(str, plan.adversaries)), str(len(plan.attacks))
    found = []
    for seed in range(plan.seeds):
        for method in plan.methods:
            settings: dict[str, int | float | str] = {
                "method": method,
                "seed": seed,
                "size": plan.size,
                "adversaries": counts,
                "attacks": attacks,
            }
            found.append(Cell("breakdown", settings, partial(_run, plan, method, seed)))
    return found


def _run(plan: Plan, method: str, seed: int, tick: Tick) -> list[Row]:
    records: list[Row] = []
    truth, honest = _parties(seed, plan.size)
    for done, count in enumerate(plan.adversaries):
        rule = _rule(method, count)
        for label in plan.attacks if count else ("none",):
            name, settings = SUITE.get(label, ("zero", {}))
            attack = make(name, Knowledge(aggregate=rule), **settings)
            found = _ratio(rule, truth, honest, attack, count, seed)
            records.append({"scene": "attacked", "f": count, "attack": label, "ratio": found})
        tick(done + 1, len(plan.adversaries))
    for size in (0.1, 1.0):
        truth, honest = _parties(seed, plan.size, size)
        for scale in (3.0, 10.0, 100.0):
            attack, rule = make("gaussian", scale=scale), _rule(method, 2 * HONEST)
            found = _ratio(rule, truth, honest, attack, 2 * HONEST, seed)
            row = f"y ~ {size:g}, 20 of N(0, {scale:g}²)"
            records.append({"scene": "outnumbered", "row": row, "ratio": found})
    for reading, power in (("variances", 0.5), ("standard deviations", 1.0)):
        noise = np.geomspace(1, SPREAD, HONEST) ** power
        truth, honest = _parties(seed, plan.size, noise=noise)
        best = np.average(honest, axis=0, weights=noise**-2)
        found = _ratio(_rule(method, 0), truth, honest, make("zero"), 0, seed, best)
        row = f"{reading} over a factor of {SPREAD:g}"
        records.append({"scene": "spread", "row": row, "ratio": found})
    return records


def _parties(
    seed: int, K: int, size: float = 1.0, noise: Array | float = 1.0
) -> tuple[Array, Array]:
    """The truth y, (K,), and what the honest send, (H, K)."""
    rng = np.random.default_rng(seed)
    truth = size * rng.standard_normal(K)
    errors = np.broadcast_to(noise, HONEST)[:, None] * rng.standard_normal((HONEST, K))
    return truth, (truth + errors).astype(np.float32)


def _rule(method: str, adversaries: int) -> Rule:
    told: str | Method = method
    if method == "multi-krum":
        told = Krum(adversaries=adversaries, selected=None)

    def rule(updates: Array) -> Array:
        value: Array = aggregate(updates, told, seed=0).value
        return value

    return rule


def _ratio(
    rule: Rule,
    truth: Array,
    honest: Array,
    attack: Attack,
    count: int,
    seed: int,
    best: Array | None = None,
) -> float | None:
    """The error of the rule over that of the best one, the honest mean; None if it declines."""
    try:
        sent = attack(honest, count, np.random.default_rng([seed, count]))
        value = rule(np.vstack([honest, sent])).astype(np.float64)
    except ConsilienceError:
        return None
    best = honest.mean(0, dtype=np.float64) if best is None else best
    return float(np.linalg.norm(value - truth) / np.linalg.norm(best - truth))


def summarise(records: Sequence[Row]) -> dict[str, Any]:
    """Means over seeds: the worst attack by method and f, pairwise by attack, and the scenes."""
    worst: dict[str, Any] = {}
    attacked = where(records, scene="attacked")
    for method in dict.fromkeys(record["method"] for record in attacked):
        for count in dict.fromkeys(record["f"] for record in attacked):
            mine = _means(where(attacked, method=method, f=count), "attack")
            if mine:
                label = max(mine, key=lambda attack: mine[attack])
                found = {"attack": label, "ratio": mine[label], "adaptive": mine.get("adaptive")}
                worst.setdefault(method, {})[str(count)] = found
    pairwise = where(attacked, method="pairwise")
    by_attack = {
        label: _means(where(pairwise, attack=label), "f")
        for label in dict.fromkeys(record["attack"] for record in pairwise)
    }
    scenes = {
        scene: {
            method: _means(where(records, scene=scene, method=method), "row") for method in worst
        }
        for scene in ("outnumbered", "spread")
    }
    return {"worst": worst, "pairwise": by_attack, **scenes}


def _means(records: Sequence[Row], key: str) -> dict[str, float]:
    """The mean ratio for each value of the key, where the method did not decline."""
    kept = [record for record in records if record["ratio"] is not None]
    values = dict.fromkeys(record[key] for record in kept)
    found = {value: [r["ratio"] for r in kept if r[key] == value] for value in values}
    return {str(value): float(f"{np.mean(ratios):.4g}") for value, ratios in found.items()}


def _page(summary: dict[str, Any]) -> str:
    worst = summary["worst"]
    counts = list(dict.fromkeys(count for mine in worst.values() for count in mine))
    rows = [
        [method, *(_cell(mine.get(count, {}).get("ratio")) for count in counts)]
        for method, mine in worst.items()
    ]
    named = [
        [count, found["attack"], _cell(found["ratio"]), _cell(found["adaptive"])]
        for count, found in worst.get("pairwise", {}).items()
    ]
    parts = [
        "# Breakdown\n\nError over that of the honest mean, the worst attack, by f:\n",
        markdown(["method", *counts], rows),
        "Pairwise: what is worst, and what the adaptive attack reaches.\n",
        markdown(["f", "attack", "worst", "adaptive"], named),
    ]
    for title, scene in (
        ("Twice as many adversaries as honest parties:\n", summary["outnumbered"]),
        ("Honest parties of differing noise, over the best weighted mean:\n", summary["spread"]),
    ):
        kinds = list(dict.fromkeys(kind for mine in scene.values() for kind in mine))
        lines = [[kind, *(_cell(mine.get(kind)) for mine in scene.values())] for kind in kinds]
        parts += [title, markdown(["", *scene], lines)]
    return "\n".join(parts)


def _cell(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.2f}" if ratio < 100 else f"{ratio:.0e}"


def _figure(worst: dict[str, Any]) -> Figure:
    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    axis = figure.subplots()
    for method, mine in worst.items():
        ratios = [found["ratio"] for found in mine.values()]
        wide = 2.5 if method == "pairwise" else 1.3
        axis.plot(
            [int(count) for count in mine], ratios, label=method, color=METHODS[method],
            linewidth=wide, marker=".",
        )  # fmt: skip
    axis.set(yscale="log", ylim=(0.95, 20), xlabel=f"adversaries, beside {HONEST} honest parties")
    axis.set_ylabel("error under the worst attack\n(1: the mean of the honest)")
    ticks = (1, 1.5, 2, 3, 5, 10, 20)
    axis.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    axis.minorticks_off()
    axis.grid(alpha=0.3)
    figure.legend(loc="outside lower center", ncols=4, frameon=False)
    return figure
