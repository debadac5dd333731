"""``consilience merge``: several versions of a model in, one out, and a verdict on each."""

from __future__ import annotations

import glob
import json
import math
import os
import signal
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.table import Table
from rich.text import Text

from consilience.cli.outputs import exists, written
from consilience.consensus import Consensus
from consilience.engines.files.aggregate import aggregate_files
from consilience.errors import ConsilienceError
from consilience.memory import Memory
from consilience.record import Record
from consilience.report.page import write as write_page
from consilience.require import Require
from consilience.text import measured, shown
from consilience.updates.adapters import STACK

_REASON = 400  # characters
_OF_VALUE = ("rank", "cut", "copied", "notes")  # diagnostics about the output, if present


@dataclass(frozen=True)
class Merge:
    """One merge, as asked for on the command line."""

    models: Sequence[str]
    output: Path | None
    base: Path | None
    method: str
    memory: Path | None
    exact: bool
    record: Path | None
    report: Path | None
    dry_run: bool
    force: bool
    require: Require
    tensors: Sequence[str] | None
    evidence: Sequence[str] | None
    rank: int | None
    exact_stack: bool
    into: Path | None
    with_config: Path | None

    def run(self, console: Console) -> tuple[Consensus, list[str], list[str]]:
        """Merge, then save what was learnt; return also what was written, and what could not be.

        If it raises, no model was written.
        """
        self._check()
        memory = None
        if self.memory is not None:
            memory = Memory.load(self.memory) if self.memory.exists() else Memory()
        with _ending() as ended, _bar(console, ended) as progress:
            consensus = aggregate_files(
                _expand(self.models),
                None if self.dry_run else self.output,
                self.method,
                memory,
                self.base,
                exact=self.exact,
                progress=progress,
                require=self.require,
                tensors=self.tensors,
                evidence=self.evidence,
                rank=STACK if self.exact_stack else self.rank,
                into=self.into,
                with_config=self.with_config,
            )
        return consensus, *self._keep(consensus, memory)

    def _check(self) -> None:
        """Check before the work what might fail after it."""
        if self.output is None and not self.dry_run:
            raise ConsilienceError("where to? Give -o OUT.safetensors, or --dry-run")
        if self.output is not None and self.output.is_file() and not (self.force or self.dry_run):
            raise exists(self.output)
        if self.rank is not None and self.exact_stack:
            raise ConsilienceError("--rank or --exact-stack: the exact stack has its own rank")
        if self.report is not None and self.report.suffix != ".html":
            raise ConsilienceError(f"{self.report}: expected the name of an .html file")
        if self.record is not None and self.record.exists():
            Record.read(self.record)
        kept = [path for path in (self.memory, self.record, self.report) if path is not None]
        for path in kept:
            if not path.parent.is_dir():
                raise ConsilienceError(f"{path}: there is no folder {path.parent}")
        written = kept if self.output is None else [self.output, *kept]
        for name, count in Counter(map(os.path.realpath, written)).items():
            if count > 1:
                raise ConsilienceError(
                    f"{name}: named twice; output, memory, record and report need a file each"
                )

    def _keep(self, consensus: Consensus, memory: Memory | None) -> tuple[list[str], list[str]]:
        """Save memory, record and report, each on its own; return what was written and what failed.
        A dry run writes only the report: nothing happened that should be remembered."""
        steps: list[Callable[[], str]] = []
        if memory is not None and not self.dry_run:
            steps.append(lambda: self._save_memory(memory))
        if self.record is not None and not self.dry_run:
            steps.append(lambda: self._add_to_record(consensus))
        if self.report is not None:
            steps.append(lambda: self._write_report(consensus))
        said = ["a dry run: no model was written"] if self.dry_run else [written(self.output)]
        lost = []
        for step in steps:
            try:
                said.append(step())
            except (OSError, ConsilienceError) as error:
                lost.append(str(error))
        return said, lost

    def _save_memory(self, memory: Memory) -> str:
        memory.save(str(self.memory))
        return f"{written(self.memory)}, a memory of {memory.rounds} rounds"

    def _add_to_record(self, consensus: Consensus) -> str:
        """Add the merge as the next round; a record continues after its last run."""
        number = Record(str(self.record)).append(consensus)
        before = f", after {number - 1} that were there" if number > 1 else ""
        return f"{written(self.record)}, round {number}{before}"

    def _write_report(self, consensus: Consensus) -> str:
        """Write the page of the whole record, or without one of this merge alone."""
        assert self.report is not None
        if self.record is not None and not self.dry_run:
            write_page(self.record, self.report)
            return written(self.report)
        with tempfile.TemporaryDirectory() as folder:
            alone = Path(folder, self.output.name if self.output is not None else "dry run")
            Record(alone).append(consensus)
            write_page(alone, self.report)
        return written(self.report)


