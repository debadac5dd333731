"""Reproduces the paper: runs its experiments, draws its figures, sets its table beside ours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from rich.console import Console

from consilience.lab.experiments import (
    METHODS,
    Scale,
    linear,
    mnist_sgd,
    one_round,
    random_local,
    text_sgd,
)
from consilience.lab.figures import save
from consilience.lab.runner import Cell, Row, complete, load, pack, unpack
from consilience.lab.tables import PAPER, BySeed, best, compared, last, markdown, spread, where
from consilience.text import shown

EXPERIMENTS: dict[str, ModuleType] = {
    "fig1": linear,
    "one-round": one_round,
    "fig2": mnist_sgd,
    "fig3": text_sgd,
    "random-local": random_local,
}
CHOICES = ("table1", *EXPERIMENTS, "all", "page")
# The cells that Table 1 needs.
TABLE = (
    {"experiment": "fig1", "panel": "full"},
    {"experiment": "one-round"},
    {"experiment": "fig3", "R": 5},
)
REFERENCE = "Geometric median"  # the best of the paper's baselines: others are compared with it
MNIST_TEST = 10_000
TEXT_TEST = text_sgd.TEST_WINDOWS * text_sgd.TEST_LENGTH


@dataclass(frozen=True)
class Ends:
    """A table of final values: which experiment, which columns, and what is better."""

    experiment: str
    column: str
    places: Sequence[Any]
    value: str = "accuracy"
    size: int | None = None  # of the test set; None: the value is an error, lower is better
    settings: tuple[tuple[str, Any], ...] = ()  # that all its cells have


SECTIONS: dict[str, tuple[str, Sequence[str], Sequence[Ends]]] = {
    "fig1": (
        "Figure 1: linear regression",
        ["fig1"],
        [
            Ends("fig1", "panel", list(linear.PANELS), value)
            for value in ("prediction error", "distance")
        ],
    ),
    "one-round": (
        "MNIST in one round",
        ["one-round", "one-round-convergence"],
        [Ends("one-round", "R", (0, 5, 10), size=MNIST_TEST)],
    ),
    "fig2": (
        "Figure 2: MNIST by gradient descent",
        ["fig2"],
        [Ends("fig2", "R", mnist_sgd.ADVERSARIES, size=MNIST_TEST)],
    ),
    "fig3": (
        "Figure 3: Shakespeare",
        ["fig3"],
        [Ends("fig3", "R", text_sgd.ADVERSARIES, size=TEXT_TEST)],
    ),
    "random-local": (
        "Random local updates",
        ["random-local"],
        [
            Ends(
                "random-local",
                "reading",
                list(random_local.READINGS),
                size=TEXT_TEST,
                settings=(("R", count),),
            )
            for count in random_local.ADVERSARIES
        ],
    ),
}


def cells(what: str, scale: Scale, seeds: int | None = None) -> list[Cell]:
    """Return the cells behind a figure, the table, or everything; "page" needs none."""
    found = [
        cell
        for name, module in EXPERIMENTS.items()
        for cell in module.cells(scale, seeds or scale.seeds[name])
    ]
    if what == "all":
        return found
    if what != "table1":
        return [cell for cell in found if cell.experiment == what]

    def needed(cell: Cell) -> bool:
        mine = {"experiment": cell.experiment, **cell.settings}
        return any(wanted.items() <= mine.items() for wanted in TABLE)

    return [cell for cell in found if needed(cell)]


def reproduce(
    what: str,
    scale: Scale,
    seeds: int | None,
    out: Path,
    console: Console,
    finished: Path | None = None,
    workers: int = 1,
) -> Path:
    """Run what is not finished; write figures, cells and page; return the page's path.

    ``finished`` is the cells.jsonl of another run, whose cells are not run again.
    """
    everything = cells("all", scale, seeds)
    if finished is not None:
        known = unpack(finished, everything, out)
        console.print(f"{known} of {len(everything)} cells are in {shown(str(finished))}")
    complete(cells(what, scale, seeds), out, console, workers)
    # The page shows all that is finished at this scale, not only what was asked for now.
    records = {
        name: _finished([cell for cell in everything if cell.experiment == name], out)
        for name in EXPERIMENTS
    }
    for name, module in EXPERIMENTS.items():
        if records[name]:
            for title, figure in module.figures(records[name]).items():
                save(figure, out / "figures", title)
    pack(everything, out, out / "cells.jsonl")
    page = out / "README.md"
    page.write_text(write_page(records, scale))
    return page


def _finished(cells: Sequence[Cell], out: Path) -> list[Row]:
    return [record for cell in cells for record in load(cell, out) or []]


def write_page(records: Mapping[str, Sequence[Row]], scale: Scale) -> str:
    """Return the page in Markdown: Table 1 beside the paper's, figures with their final values."""
    parts = [
        "# Reproduction of the paper's experiments\n",
        f"Scale: {scale.name}. In Table 1, mean ± standard error over seeds; below, the mean, and "
        f"in brackets the paired difference from the {REFERENCE.lower()} ± its standard error. "
        "Bold: the best, and what ties with it. (=): a tie, within the 95 % interval or the test "
        "set's own error.\n",
        "## Table 1\n",
        _table1(records),
    ]
    for name, (title, pictures, tables) in SECTIONS.items():
        if records[name]:
            parts += [f"## {title}\n", *(f"![{p}](figures/{p}.svg)\n" for p in pictures)]
            parts += [_ends(records[name], table) for table in tables]
    return "\n".join(parts)


def _table1(records: Mapping[str, Sequence[Row]]) -> str:
    synthetic = where(records["fig1"], panel="full")
    columns = {
        "synthetic prediction error": (0, _values(synthetic, "prediction error"), None),
        "distance ‖ŵ − w‖": (None, _values(synthetic, "distance"), None),
        "MNIST one round": (1, _values(where(records["one-round"], R=5)), MNIST_TEST),
        "Shakespeare": (2, _values(where(records["fig3"], R=5)), TEXT_TEST),
    }
    header, rows = ["method"], [[label] for label in METHODS]
    for title, (place, ours, size) in columns.items():
        header += [title] if place is None else [f"{title}, paper", "ours"]
        winners = best(ours, size is None, size)
        for row in rows:
            label = row[0]
            if place is not None:
                row.append(str(PAPER[label][place]) if label in PAPER else "–")
            row.append(_bold(spread(ours[label].values()), label in winners))
    done = {label for _, ours, _ in columns.values() for label in METHODS if ours[label]}
    return markdown(header, [row for row in rows if row[0] in done])


def _ends(records: Sequence[Row], table: Ends) -> str:
    mine = where(records, **dict(table.settings))
    columns = [_values(where(mine, **{table.column: p}), table.value) for p in table.places]
    rows = []
    for label in METHODS:
        row = [label]
        for column in columns:
            text = compared(column[label], column[REFERENCE], table.size)
            row.append(_bold(text, label in best(column, table.size is None, table.size)))
        if any(row[1:]):
            rows.append(row)
    words = {"R": "adversaries"}
    asides = "".join(f", {value} {words.get(key, key)}" for key, value in table.settings)
    head = f"{table.value} at the end{asides}, by {words.get(table.column, table.column)}"
    return markdown([head, *map(str, table.places)], rows)


def _values(records: Sequence[Row], value: str = "accuracy") -> dict[str, BySeed]:
    final = [record for record in records if "iteration" not in record]
    return {label: last(where(final, method=label), value) for label in METHODS}


def _bold(text: str, strong: bool) -> str:
    if not text or not strong:
        return text
    mean, _, rest = text.partition(" ")
    return f"**{mean}** {rest}".rstrip()
