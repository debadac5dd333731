"""The backdoor benchmark: run its cells, and write page, heat maps and summary.

The page covers all finished cells in the folder with the same data and number of rounds, so a large
plan can be run in parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from rich.console import Console

from consilience.lab.attacks.backdoors import TRIGGERS
from consilience.lab.experiments.backdoors import STEPS, Plan, cells
from consilience.lab.experiments.lineup import NONE, ORACLE
from consilience.lab.experiments.pictures import HONEST
from consilience.lab.figures import heat_maps
from consilience.lab.pages import (
    below_oracle,
    caught,
    grid,
    grouped,
    mean_of,
    points,
    publish,
    values,
)
from consilience.lab.runner import Row, complete, ends
from consilience.lab.tables import markdown, where

_FIGURE = "backdoors"
# A cell of a table covers all seeds of these.
_KEYS = ("method", "kind", "heterogeneity", "adversaries")


def bench(plan: Plan, out: Path, console: Console, workers: int = 1) -> Path:
    """Run what is not finished; write page, figure and summary; return the page."""
    complete(cells(plan), out, console, workers)
    found = summary(ends(plan.experiment, plan.rounds, out))
    pictures = {_FIGURE: figure(found)}
    return publish(out, found, pictures, write_page(found, plan))


def summary(ends: Sequence[Row]) -> list[Row]:
    """Return a row per method, kind, heterogeneity and f, each a mean over seeds.

    `success` is that at the end, `most` the largest in the last third of the rounds; `final` is the
    accuracy, `below` the accuracy less the oracle's with the same seeds, in points. The oracle has
    a row per kind, too: how often the trigger is taken for the target with no adversary.
    """
    rows = []
    for settings, mine in grouped(ends, _KEYS):
        kinds = list(TRIGGERS) if settings["kind"] == NONE else [settings["kind"]]
        for kind in kinds:
            name = TRIGGERS[kind].name
            row = {
                **settings,
                "kind": kind,
                "seeds": len(mine),
                "success": round(mean_of(mine, name), 4),
                "most": round(mean_of(mine, f"most_{name}"), 4),
                "final": round(mean_of(mine, "final"), 4),
                "below": below_oracle(mine, ends, "heterogeneity", "seed"),
                "milliseconds": round(1000 * mean_of(mine, "seconds"), 2),
                "broken": sum(r["broken"] for r in mine),
                "caught": caught(mine),
            }
            rows.append(row)
    return rows


def figure(rows: Sequence[Row]) -> Figure:
    """Return a heat map per method: kinds and numbers of adversaries by heterogeneity."""
    order = list(TRIGGERS)
    mine = [
        {**row, "case": f"{row['kind']}, {row['adversaries']}", "percent": 100 * row["success"]}
        for row in sorted(_attacked(rows), key=lambda r: (order.index(r["kind"]), r["adversaries"]))
    ]
    cases = list(dict.fromkeys(row["case"] for row in mine))
    columns = values(mine, "heterogeneity")
    panels = {
        method: grid(where(mine, method=method), "percent", case=cases, heterogeneity=columns)
        for method in values(mine, "method")
    }
    words = "success: pictures with the trigger that are classified as the target, in per cent"
    return heat_maps(panels, cases, columns, words, worse=1)


def write_page(rows: Sequence[Row], plan: Plan) -> str:
    """Return the Markdown page."""
    attacked = _attacked(rows)
    parts = [
        f"# Backdoors: {plan.data}\n",
        f"Federated averaging, {HONEST} honest parties, {plan.rounds} rounds of {STEPS} local "
        "steps. Success is the share of test pictures, not of the target class, that are "
        "classified as the target when they carry the trigger. The oracle is the mean of the "
        "honest updates. Numbers are means over seeds.\n",
        "## The oracle\n",
        _oracle(where(rows, method=ORACLE)),
        "## The worst of each method\n",
        _worst(attacked),
        f"![success](figures/{_FIGURE}.svg)\n",
        "## All cells\n",
        "Success at the end / the most of it in the last third of the rounds / accuracy at the end "
        "less the oracle's, in points.\n",
    ]
    for kind in TRIGGERS:
        for count in values(where(attacked, kind=kind), "adversaries"):
            mine = where(attacked, kind=kind, adversaries=count)
            parts += [f"### {kind}, {count} adversar{'y' if count == 1 else 'ies'}\n", _all(mine)]
    return "\n".join(parts)


def _attacked(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if row["method"] != ORACLE]


def _oracle(rows: Sequence[Row]) -> str:
    names = {trigger.name: kind for kind, trigger in TRIGGERS.items()}  # one kind for each trigger
    lines = []
    for heterogeneity in values(rows, "heterogeneity"):
        mine = {r["kind"]: r for r in where(rows, heterogeneity=heterogeneity)}
        shares = [f"{mine[kind]['success']:.3f}" for kind in names.values()]
        any_ = next(iter(mine.values()))
        lines.append([heterogeneity, f"{any_['final']:.3f}", *shares, str(any_["seeds"])])
    successes = [f"success, {name}" for name in names]
    return markdown(["heterogeneity", "final accuracy", *successes, "seeds"], lines)


def _worst(rows: Sequence[Row]) -> str:
    """Return a row per method, the best first."""
    lines = []
    for method in values(rows, "method"):
        mine = where(rows, method=method)
        worst = max(mine, key=lambda row: float(row["success"]))
        shares = [row["caught"] for row in mine if row["caught"] is not None]
        losses = [row["below"] for row in mine if row["below"] is not None]
        line = [
            method,
            f"{worst['success']:.2f}",
            f"{worst['kind']}, {worst['heterogeneity']}, {worst['adversaries']}",
            f"{mean_of(mine, 'success'):.2f}",
            points(min(losses)) if losses else "",
            f"{np.mean(shares):.2f}" if shares else "",
            str(sum(row["broken"] for row in mine)),
            f"{np.median([row['milliseconds'] for row in mine]):.1f}",
        ]
        lines.append((worst["success"], line))
    header = [
        "method",
        "most success",
        "where",
        "mean success",
        "worst accuracy less the oracle's",
        "adversaries among the least trusted",
        "runs broken",
        "ms a round",
    ]
    lines.sort(key=lambda pair: float(pair[0]))
    return markdown(header, [line for _, line in lines])


def _all(rows: Sequence[Row]) -> str:
    kinds = values(rows, "heterogeneity")
    lines = []
    for method in values(rows, "method"):
        found = {row["heterogeneity"]: row for row in where(rows, method=method)}
        lines.append([method, *(_told(found.get(kind)) for kind in kinds)])
    return markdown(["method", *kinds], lines)


def _told(row: Row | None) -> str:
    if row is None:
        return ""
    return f"{row['success']:.2f} / {row['most']:.2f} / {points(row['below'])}"
