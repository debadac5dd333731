"""Tables in and out: csv by the standard library, parquet by pyarrow, and data frames.

Errors name the line (of a file) or the row (of a data frame; the first is 0).
"""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from consilience.arrays import Vector
from consilience.errors import TableError
from consilience.storage.whole import whole
from consilience.text import shown

DELIMITERS = {".csv": ",", ".tsv": "\t"}
PARQUET = (".parquet", ".pq")
_NOT_RATED = frozenset({"", "na", "n/a", "nan", "null", "none"})
_LARGEST = 1e300  # largest rating: sums of larger ones could overflow
_LISTED = 20  # columns listed in an error, before the rest are counted
_PATH = 300  # characters shown of a path or of another library's error

Where = Callable[[int], str]  # describes the place of a row


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
        found = ", ".join(map(_quoted, names))
        raise TableError(f"expected three different columns, found {found}")
    if isinstance(table, str | os.PathLike):
        source = shown(table, _PATH)
        columns, places = _from_file(Path(table), names)
        place = "line" if places else "row"
    else:
        source, place, places = "the table", "row", None
        columns = _from_memory(table, names)

    def where(row: int) -> str:
        return f"{source}, {place} {places[row] if places else row}"

    lengths = [len(column) for column in columns]
    if len(set(lengths)) > 1:
        each = ", ".join(f"{_quoted(n)}: {c}" for n, c in zip(names, lengths, strict=True))
        raise TableError(f"{source}: expected columns of one length, found {each}")
    values = _numbers(columns[2], value, where)
    rated = np.flatnonzero(~np.isnan(values))
    if not rated.size:
        raise TableError(f"{source}: no ratings in column {_quoted(value)} ({values.size} rows)")
    rows = rated.tolist()
    tasks, parties = (
        _ids([column[row] for row in rows], name, lambda at: where(rows[at]))
        for name, column in zip(names[:2], columns[:2], strict=True)
    )
    return Columns(tasks, parties, values[rated], values.size - rated.size)


def _from_file(path: Path, names: tuple[str, ...]) -> tuple[list[Sequence[Any]], list[int] | None]:
    kind = path.suffix.lower()
    name = shown(path, _PATH)
    if kind not in DELIMITERS and kind not in PARQUET:
        raise TableError(f"{name}: expected a .csv, .tsv or .parquet file")
    try:
        if not path.is_file():
            raise TableError(f"{name}: {'not a file' if path.exists() else 'no such file'}")
        if kind in PARQUET:
            return _read_parquet(path, names), None
        with open(path, encoding="utf-8-sig", newline="") as file:
            return _read_csv(name, csv.reader(file, delimiter=DELIMITERS[kind], strict=True), names)
    except UnicodeDecodeError as error:
        raise TableError(f"{name}: expected text in UTF-8 ({error.reason})") from None
    except OSError as error:
        raise TableError(f"{name}: cannot be read ({error.strerror})") from None


def _read_csv(
    source: str, rows: Any, names: tuple[str, ...]
) -> tuple[list[Sequence[Any]], list[int]]:
    try:
        header = next(rows, None)
        if header is None:
            raise TableError(f"{source}: empty, expected a line with the names of the columns")
        at = _places(source, header, names)
        columns: list[list[Any]] = [[], [], []]
        lines: list[int] = []
        width = len(header)
        for row in rows:
            if len(row) != width:
                if not row:
                    continue
                raise TableError(
                    f"{source}, line {rows.line_num}: expected {width} columns, found {len(row)}"
                )
            for column, place in zip(columns, at, strict=True):
                column.append(row[place])
            lines.append(rows.line_num)
    except csv.Error as error:
        raise TableError(f"{source}, line {rows.line_num}: {shown(error)}") from None
    return [*columns], lines


def _read_parquet(path: Path, names: tuple[str, ...]) -> list[Sequence[Any]]:
    _, parquet = _pyarrow()
    try:
        with parquet.ParquetFile(path) as file:
            _places(shown(path, _PATH), file.schema_arrow.names, names)
            table = file.read(columns=list(names))
    except TableError:
        raise
    except Exception as error:  # damage shows in too many ways to list
        raise TableError(
            f"{shown(path, _PATH)}: not a readable parquet file ({shown(error, _PATH)})"
        ) from error
    return [table[name].to_pylist() for name in names]


def _from_memory(table: Any, names: tuple[str, ...]) -> list[Sequence[Any]]:
    # Mappings have keys; pandas and polars have columns; pyarrow has column_names.
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
    return [_plain(table[name], name) for name in names]


def _plain(column: Any, name: str) -> Sequence[Any]:
    """Return a column as a list of Python's own types, so that equal ids compare equal."""
    plain = column
    for method in ("to_pylist", "to_list", "tolist"):
        if hasattr(column, method):
            plain = getattr(column, method)()
            break
    # Text would be read letter by letter, a mapping by its keys.
    if not isinstance(plain, Iterable) or isinstance(plain, str | bytes | Mapping):
        raise TableError(
            f"the table: expected a list of values in column {_quoted(name)}, "
            f"found {type(column).__name__}"
        )
    return plain if isinstance(plain, list | tuple) else list(plain)


def _places(source: str, present: Sequence[Any], names: tuple[str, ...]) -> list[int]:
    present = list(present)
    for name in names:
        times = present.count(name)
        if times != 1:
            there = ", ".join(map(shown, present[:_LISTED])) or "none"
            if len(present) > _LISTED:
                there += f" and {len(present) - _LISTED} more"
            found = "no column" if times == 0 else f"{times} columns"
            raise TableError(
                f"{source}: {found} called {_quoted(name)}; the columns are {there}"
                f"{_other_separator(present)}"
            )
    return [present.index(name) for name in names]


