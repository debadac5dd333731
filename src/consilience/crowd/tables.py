"""Tables in and out: csv by the standard library, parquet by pyarrow, data frames as they come.

What is wrong with a table is said by line (of a file) or row (of a data frame; the first is 0).
"""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np

from consilience.errors import TableError
from consilience.evidence import Vector
from consilience.whole import whole

DELIMITERS = {".csv": ",", ".tsv": "\t"}
PARQUET = (".parquet", ".pq")
_NOT_RATED = frozenset({"", "na", "n/a", "nan", "null", "none"})


@dataclass(frozen=True, eq=False)
class Columns:
    """The rated rows of a table, by column."""

    tasks: Sequence[Any]
    parties: Sequence[Any]
    values: Vector
    missing: int  # rows without a rating


def read(table: Any, task: str, party: str, value: str) -> Columns:
    """Return the three columns of a table: a path, a data frame or a mapping of columns."""
    names = (task, party, value)
    if len(set(names)) < 3:
        raise TableError(f"expected three different columns, found {', '.join(map(repr, names))}")
    if isinstance(table, str | os.PathLike):
        source = str(table)
        columns, places = _from_file(Path(table), names)
        place = "line" if places else "row"
    else:
        source, place, places = "the table", "row", None
        columns = _from_memory(table, names)

    def where(row: int) -> str:
        return f"{source}, {place} {places[row] if places else row}"

    lengths = {name: len(column) for name, column in zip(names, columns, strict=True)}
    if len(set(lengths.values())) > 1:
        raise TableError(f"{source}: expected columns of one length, found {lengths}")
    values = _numbers(columns[2], value, where)
    rated = ~np.isnan(values)
    if not rated.any():
        raise TableError(f"{source}: no ratings in column {value!r} ({values.size} rows)")
    ids = []
    for name, column in zip(names[:2], columns[:2], strict=True):
        if any(map(_missing, set(column))):
            row = next((r for r, one in enumerate(column) if rated[r] and _missing(one)), None)
            if row is not None:
                raise TableError(f"{where(row)}: a rating without an id in column {name!r}")
        ids.append(column if rated.all() else list(compress(column, rated.tolist())))
    return Columns(ids[0], ids[1], values[rated], int((~rated).sum()))


def _from_file(path: Path, names: tuple[str, ...]) -> tuple[list[Sequence[Any]], list[int] | None]:
    kind = path.suffix.lower()
    if kind not in DELIMITERS and kind not in PARQUET:
        raise TableError(f"{path}: expected a .csv, .tsv or .parquet file")
    if not path.is_file():
        raise TableError(f"{path}: {'not a file' if path.exists() else 'no such file'}")
    if kind in PARQUET:
        return _read_parquet(path, names), None
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            return _read_csv(path, csv.reader(file, delimiter=DELIMITERS[kind], strict=True), names)
    except UnicodeDecodeError as error:
        raise TableError(f"{path}: expected text in UTF-8 ({error.reason})") from None
    except OSError as error:
        raise TableError(f"{path}: cannot be read ({error.strerror})") from None


def _read_csv(
    path: Path, rows: Any, names: tuple[str, ...]
) -> tuple[list[Sequence[Any]], list[int]]:
    try:
        header = next(rows, None)
        if header is None:
            raise TableError(f"{path}: empty, expected a line with the names of the columns")
        at = _places(str(path), header, names)
        columns: list[list[Any]] = [[], [], []]
        lines: list[int] = []
        width = len(header)
        for row in rows:
            if len(row) != width:
                if not row:
                    continue
                raise TableError(
                    f"{path}, line {rows.line_num}: expected {width} columns, found {len(row)}"
                )
            for column, place in zip(columns, at, strict=True):
                column.append(row[place])
            lines.append(rows.line_num)
    except csv.Error as error:
        raise TableError(f"{path}, line {rows.line_num}: {error}") from None
    return [*columns], lines


def _read_parquet(path: Path, names: tuple[str, ...]) -> list[Sequence[Any]]:
    _, parquet = _pyarrow()
    try:
        with parquet.ParquetFile(path) as file:
            _places(str(path), file.schema_arrow.names, names)
            table = file.read(columns=list(names))
    except TableError:
        raise
    except Exception as error:  # damage shows in too many ways to list
        raise TableError(f"{path}: not a readable parquet file ({error})") from error
    return [table[name].to_pylist() for name in names]


