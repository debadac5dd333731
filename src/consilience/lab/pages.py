"""What the pages of the benchmarks share: rows from cells, and files from rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from consilience.lab.experiments.lineup import ORACLE
from consilience.lab.experiments.pictures import HETEROGENEITY
from consilience.lab.figures import save
from consilience.lab.runner import Row, write_rows
from consilience.lab.tables import where


def publish(out: Path, rows: Sequence[Row], pictures: Mapping[str, Figure], page: str) -> Path:
    """Write figures, summary and page into a folder; return the page."""
    for name, figure in pictures.items():
        save(figure, out / "figures", name)
    write_rows(out / "summary.json", rows)
    file = out / "README.md"
    file.write_text(page)
    return file


def grouped(records: Sequence[Row], keys: Sequence[str]) -> list[tuple[Row, list[Row]]]:
    """Return the records grouped by these keys (they differ in the seed), with the keys' values."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for record in records:
        groups.setdefault(tuple(record[key] for key in keys), []).append(record)
    return [(dict(zip(keys, group, strict=True)), mine) for group, mine in groups.items()]


def below_oracle(mine: Sequence[Row], ends: Sequence[Row], *keys: str) -> float | None:
    """Return the final accuracy less the oracle's for the same keys, in points, a mean over seeds.

    None if the oracle is not finished.
    """
    gaps = [
        100 * (record["final"] - oracle["final"])
        for record in mine
        for oracle in where(ends, method=ORACLE, **{key: record[key] for key in keys})
    ]
    return round(float(np.mean(gaps)), 2) if len(gaps) == len(mine) else None


def caught(mine: Sequence[Row]) -> float | None:
    """Return the share of adversaries among the f least trusted parties. None: all are alike."""
    if any(record["least_trusted"] is None for record in mine):
        return None
    named = [party for record in mine for party in record["least_trusted"]]
    found = [party for party in named if party.startswith("adversary")]
    return round(len(found) / len(named), 3)


def mean_of(records: Iterable[Row], key: str) -> float:
    """Return the mean of a key's values."""
    return float(np.mean([record[key] for record in records]))


def values(rows: Sequence[Row], key: str) -> list[Any]:
    """Return the values of a key, sorted; heterogeneity from the least to the most."""
    known = HETEROGENEITY if key == "heterogeneity" else ()
    order = {name: place for place, name in enumerate(known)}
    return sorted({row[key] for row in rows}, key=lambda name: (order.get(name, len(known)), name))


def grid(rows: Sequence[Row], value: str, **axes: Sequence[Any]) -> NDArray[np.float64]:
    """Return the rows' values as a table of two axes; NaN where there is none."""
    table = np.full([len(names) for names in axes.values()], np.nan)
    for row in rows:
        if row[value] is not None:
            table[tuple(names.index(row[key]) for key, names in axes.items())] = row[value]
    return table


def points(value: float | None) -> str:
    """Return a difference of points as text."""
    return "" if value is None else f"{value:+.1f}"