def _other_separator(present: Sequence[Any]) -> str:
    """Return a hint if the only column looks like several."""
    only = present[0] if len(present) == 1 and isinstance(present[0], str) else ""
    marks = (
        f": is the separator {mark!r}? A .csv has ',', a .tsv tabs"
        for mark in ";,\t|"
        if mark in only
    )
    return next(marks, "")


def _quoted(name: Any) -> str:
    return f"'{shown(name)}'"


def _numbers(column: Sequence[Any], name: str, where: Where) -> Vector:
    try:  # all at once, if all are numbers
        values = np.asarray(column, np.float64)
    except (TypeError, ValueError, OverflowError):
        values = np.empty(0)
    if values.shape != (len(column),):  # one by one, to name the one that is not a number
        values = np.array([_number(one, name, row, where) for row, one in enumerate(column)])
    beyond = np.flatnonzero(np.abs(values) > _LARGEST)
    if beyond.size:
        raise TableError(
            f"{where(beyond[0])}: expected a finite number of at most {_LARGEST:g} in column "
            f"{_quoted(name)}, found {values[beyond[0]]:g}"
        )
    return values


def _number(one: Any, name: str, row: int, where: Where) -> float:
    if isinstance(one, str) and one.strip().lower() in _NOT_RATED:
        return float("nan")
    try:
        return float("nan") if _missing(one) else float(one)
    except OverflowError:
        found = "one too large"
    except (TypeError, ValueError):
        found = _quoted(one)
    raise TableError(f"{where(row)}: expected a number in column {_quoted(name)}, found {found}")


def _ids(column: list[Any], name: str, where: Where) -> list[Any]:
    """Return a column of ids; raise if one cannot be an id."""
    try:
        sound = not any(map(_fault, set(column)))
    except TypeError:  # not hashable, such as a list
        sound = False
    if not sound:
        at = next(at for at, one in enumerate(column) if _fault(one))
        raise TableError(f"{where(at)}: {_fault(column[at])} in column {_quoted(name)}")
    return column


def _fault(one: Any) -> str:
    """Return why something cannot be an id; empty if it can."""
    try:
        hash(one)
        str(one)
        return "a rating without an id" if _missing(one) else ""
    except TypeError:
        return f"expected text or a number as an id, found {type(one).__name__}"
    except ValueError:  # Python prints no integer of more than some thousand digits
        return f"an id too long to be written ({type(one).__name__})"


def _missing(one: Any) -> bool:
    if isinstance(one, str):
        return not one
    # NaN of any kind differs from itself; comparing pandas' NA gives no bool.
    return one is None or type(one).__name__ in ("NAType", "NaTType") or one != one


def write(path: str | os.PathLike[str], columns: Mapping[str, Sequence[Any]]) -> None:
    """Write a table to a file, whole or not at all. NaN and None become empty."""
    path = Path(path)
    check_output(path)
    blank = {name: [None if _missing(one) else one for one in c] for name, c in columns.items()}
    try:
        with whole(path) as file:
            if path.suffix.lower() in PARQUET:
                _write_parquet(file, blank)
            else:
                _write_text(file, blank, DELIMITERS[path.suffix.lower()])
    except UnicodeEncodeError as error:
        raise TableError(
            f"{shown(path, _PATH)}: {_quoted(error.object)} is no valid text, "
            "which no file can hold; rename it"
        ) from None


def _write_text(file: IO[bytes], columns: dict[str, list[Any]], delimiter: str) -> None:
    text = io.TextIOWrapper(file, encoding="utf-8", newline="", write_through=True)
    try:
        rows = csv.writer(text, delimiter=delimiter)
        rows.writerow(columns)
        rows.writerows(zip(*columns.values(), strict=True))
    finally:
        text.detach()  # or it would close the file


def _write_parquet(file: IO[bytes], columns: dict[str, list[Any]]) -> None:
    arrow, parquet = _pyarrow()
    try:
        table = arrow.table(columns)
    except (arrow.ArrowException, OverflowError):  # ids of mixed types, or too large
        first = next(iter(columns))
        table = arrow.table({**columns, first: [str(one) for one in columns[first]]})
    parquet.write_table(table, file)


def check_output(path: Path, source: Path | None = None) -> None:
    """Raise if a table cannot be written there, before the work begins."""
    name = shown(path, _PATH)
    if source is not None and os.path.realpath(path) == os.path.realpath(source):
        raise TableError(f"{name}: holds the ratings, choose another name")
    kind = path.suffix.lower()
    if kind not in DELIMITERS and kind not in PARQUET:
        raise TableError(f"{name}: expected a name that ends in .csv, .tsv or .parquet")
    if path.is_dir() or not path.parent.is_dir():
        raise TableError(f"{name}: expected a file in a folder that exists")
    if kind in PARQUET:
        _pyarrow()


def check_names(ids: str, beside: Sequence[str]) -> None:
    """Raise if the column of ids has the name of another column."""
    if ids in beside:
        raise TableError(
            f"a column of ids cannot be called {_quoted(ids)}, as the file written has its own "
            f"columns {', '.join(beside)}; rename it, or leave that file out"
        )


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise TableError(
            f"{error.msg}. Parquet files need: pip install 'consilience[tables]'"
        ) from None
    return pyarrow, pyarrow.parquet