def _from_memory(table: Any, names: tuple[str, ...]) -> list[Sequence[Any]]:
    # Mappings have keys; data frames of pandas and polars columns; pyarrow's column_names.
    present = next(
        (getattr(table, name) for name in ("column_names", "columns") if hasattr(table, name)),
        table if isinstance(table, Mapping) else None,
    )
    if present is None:
        raise TableError(
            "expected a path, a data frame or a mapping of columns, "
            f"found {type(table).__name__}"
        )  # fmt: skip
    _places("the table", list(present), names)
    return [_plain(table[name]) for name in names]


def _plain(column: Any) -> Sequence[Any]:
    """Return a column as a list: ids become Python's own, and so equal whoever held them."""
    for method in ("to_pylist", "to_list", "tolist"):
        if hasattr(column, method):
            plain: Sequence[Any] = getattr(column, method)()
            return plain
    return column if isinstance(column, list | tuple) else list(column)


def _places(source: str, present: Sequence[Any], names: tuple[str, ...]) -> list[int]:
    for name in names:
        times = list(present).count(name)
        if times != 1:
            there = ", ".join(map(str, present)) or "none"
            found = "no column" if times == 0 else f"{times} columns"
            raise TableError(f"{source}: {found} called {name!r}; the columns are {there}")
    return [list(present).index(name) for name in names]


def _numbers(column: Sequence[Any], name: str, where: Any) -> Vector:
    try:  # at once, where all are numbers
        values = np.asarray(column, np.float64).reshape(-1)
    except (TypeError, ValueError, OverflowError):
        values = np.empty(len(column))
        for row, one in enumerate(column):
            values[row] = _number(one, name, row, where)
    if np.isinf(values).any():
        row = int(np.argmax(np.isinf(values)))
        raise TableError(f"{where(row)}: expected a finite number in column {name!r}, found inf")
    return values


def _number(one: Any, name: str, row: int, where: Any) -> float:
    if _missing(one) or (isinstance(one, str) and one.strip().lower() in _NOT_RATED):
        return float("nan")
    try:
        return float(one)
    except (TypeError, ValueError, OverflowError):
        raise TableError(
            f"{where(row)}: expected a number in column {name!r}, found {one!r}"
        ) from None


def _missing(one: Any) -> bool:
    if isinstance(one, str):
        return not one
    # NaN of any kind differs from itself; pandas' NA does not even say.
    return one is None or type(one).__name__ in ("NAType", "NaTType") or one != one


def write(path: str | os.PathLike[str], columns: Mapping[str, Sequence[Any]]) -> None:
    """Write a table to a file, whole or not at all. NaN and None become empty."""
    path = Path(path)
    check_output(path)
    blank = {name: [None if _missing(one) else one for one in c] for name, c in columns.items()}
    with whole(path) as file:
        if path.suffix.lower() in PARQUET:
            arrow, parquet = _pyarrow()
            try:
                table = arrow.table(blank)
            except (arrow.ArrowInvalid, arrow.ArrowTypeError):  # ids of more than one kind
                first = next(iter(blank))
                table = arrow.table({**blank, first: [str(one) for one in blank[first]]})
            parquet.write_table(table, file)
        else:
            text = io.TextIOWrapper(file, encoding="utf-8", newline="", write_through=True)
            rows = csv.writer(text, delimiter=DELIMITERS[path.suffix.lower()])
            rows.writerow(blank)
            rows.writerows(zip(*blank.values(), strict=True))
            text.detach()  # or else it would close the file with itself


def check_output(path: Path, source: Path | None = None) -> None:
    """Raise if a table cannot be written there, before any work is done for it."""
    if source is not None and path.resolve() == source.resolve():
        raise TableError(f"{path}: holds the ratings, choose another name")
    kind = path.suffix.lower()
    if kind not in DELIMITERS and kind not in PARQUET:
        raise TableError(f"{path}: expected a name that ends in .csv, .tsv or .parquet")
    if path.is_dir() or not path.parent.is_dir():
        raise TableError(f"{path}: expected a file in a folder that exists")
    if kind in PARQUET:
        _pyarrow()


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise TableError(
            f"{error.msg}. Parquet files need: pip install 'consilience[tables]'"
        ) from None
    return pyarrow, pyarrow.parquet