def to_json(consensus: Consensus) -> str:
    """Return what a script may need, as one JSON object."""
    reasons = consensus.reasons
    parties = {
        party: {
            "weight": weight,
            "noise": _number(consensus.noise[party]),
            "noise_interval": consensus.known_intervals.get(party),
            "group": _group(consensus, party),
            "rejected": party in consensus.rejected,
            "reason": shown(reasons[party], _REASON) if party in reasons else None,
        }
        for party, weight in consensus.weights.items()
    }
    found: dict[str, Any] = {
        "output": None if consensus.value is None else str(consensus.value),
        "method": consensus.diagnostics["method"],
        "parties": parties,
        "center_weight": consensus.center_weight,
        "caveats": list(consensus.caveats),
        **{key: consensus.diagnostics[key] for key in _OF_VALUE if key in consensus.diagnostics},
        "effective_parties": _number(consensus.diagnostics["effective_parties"]),
        "seconds": consensus.diagnostics["seconds"],
    }
    return json.dumps(found, indent=1, allow_nan=False)


def to_table(consensus: Consensus) -> Table:
    """Return the parties, the heaviest first."""
    # Terminals are narrow: no lines between columns, and no empty columns.
    grouped = ["group"] if consensus.groups else []
    columns = ("party", "weight", "noise", *grouped, "reason")
    table = Table(*columns, box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    reasons = consensus.reasons
    for party, weight in sorted(consensus.weights.items(), key=lambda item: -item[1]):
        noise, group = consensus.noise[party], _group(consensus, party)
        rejected, reason = party in consensus.rejected, shown(reasons.get(party, ""), _REASON)
        table.add_row(
            Text(shown(party), overflow="fold"),  # as text: a file may be called [red].safetensors
            "" if rejected else f"{100 * weight:.1f} %",
            "" if math.isnan(noise) else measured(noise, consensus.known_intervals.get(party)),
            *("" if group is None else str(group) for _ in grouped),
            Text(f"rejected: {reason}" if rejected else reason, overflow="fold"),
            style="red" if rejected else None,
        )
    if consensus.center_weight:
        table.add_section()
        table.add_row("the centre", f"{100 * consensus.center_weight:.1f} %", style="italic")
    return table


def of_value(consensus: Consensus) -> list[str]:
    """Return further lines about the output."""
    found, lines = consensus.diagnostics, []
    if "rank" in found:
        cut = f"{100 * found['cut']:.2g} % of the squared update is cut off"
        lines.append(f"rank {found['rank']}: {cut if found['cut'] else 'the exact sum'}")
    if "copied" in found:
        lines.append(f"copied: {', '.join(found['copied'])}")
    return [*lines, *found.get("notes", ())]


def _expand(words: Sequence[str]) -> list[Path]:
    """Return the paths: each word is a path, or a pattern if there is no such file."""
    paths: list[Path] = []
    for word in words:
        if os.path.lexists(word):  # even a dangling link
            paths.append(Path(word))
            continue
        found = sorted(glob.glob(word, recursive=True))
        if not found:
            raise ConsilienceError(f"{shown(word)}: no file is called like this")
        paths.extend(map(Path, found))
    return paths


@contextmanager
def _bar(console: Console, ended: Event) -> Iterator[Callable[[str, int, int], None]]:
    """Show a progress bar on a terminal; it may be updated from any thread."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=None)
        now = ""

        def tell(step: str, done: int, total: int) -> None:
            nonlocal now
            if ended.is_set():
                raise KeyboardInterrupt
            if step != now:
                now = step
                bar.reset(task, description=step, total=total)
            bar.update(task, completed=done)

        yield tell


@contextmanager
def _ending() -> Iterator[Event]:
    """Have Ctrl-C and SIGTERM undo what was begun; working threads check the event."""
    ended = Event()

    def end(*_: object) -> None:
        if not ended.is_set():  # only once: a second signal must not disturb the cleaning up
            ended.set()
            raise KeyboardInterrupt

    before = {number: signal.signal(number, end) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield ended
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _group(consensus: Consensus, party: str) -> int | None:
    """Return the number of the group a party moves with, from one on."""
    return next((k for k, group in enumerate(consensus.groups, 1) if party in group), None)


def _number(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
