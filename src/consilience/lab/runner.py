"""Cells: the parts of an experiment, each run once and kept.

A cell is named by its settings and returns records, rows of plain numbers and words. Each finished
cell is one JSON file, written whole or not at all. An interrupted run resumes: cells that have a
file are not run again.
"""

from __future__ import annotations

import json
import os
import re
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context, parent_process
from multiprocessing.pool import Pool
from pathlib import Path
from time import perf_counter
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    track,
)
from rich.table import Column

from consilience.errors import ConsilienceError
from consilience.storage.whole import whole
from consilience.text import shown

Row = dict[str, Any]
Tick = Callable[[int, int], None]  # steps done, steps in all

# Increase it whenever the meaning of a cell changes, so that old files are not taken for new ones.
VERSION = 1

_THREADS = tuple(f"{who}_THREADS" for who in ("OMP_NUM", "OPENBLAS_NUM", "MKL_NUM", "CONSILIENCE"))


@dataclass(frozen=True, eq=False)
class Cell:
    """A part of an experiment. ``weight`` is its expected share of the time."""

    experiment: str
    settings: Mapping[str, int | float | str]
    run: Callable[[Tick], list[Row]]
    weight: float = 1.0

    @property
    def name(self) -> str:
        """A file name made of the settings."""
        parts = "_".join(f"{key}-{value}" for key, value in self.settings.items())
        return re.sub(r"[^A-Za-z0-9._=-]+", "-", parts)

    def file(self, folder: Path) -> Path:
        """Where the finished cell is stored."""
        return folder / "cells" / self.experiment / f"{self.name}.json"


def complete(cells: Sequence[Cell], folder: Path, console: Console, workers: int = 1) -> list[Row]:
    """Run the cells that are not finished yet, and return the records of all."""
    waiting = [cell for cell in cells if load(cell, folder) is None]
    if len(waiting) < len(cells):
        console.print(f"{len(cells) - len(waiting)} of {len(cells)} cells are finished already")
    if workers > 1:
        _in_parallel(waiting, folder, console, workers)
    else:
        _in_turn(waiting, folder, console)
    return [record for cell in cells for record in load(cell, folder) or []]


def bars(console: Console) -> Progress:
    """Return progress bars in which a long name is cut, not the numbers beside it."""
    name = Column(ratio=1, no_wrap=True, overflow="ellipsis")
    return Progress(
        TextColumn("{task.description}", table_column=name),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        expand=True,
    )


def _in_turn(waiting: Sequence[Cell], folder: Path, console: Console) -> None:
    with bars(console) as progress:
        total = progress.add_task("cells", total=len(waiting))
        inner = progress.add_task("", total=1, visible=bool(waiting))
        for cell in waiting:
            progress.update(inner, description=f"{cell.experiment} {cell.name}", completed=0)
            store(cell, folder, lambda done, of: progress.update(inner, completed=done, total=of))
            progress.advance(total)


def _in_parallel(waiting: Sequence[Cell], folder: Path, console: Console, workers: int) -> None:
    with processes(workers) as pool:
        done = pool.imap_unordered(partial(store, folder=folder), waiting)
        for _ in track(done, "cells", total=len(waiting), console=console):
            pass


@contextmanager
def processes(workers: int) -> Iterator[Pool]:
    """Give a pool of processes with one thread each. Only the parent handles Ctrl-C: leaving the
    pool ends the workers, and an interrupted cell leaves no file."""
    with _one_thread_each(), get_context("spawn").Pool(workers, _begin) as pool:
        yield pool


def _begin() -> None:
    """Prepare a worker: it leaves Ctrl-C to its parent, and ends with it, even if it is killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    if (parent := parent_process()) is not None:
        parent.join()
        os._exit(1)  # at once: what a cell has not finished leaves no file


@contextmanager
def _one_thread_each() -> Iterator[None]:
    """Have new processes, which share the cores, use one thread each: they read this at start."""
    before = {name: os.environ.get(name) for name in _THREADS}
    os.environ.update(dict.fromkeys(_THREADS, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            del os.environ[name]
            if value is not None:
                os.environ[name] = value


def pack(cells: Sequence[Cell], folder: Path, file: Path) -> None:
    """Write the finished ones of these cells into one file, a line each."""
    found = [cell.file(folder) for cell in cells if load(cell, folder) is not None]
    _write(file, "".join(one.read_text() for one in found))


def unpack(file: Path, cells: Sequence[Cell], folder: Path) -> int:
    """Put those of these cells that such a file has and the folder lacks into the folder.

    Returns how many the file has.
    """
    lines = {}
    for number, line in enumerate(file.read_text().splitlines(), start=1):
        try:
            content = json.loads(line)
            lines[content["experiment"], _key(content["settings"])] = line
        except (ValueError, KeyError, TypeError):
            raise ConsilienceError(
                f"{shown(str(file))}, line {number}: expected a finished cell; give the "
                "cells.jsonl that a run has written"
            ) from None
    there = [cell for cell in cells if (cell.experiment, _key(cell.settings)) in lines]
    for cell in there:
        if load(cell, folder) is None:
            line = lines[cell.experiment, _key(cell.settings)]
            _write(cell.file(folder), line + "\n")
    return len(there)


def _key(settings: Mapping[str, Any]) -> str:
    return json.dumps(dict(settings), sort_keys=True)


def store(cell: Cell, folder: Path, tick: Tick = lambda done, total: None) -> None:
    """Run a cell and store its records."""
    started = perf_counter()
    records = cell.run(tick)
    content = {
        "version": VERSION,
        "experiment": cell.experiment,
        "settings": dict(cell.settings),
        "seconds": round(perf_counter() - started, 2),
        "records": records,
    }
    _write(cell.file(folder), json.dumps(content) + "\n")


def write_rows(file: Path, rows: Sequence[Row]) -> None:
    """Write rows as JSON, a line each, so that a change of one is a change of a line."""
    lines = ",\n".join(json.dumps(row) for row in rows)
    _write(file, f"[\n{lines}\n]\n")


def _write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with whole(file) as out:
        out.write(text.encode())


def load(cell: Cell, folder: Path) -> list[Row] | None:
    """Return the records of a finished cell, each with the cell's settings, or None."""
    try:
        content = json.loads(cell.file(folder).read_text())
        if content["version"] != VERSION or content["settings"] != dict(cell.settings):
            return None
        return [{**content["settings"], **record} for record in content["records"]]
    except (OSError, ValueError, KeyError, TypeError):
        return None  # missing or incomplete: run it again


def ends(experiment: str, rounds: int, folder: Path) -> list[Row]:
    """Return the last record of every finished cell of an experiment with ``rounds`` rounds."""
    found = []
    for file in sorted((folder / "cells" / experiment).glob("*.json")):
        content = json.loads(file.read_text())
        if content["version"] == VERSION and content["settings"]["rounds"] == rounds:
            found.append({**content["settings"], **content["records"][-1]})
    return found
