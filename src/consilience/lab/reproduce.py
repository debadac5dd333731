"""Reproduce the paper: run its experiments, draw its figures, set its table beside ours."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from rich.console import Console

from consilience.lab.experiments import METHODS, Scale, linear, mnist_sgd, one_round, text_sgd
from consilience.lab.figures import save
from consilience.lab.runner import Cell, Row, complete, load
from consilience.lab.tables import PAPER, last, markdown, spread, where

EXPERIMENTS: dict[str, ModuleType] = {
    "fig1": linear,
    "one-round": one_round,
    "fig2": mnist_sgd,
    "fig3": text_sgd,
}
CHOICES = ("table1", *EXPERIMENTS, "all")
# What Table 1 needs of each experiment.
TABLE = (
    {"experiment": "fig1", "panel": "full"},
    {"experiment": "one-round"},
    {"experiment": "fig3", "attack": "gaussian", "R": 5},
)


def cells(what: str, scale: Scale, seeds: int) -> list[Cell]:
    """Return the cells behind a figure, the table, or everything."""
    found = [cell for module in EXPERIMENTS.values() for cell in module.cells(scale, seeds)]
    if what == "all":
        return found
    if what != "table1":
        return [cell for cell in found if cell.experiment == what]

    def needed(cell: Cell) -> bool:
        mine = {"experiment": cell.experiment, **cell.settings}
        return any(wanted.items() <= mine.items() for wanted in TABLE)

    return [cell for cell in found if needed(cell)]


def reproduce(what: str, scale: Scale, seeds: int, out: Path, console: Console) -> Path:
    """Run what is not finished, write figures, summary and page; return the page."""
    chosen = cells(what, scale, seeds)
    complete(chosen, out, console)
    # The page shows all that is finished at this scale, not only what was asked for now.
    everything = cells("all", scale, seeds)
    records = {
        name: _finished([cell for cell in everything if cell.experiment == name], out)
        for name in EXPERIMENTS
    }
    for name, module in EXPERIMENTS.items():
        if records[name]:
            for title, figure in module.figures(records[name]).items():
                save(figure, out / "figures", title)
    (out / "summary.json").write_text(json.dumps(summary(records), indent=0) + "\n")
    page = out / "README.md"
    page.write_text(write_page(records, scale, seeds))
    return page


def _finished(cells: Sequence[Cell], out: Path) -> list[Row]:
    return [record for cell in cells for record in load(cell, out) or []]


def summary(records: dict[str, list[Row]]) -> list[Row]:
    """Return the final values of every setting, all seeds: the numbers behind page and figures."""
    found = []
    for name, mine in records.items():
        value = "error" if name == "fig1" else "accuracy"
        keys = [key for key in ("panel", "attack", "R", "method") if any(key in r for r in mine)]
        final = [record for record in mine if "iteration" not in record]
        groups = sorted({tuple(record[key] for key in keys) for record in final}, key=str)
        for group in groups:
            settings = dict(zip(keys, group, strict=True))
            values = [round(v, 4) for v in last(where(final, **settings), value)]
            found.append({"experiment": name, **settings, value: values})
    return found


def write_page(records: dict[str, list[Row]], scale: Scale, seeds: int) -> str:
    """Return the Markdown page: Table 1 beside the paper's, and each figure with its end values."""
    parts = [
        "# Reproduction of the paper's experiments\n",
        f"Scale: {scale.name}; seeds: {seeds}. Mean ± standard deviation over seeds.\n",
        "## Table 1\n",
        _table1(records),
    ]
    ends = {
        "fig1": ("Figure 1: linear regression", "panel", "error", ["fig1"]),
        "one-round": (
            "MNIST in one round",
            "R",
            "accuracy",
            ["one-round", "one-round-convergence"],
        ),
        "fig2": ("Figure 2: MNIST by gradient descent", "R", "accuracy", ["fig2"]),
        "fig3": ("Figure 3: Shakespeare", "R", "accuracy", ["fig3", "fig3-random-local"]),
    }
    for name, (title, column, value, pictures) in ends.items():
        if records[name]:
            parts += [f"## {title}\n", *(f"![{p}](figures/{p}.svg)\n" for p in pictures)]
            parts += _ends(records[name], column, value)
    return "\n".join(parts)


def _table1(records: dict[str, list[Row]]) -> str:
    rows = []
    for label in METHODS:
        ours = (
            last(where(records["fig1"], panel="full", method=label), "error"),
            last(where(_final(records["one-round"]), R=5, method=label), "accuracy"),
            last(where(records["fig3"], attack="gaussian", R=5, method=label), "accuracy"),
        )
        row = [label]
        for paper, values in zip(PAPER[label], ours, strict=True):
            row += [str(paper), spread(values)]
        rows.append(row)
    header = ["method"]
    for column in ("synthetic error", "MNIST one round", "Shakespeare"):
        header += [f"{column}, paper", "ours"]
    return markdown(header, rows)


def _ends(records: Sequence[Row], column: str, value: str) -> list[str]:
    tables = []
    for attack in sorted({record.get("attack", "") for record in records}):
        mine = _final([record for record in records if record.get("attack", "") == attack])
        places = sorted({record[column] for record in mine}, key=str if column == "panel" else None)
        by_place = [where(mine, **{column: place}) for place in places]
        rows = [
            [label, *(spread(last(where(these, method=label), value)) for these in by_place)]
            for label in METHODS
        ]
        words = "adversaries" if column == "R" else column
        if attack:
            tables.append(f"Attack: {attack}.\n")
        tables.append(markdown([f"{value} at the end, by {words}", *map(str, places)], rows))
    return tables


def _final(records: Sequence[Row]) -> list[Row]:
    return [record for record in records if "iteration" not in record]
