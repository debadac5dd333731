"""Tables of ratings for `infer`: csv files with odd cells, damaged bytes and hostile names.

A fault in a table is the caller's to mend: `infer` may refuse it, by the file's name. What it must
not do is crash, hang, or make of it something that is no answer.
"""

from __future__ import annotations

import csv
import io
import math
from pathlib import Path
from typing import Any

import numpy as np
from numpy.random import Generator

import consilience as cs
from fuzz.damage import NASTY, damaged
from fuzz.oracle import BrokenPromiseError, check_reasons, check_text, expect, refused

_METHODS = ("pairwise", "pairwise", "affine", "ivar", "median", "mean")
_CELLS = [
    *(
        "nan",
        "inf",
        "-inf",
        "1e400",
        "1e308",
        "-1e308",
        "1e-320",
        "0x10",
        "1_000",
        "١٢",
        "1,5",
        "--1",
    ),
    *("NA", "", " ", "null", '"', "'", "\x00", "\x1b[2J", "True", "9" * 400, "9" * 200_000, "1e80"),
]


def case(random: Generator, folder: Path) -> None:
    """Infer the truth from a table, sound or not."""
    names = _names(random)
    rows = _rows(random)
    method = str(random.choice(_METHODS))
    way = random.random()
    path = folder / ("ratings.tsv" if random.random() < 0.1 else "ratings.csv")
    if way < 0.25:
        _lie(random, rows)
    data = _written(rows, names, "\t" if path.suffix == ".tsv" else ",")
    path.write_bytes(damaged(random, data, data[::-1]) if 0.25 <= way < 0.75 else data)
    options: dict[str, Any] = dict(zip(("task", "party", "value"), names, strict=True))
    options["method"] = method
    if way >= 0.75:  # nothing is wrong with it
        _check(cs.infer(path, **options), rows, folder, names)
    elif not _refused(path, options):
        _check(cs.infer(path, **options), None, folder, names)


def _refused(path: Path, options: dict[str, Any]) -> bool:
    try:
        return refused(lambda: cs.infer(path, **options), cs.TableError, path)
    except BrokenPromiseError as broken:
        if "rates task" in str(broken):  # named by party and task instead
            return True
        raise


def _names(random: Generator) -> tuple[str, ...]:
    """Return the names of the three columns: now and then such as stand in the answers too."""
    if random.random() < 0.8:
        return ("item", "worker", "score")
    odd = ["truth", "noise", "low", "ratings", "reason", "group", "\x1b[2J", "a,b", 'a"b', " "]
    first, second = random.choice(odd, 2, replace=False)
    return (str(first), str(second), "score")


def _rows(random: Generator) -> list[list[str]]:
    tasks, parties = int(random.integers(1, 15)), int(random.integers(1, 12))
    share = float(random.choice([1.0, 0.5, 0.2]))
    if random.random() < 0.02:
        tasks, parties, share = 40, 400, 0.03
    scale = float(random.choice([1.0, 1e-6, 1e6, 1e30, 1e-30]))
    truth = random.normal(5, 2, tasks)
    liars = int(random.integers(3))
    copied = random.normal(5, 2, tasks)
    rows = []
    for j in range(parties):
        for i in np.flatnonzero(random.random(tasks) < share):
            value = truth[i] + random.normal()
            if j < liars:
                value = copied[i] if liars > 1 else random.uniform(-1e6, 1e6)
            rows.append([f"t{i}", f"w{j}", repr(float(scale * value))])
    rows.append(["t0", "w0", repr(float(scale * 5.0))])
    return rows


def _lie(random: Generator, rows: list[list[str]]) -> None:
    """Put a cell into the table that does not belong there."""
    for _ in range(int(random.integers(1, 4))):
        row = rows[int(random.integers(len(rows)))]
        if random.random() < 0.6:
            row[2] = str(_CELLS[int(random.integers(len(_CELLS)))])
        else:
            other = [*NASTY, "x" * 100_000, "-2+3", "@a", "+1", "\r", "#"]
            row[int(random.integers(2))] = other[int(random.integers(len(other)))]
        if random.random() < 0.1:
            row.append("one more")


def _written(rows: list[list[str]], names: tuple[str, ...], delimiter: str) -> bytes:
    text = io.StringIO()
    writer = csv.writer(text, delimiter=delimiter)
    writer.writerow(names)
    writer.writerows(rows)
    return text.getvalue().encode("utf-8", "surrogatepass")


def _check(
    found: cs.Inference, rows: list[list[str]] | None, folder: Path, names: tuple[str, ...]
) -> None:
    truths = np.array(list(found.truth.values()))
    expect(bool(truths.size and np.isfinite(truths).all()), "truths", truths)
    ratings = found.ratings.value
    reach = float(np.ptp(ratings)) + 1e-9 * float(np.abs(ratings).max())
    low, high = ratings.min() - 2 * reach, ratings.max() + 2 * reach
    expect(bool(((truths >= low) & (truths <= high)).all()), "a truth far from any rating", truths)
    for task, (start, stop) in found.intervals.items():
        unknown = math.isnan(start) and math.isnan(stop)
        expect(unknown or start <= found.truth[task] <= stop, "an interval", start, stop)
    for values in (found.noise, found.bias, found.gain):
        numbers = np.array(list(values.values()))
        expect(not np.isinf(numbers).any(), "of parties:", numbers)
    noise = np.array(list(found.noise.values()))
    expect(bool((np.isnan(noise) | (noise >= 0)).all()), "noise", noise)
    check_reasons(found.reasons.values())
    if rows is not None:
        _check_sound(found, rows)
    _check_saved(found, folder, names)


def _check_sound(found: cs.Inference, rows: list[list[str]]) -> None:
    expect(set(found.truth) == {row[0] for row in rows}, "tasks", str(list(found.truth))[:200])
    expect(set(found.noise) == {row[1] for row in rows}, "parties", str(list(found.noise))[:200])
    if found.diagnostics["method"] not in ("mean", "median"):
        return
    by_pair: dict[tuple[str, str], list[float]] = {}
    for task, party, value in rows:
        by_pair.setdefault((task, party), []).append(float(value))
    by_task: dict[str, list[float]] = {}
    for (task, _), values in by_pair.items():
        by_task.setdefault(task, []).append(float(np.mean(values)))
    combine = np.mean if found.diagnostics["method"] == "mean" else np.median
    for task, values in by_task.items():
        slack = 1e-9 * max(abs(float(row[2])) for row in rows)
        expected = float(combine(values))
        expect(abs(found.truth[task] - expected) <= slack, task, "is", found.truth[task], expected)


def _check_saved(found: cs.Inference, folder: Path, names: tuple[str, ...]) -> None:
    """What is saved has a row for each task and party, under their ids; or it is refused."""
    for path, save, name, ids in (
        (folder / "truth.csv", found.save, names[0], found.truth),
        (folder / "parties.csv", found.save_parties, names[1], found.noise),
    ):
        try:
            save(path, name)
        except cs.ConsilienceError as error:
            check_text(str(error), "an error")
            expect(not path.exists(), path.name, "was refused and is there")
            continue
        with open(path, encoding="utf-8", newline="") as file:
            header, *rows = list(csv.reader(file))
        expect(len(set(header)) == len(header), "columns", header)
        saved = [row[header.index(name)].lstrip("'\t ") for row in rows]
        expected = [str(one).lstrip("'\t ") for one in ids]
        expect(saved == expected, path.name, "has the ids", str(saved)[:99], str(expected)[:99])
