"""The robustness benchmark: run its cells, and write page, heat maps and summary.

All that is finished in the folder, in the same protocol and number of rounds, goes on the page, so
a large plan can be run in parts.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track

from consilience.lab.experiments.robustness import HONEST, NONE, ORACLE, Plan, cells
from consilience.lab.figures import heat_maps, save
from consilience.lab.runner import VERSION, Cell, Row, complete, load, store
from consilience.lab.tables import markdown, where

# One cell of a table: all seeds of a method, an attack, ...
_KEYS = ("method", "attack", "heterogeneity", "adversaries", "momentum")


def bench(plan: Plan, out: Path, console: Console, workers: int = 1) -> Path:
    """Run what is not finished, write page, figures and summary; return the page."""
    if workers > 1:
        complete_in_parallel(cells(plan), out, console, workers)
    else:
        complete(cells(plan), out, console)
    found = summary(_ends(plan, out))
    pictures = figures(found)
    for name, figure in pictures.items():
        save(figure, out / "figures", name)
    lines = ",\n".join(json.dumps(row) for row in found)
    (out / "summary.json").write_text(f"[\n{lines}\n]\n")
    page = out / "README.md"
    page.write_text(write_page(found, plan, list(pictures)))
    return page


def complete_in_parallel(cells: Sequence[Cell], out: Path, console: Console, workers: int) -> None:
    """Run the cells that are not finished yet, each in one of several processes."""
    waiting = [cell for cell in cells if load(cell, out) is None]
    if len(waiting) < len(cells):
        console.print(f"{len(cells) - len(waiting)} of {len(cells)} cells are finished already")
    # Processes that share the cores must not have a thread per core each. They read this at start.
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[variable] = "1"
    # Ctrl-C is the parent's to hear; leaving the pool ends the workers, and a cell that is cut off
    # leaves no file.
    with get_context("spawn").Pool(workers, signal.signal, (signal.SIGINT, signal.SIG_IGN)) as pool:
        done = pool.imap_unordered(partial(store, folder=out), waiting)
        for _ in track(done, "cells", total=len(waiting), console=console):
            pass


def _ends(plan: Plan, out: Path) -> list[Row]:
    """Return the last record of every finished cell of this protocol and number of rounds."""
    found = []
    for file in sorted((out / "cells" / plan.experiment).glob("*.json")):
        content = json.loads(file.read_text())
        if content["version"] == VERSION and content["settings"]["rounds"] == plan.rounds:
            found.append({**content["settings"], **content["records"][-1]})
    return found


def summary(ends: Sequence[Row]) -> list[Row]:
    """Return a row per method, attack, heterogeneity, f and momentum, each a mean over seeds.

    `final` and `best` are accuracies; `below` is the final accuracy less the oracle's with the
    same seeds, in points.
    """
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for record in ends:
        groups.setdefault(tuple(record[key] for key in _KEYS), []).append(record)
    rows = []
    for group, mine in groups.items():
        settings = dict(zip(_KEYS, group, strict=True))
        distances = [r["distance"] for r in mine if r["distance"] is not None]
        row = {
            **settings,
            "seeds": len(mine),
            "final": round(_mean(mine, "final"), 4),
            "best": round(_mean(mine, "best"), 4),
            "below": _below_oracle(mine, ends),
            "distance": round(float(np.mean(distances)), 3) if distances else None,
            "milliseconds": round(1000 * _mean(mine, "seconds"), 2),
            "broken": sum(r["broken"] for r in mine),
            "caught": _caught(mine),
        }
        rows.append(row)
    return rows


def _below_oracle(mine: Sequence[Row], ends: Sequence[Row]) -> float | None:
    keys = ("heterogeneity", "momentum", "seed")
    gaps = [
        100 * (record["final"] - oracle["final"])
        for record in mine
        for oracle in where(ends, method=ORACLE, **{key: record[key] for key in keys})
    ]
    return round(float(np.mean(gaps)), 2) if len(gaps) == len(mine) else None


def _caught(mine: Sequence[Row]) -> float | None:
    """Return the share of adversaries among as many least trusted parties."""
    if any(r["attack"] == NONE or r["least_trusted"] is None for r in mine):
        return None
    named = [party for record in mine for party in record["least_trusted"]]
    found = [party for party in named if party.startswith("adversary")]
    return round(len(found) / len(named), 3)


def _mean(records: Iterable[Row], key: str) -> float:
    return float(np.mean([record[key] for record in records]))


def figures(rows: Sequence[Row]) -> dict[str, Figure]:
    """Return a figure per number of adversaries and momentum: a heat map per method."""
    found = {}
    for count, momentum in _settings(rows):
        mine = _attacked(rows, count, momentum)
        if not mine:
            continue
        attacks, kinds = _values(mine, "attack"), _values(mine, "heterogeneity")
        panels = {
            method: _grid(where(mine, method=method), attacks, kinds)
            for method in _values(mine, "method")
        }
        words = "accuracy less the oracle's, in points (colour: points below)"
        found[_name(count, momentum)] = heat_maps(panels, attacks, kinds, words)
    return found


def _grid(rows: Sequence[Row], attacks: list[str], kinds: list[str]) -> NDArray[np.float64]:
    grid = np.full((len(attacks), len(kinds)), np.nan)
    for row in rows:
        if row["below"] is not None:
            grid[attacks.index(row["attack"]), kinds.index(row["heterogeneity"])] = row["below"]
    return grid


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
        for method in _values(mine, "method"):
            parts += [f"### {method}\n", _by_kind(where(mine, method=method), "attack")]
    return "\n".join(parts)


def _oracle(rows: Sequence[Row]) -> str:
    lines = [
        [row["heterogeneity"], f"{row['momentum']:g}", f"{row['final']:.3f}", str(row["seeds"])]
        for row in rows
    ]
    return markdown(["heterogeneity", "momentum", "final accuracy", "seeds"], lines)


def _worst(rows: Sequence[Row]) -> str:
    """Return a row per method, the least bad first."""
    lines = []
    for method in _values(rows, "method"):
        mine = where(rows, method=method)
        worst = min(mine, key=_level)
        shares = [row["caught"] for row in mine if row["caught"] is not None]
        line = [
            method,
            _points(worst["below"]),
            f"{worst['attack']}, {worst['heterogeneity']}",
            f"{worst['final']:.3f}",
            f"{min(row['best'] for row in mine):.3f}",
            _points(float(np.mean([_level(row) for row in mine]))),
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
    kinds = _values(rows, "heterogeneity")
    lines = []
    for value in _values(rows, key):
        found = {r["heterogeneity"]: r["below"] for r in where(rows, **{key: value})}
        lines.append([value, *(_points(found.get(kind)) for kind in kinds)])
    return markdown([key, *kinds], lines)


def _attacked(rows: Sequence[Row], adversaries: int, momentum: float) -> list[Row]:
    found = where(rows, adversaries=adversaries, momentum=momentum)
    return [row for row in found if row["attack"] != NONE]


def _settings(rows: Sequence[Row]) -> list[tuple[int, float]]:
    found = {(row["adversaries"], row["momentum"]) for row in rows if row["method"] != ORACLE}
    return sorted(found)


def _values(rows: Sequence[Row], key: str) -> list[str]:
    return sorted({row[key] for row in rows}, key=_order(key))


def _order(key: str) -> Callable[[str], tuple[int, str]]:
    known = ("iid", "dirichlet-1", "dirichlet-0.1", "one-class") if key == "heterogeneity" else ()
    return lambda name: (known.index(name) if name in known else len(known), name)


def _level(row: Row) -> float:
    """Return what rows are compared by: points, or accuracy where the oracle is not finished."""
    below = row["below"]
    return float(below if below is not None else 100 * (row["final"] - 1))


def _points(value: float | None) -> str:
    return "" if value is None else f"{value:+.1f}"


def _name(adversaries: int, momentum: float) -> str:
    return f"robustness-{adversaries}-adversaries-momentum-{momentum:g}"
