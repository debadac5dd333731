"""What the command line prints about an inference."""

from __future__ import annotations

import json
import math
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from consilience.crowd.inference import Inference
from consilience.text import shown

_SHOWN = 10


def as_json(found: Inference) -> str:
    """Return everything as JSON in ASCII; ids become text, and unknown numbers null."""
    rated = dict(zip(found.ratings.tasks, found.ratings.per_task.tolist(), strict=True))
    gave = dict(zip(found.ratings.parties, found.ratings.per_party.tolist(), strict=True))
    content = {
        "tasks": {
            str(task): {
                "truth": truth,
                "low": _known(found.intervals[task][0]),
                "high": _known(found.intervals[task][1]),
                "ratings": rated[task],
            }
            for task, truth in found.truth.items()
        },
        "parties": {
            str(party): {
                "noise": _known(noise),
                "bias": found.bias[party],
                "gain": found.gain[party],
                "ratings": gave[party],
                "reason": found.reasons.get(party),
            }
            for party, noise in found.noise.items()
        },
        "groups": [list(map(str, group)) for group in found.groups],
        "diagnostics": found.diagnostics,
    }
    return json.dumps(content, indent=1)


def show(found: Inference, console: Console, task: str, party: str, *, truths: bool) -> None:
    """Print a summary, and the first truths if they were not written to a file."""
    told = found.diagnostics
    console.print(
        f"{told['ratings']:,} ratings of {len(found.truth):,} tasks by {len(found.noise):,} "
        f"parties; method {told['method']}",
        highlight=False,
    )
    if told["not_rated"]:
        console.print(f"{told['not_rated']:,} rows without a rating were left out")
    if told["repeated"]:
        console.print(f"{told['repeated']:,} rows rated a task again: the mean of each counts")
    if not told.get("converged", True):
        console.print("Not converged: take the numbers with care", style="red")
    if truths:
        rows = [(shown(t), truth, *found.intervals[t]) for t, truth in found.truth.items()]
        _print(console, (task, "truth", "low", "high"), rows, "-o truth.csv writes all")
    # One of each group, the largest group first; then the noisiest parties.
    others = {p for group in found.groups for p in group[1:]}
    outliers = [group[0] for group in found.groups]
    outliers += sorted(
        (p for p in found.reasons if p not in others and p not in outliers),
        key=lambda p: (-_level(found, p), str(p)),
    )
    if outliers:
        noted = [(shown(p), found.noise[p], found.bias[p], found.reasons[p]) for p in outliers]
        _print(
            console,
            (party, "noise", "bias", "reason"),
            noted,
            "--parties-out parties.csv writes all",
        )
    else:
        console.print("No party stands out")


def _level(found: Inference, party: Any) -> float:
    noise = found.noise[party]
    return noise if math.isfinite(noise) else 0.0


def _print(console: Console, header: tuple[str, ...], rows: list[Any], rest: str) -> None:
    table = Table()
    for name in header:
        table.add_column(Text(shown(name)))
    for row in rows[:_SHOWN]:
        # As text, not as markup: an id may hold brackets.
        table.add_row(*(Text(_cell(one)) for one in row))
    console.print(table)
    if len(rows) > _SHOWN:
        console.print(f"and {len(rows) - _SHOWN:,} more: {rest}", highlight=False)


def _cell(one: str | float) -> str:
    return one if isinstance(one, str) else f"{one:.4g}"


def _known(number: float) -> float | None:
    return number if math.isfinite(number) else None
