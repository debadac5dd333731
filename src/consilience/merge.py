"""``consilience merge``: several versions of a model in, one out, and a word on each of them."""

from __future__ import annotations

import glob
import json
import math
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

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

from consilience.consensus import Consensus
from consilience.errors import ConsilienceError


def expand(words: Sequence[str]) -> list[Path]:
    """Return the paths meant: each word is a path, or a pattern if there is no such file."""
    paths: list[Path] = []
    for word in words:
        if Path(word).exists() or not glob.has_magic(word):
            paths.append(Path(word))
            continue
        found = sorted(glob.glob(word, recursive=True))
        if not found:
            raise ConsilienceError(f"{word}: no file is called like this")
        paths.extend(map(Path, found))
    return paths


def singled_out(consensus: Consensus) -> bool:
    """Tell whether somebody was rejected or stands out."""
    return bool(consensus.reasons)


def as_json(consensus: Consensus, method: str) -> str:
    """Return what scripts may want to know, one object."""
    parties = {
        party: {
            "weight": weight,
            "noise": _number(consensus.noise[party]),
            "group": _group(consensus, party),
            "rejected": party in consensus.rejected,
            "reason": consensus.reasons.get(party),
        }
        for party, weight in consensus.weights.items()
    }
    found: dict[str, Any] = {
        "output": None if consensus.value is None else str(consensus.value),
        "method": method,
        "parties": parties,
        "effective_parties": _number(consensus.diagnostics["effective_parties"]),
        "seconds": consensus.diagnostics["seconds"],
    }
    return json.dumps(found, indent=1, allow_nan=False)


def as_table(consensus: Consensus) -> Table:
    """Return the parties, the heaviest first."""
    table = Table("party", "weight", "noise", "group", "reason")
    for party, weight in sorted(consensus.weights.items(), key=lambda item: -item[1]):
        noise, group = consensus.noise[party], _group(consensus, party)
        out = party in consensus.rejected
        reason = consensus.reasons.get(party, "")
        table.add_row(
            Text(party),  # not markup: a file may be called [red].safetensors
            "–" if out else f"{100 * weight:.1f} %",
            "–" if math.isnan(noise) else f"{noise:.3g}",
            "" if group is None else str(group + 1),
            Text(f"rejected: {reason}" if out else reason),
            style="red" if out else None,
        )
    return table


@contextmanager
def bar(console: Console) -> Iterator[Callable[[str, int, int], None]]:
    """Show a bar on a terminal while the work is done."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as shown:
        task = shown.add_task("", total=None)
        now = ""

        def tell(step: str, done: int, total: int) -> None:
            nonlocal now
            if step != now:
                now = step
                shown.reset(task, description=step, total=total)
            shown.update(task, completed=done, total=total)

        yield tell


@contextmanager
def polite_ending() -> Iterator[None]:
    """Let a request to end (SIGTERM) undo what was begun, as Ctrl-C does."""

    def end(*_: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _group(consensus: Consensus, party: str) -> int | None:
    return next((k for k, group in enumerate(consensus.groups) if party in group), None)


def _number(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
