"""The robustness benchmark: run its cells, and write page, heat maps and summary.

The page covers all finished cells in the folder with the same protocol and number of rounds, so a
large plan can be run in parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from rich.console import Console

from consilience.lab.experiments.lineup import NONE, ORACLE
from consilience.lab.experiments.pictures import HONEST
from consilience.lab.experiments.robustness import Plan, cells
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

# A cell of a table covers all seeds of these.
_KEYS = ("method", "attack", "heterogeneity", "adversaries", "momentum")


def bench(plan: Plan, out: Path, console: Console, workers: int = 1) -> Path:
    """Run what is not finished; write page, figures and summary; return the page."""
    complete(cells(plan), out, console, workers)
    found = summary(ends(plan.experiment, plan.rounds, out))
    pictures = figures(found)
    return publish(out, found, pictures, write_page(found, plan, list(pictures)))


def summary(ends: Sequence[Row]) -> list[Row]:
    """Return a row per method, attack, heterogeneity, f and momentum, each a mean over seeds.

    `final` and `best` are accuracies; `below` is the final accuracy less the oracle's with the
    same seeds, in points.
    """
    rows = []
    for settings, mine in grouped(ends, _KEYS):
        distances = [r["distance"] for r in mine if r["distance"] is not None]
        row = {
            **settings,
            "seeds": len(mine),
            "final": round(mean_of(mine, "final"), 4),
            "best": round(mean_of(mine, "best"), 4),
            "below": below_oracle(mine, ends, "heterogeneity", "momentum", "seed"),
            "distance": round(float(np.mean(distances)), 3) if distances else None,
            "milliseconds": round(1000 * mean_of(mine, "seconds"), 2),
            "broken": sum(r["broken"] for r in mine),
            "caught": None if settings["attack"] == NONE else caught(mine),
        }
        rows.append(row)
    return rows


def figures(rows: Sequence[Row]) -> dict[str, Figure]:
    """Return a figure per number of adversaries and momentum: a heat map per method."""
    found = {}
    for count, momentum in _settings(rows):
        mine = _attacked(rows, count, momentum)
        if not mine:
            continue
        attacks, kinds = values(mine, "attack"), values(mine, "heterogeneity")
        panels = {
            method: grid(where(mine, method=method), "below", attack=attacks, heterogeneity=kinds)
            for method in values(mine, "method")
        }
        words = f"accuracy less the oracle's, in points; worker momentum {momentum:g}"
        found[_name(count, momentum)] = heat_maps(panels, attacks, kinds, words)
    return found


def write_page(rows: Sequence[Row], plan: Plan, pictures: Sequence[str]) -> str:
    """Return the Markdown page."""
    parts = [
        f"# Robustness: the {plan.protocol} protocol\n",
        f"MNIST, {HONEST} honest parties, {plan.rounds} rounds. Numbers are means over seeds of "
        "the final test accuracy less the oracle's, in points, unless they say otherwise; the "
        "oracle is the mean of the honest updates. Methods named byzfl are told the true number of "
        "adversaries.\n",
        "## The oracle\n",
        _oracle(where(rows, method=ORACLE)),
    ]
    for count, momentum in _settings(rows):
        mine = _attacked(rows, count, momentum)
        free = where(rows, attack=NONE, adversaries=count, momentum=momentum)
        parts += [f"## {count} adversaries, worker momentum {momentum:g}\n"]
        if mine:
            parts += ["### The worst cell of each method\n", _worst(mine)]
        if free:
            parts += ["### The price without an attack\n", _by_kind(free, "method")]
        if _name(count, momentum) in pictures:
            parts += [f"![heat maps](figures/{_name(count, momentum)}.svg)\n"]
        for method in values(mine, "method"):
            parts += [f"### {method}\n", _by_kind(where(mine, method=method), "attack")]
    return "\n".join(parts)


def _oracle(rows: Sequence[Row]) -> str:
    lines = [
        [row["heterogeneity"], f"{row['momentum']:g}", f"{row['final']:.3f}", str(row["seeds"])]
        for row in rows
    ]
    return markdown(["heterogeneity", "momentum", "final accuracy", "seeds"], lines)


def _worst(rows: Sequence[Row]) -> str:
    """Return a row per method, the best first."""
    lines = []
    for method in values(rows, "method"):
        mine = where(rows, method=method)
        worst = min(mine, key=_level)
        shares = [row["caught"] for row in mine if row["caught"] is not None]
        line = [
            method,
            points(worst["below"]),
            f"{worst['attack']}, {worst['heterogeneity']}",
            f"{worst['final']:.3f}",
            f"{min(row['best'] for row in mine):.3f}",
            points(float(np.mean([_level(row) for row in mine]))),
            f"{np.mean(shares):.2f}" if shares else "",
            str(sum(row["broken"] for row in mine)),
            f"{np.median([row['milliseconds'] for row in mine]):.1f}",
        ]
        lines.append((_level(worst), line))
    header = [
        "method",
        "worst",
        "where",
        "accuracy there",
        "worst of the best over rounds",
        "mean of all cells",
        "adversaries among the least trusted",
        "runs broken",
        "ms a round",
    ]
    lines.sort(key=lambda pair: -pair[0])
    return markdown(header, [line for _, line in lines])


def _by_kind(rows: Sequence[Row], key: str) -> str:
    kinds = values(rows, "heterogeneity")
    lines = []
    for value in values(rows, key):
        found = {r["heterogeneity"]: r["below"] for r in where(rows, **{key: value})}
        lines.append([value, *(points(found.get(kind)) for kind in kinds)])
    return markdown([key, *kinds], lines)


def _attacked(rows: Sequence[Row], adversaries: int, momentum: float) -> list[Row]:
    found = where(rows, adversaries=adversaries, momentum=momentum)
    return [row for row in found if row["attack"] != NONE]


def _settings(rows: Sequence[Row]) -> list[tuple[int, float]]:
    found = {(row["adversaries"], row["momentum"]) for row in rows if row["method"] != ORACLE}
    return sorted(found)


def _level(row: Row) -> float:
    """Return what rows are sorted by: points, or accuracy if the oracle is not finished."""
    below = row["below"]
    return float(below if below is not None else 100 * (row["final"] - 1))


def _name(adversaries: int, momentum: float) -> str:
    return f"robustness-{adversaries}-adversaries-momentum-{momentum:g}"
