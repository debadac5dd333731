"""The record of a run: one line of JSON per round, appended as the run goes.

A line is appended in one write and flushed to disk. A kill in the middle leaves a torn last line:
readers skip it, and the next writer removes it. So a record can be read while it is written, and is
never broken. docs/record.md has the format.
"""

from __future__ import annotations

import base64
import json
import math
import mmap
import os
import re
import time as clock
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from consilience.arrays import Matrix
from consilience.errors import RecordFileError
from consilience.storage.record_line import fault, known
from consilience.text import LONGEST, shown

try:
    import fcntl
except ImportError:  # not Unix: the caller must see to it that only one writer is at work
    fcntl = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from consilience.consensus import Consensus

VERSION = 1
_START = b'{"format":"consilience-record",'
_UNKNOWN = -128  # code for an undefined correlation, in hundredths
_SENTENCE = 1000  # characters of a reason or a note
_MARKED = re.compile(r"#[0-9a-f]{16}\Z")


@dataclass(frozen=True, eq=False)
class RecordedRound:
    """What a record holds about one round, in the words of `Consensus`."""

    round: int
    time: float  #: seconds since 1970, when it was written
    method: str | None
    parties: tuple[str, ...]  #: whose updates were usable
    weights: dict[str, float]  #: of the parties
    noise: dict[str, float]  #: of the parties; NaN where unknown
    noise_intervals: dict[str, tuple[float, float]]  #: at 95 %, of the parties that have one
    groups: tuple[tuple[str, ...], ...]  #: parties that move together
    reasons: dict[str, str]  #: of parties that stand out
    rejected: dict[str, str]  #: party -> reason
    caveats: tuple[str, ...]  #: why it is no all-clear
    center_weight: float
    correlation: Matrix | None  #: (J, J) in the order of parties, to two decimals
    effective_parties: float | None
    seconds: dict[str, float]  #: by step
    accuracy: float | None
    metrics: dict[str, float]
    note: str | None


class Record:
    """A run's record in a file, made with the first round. Old rounds are never changed.

    >>> import tempfile
    >>> from pathlib import Path
    >>> import consilience as cs
    >>> path = Path(tempfile.mkdtemp(), "run.jsonl")
    >>> for _ in range(2):
    ...     consensus = cs.aggregate({"ann": [1.0, 2], "bob": [1.1, 2], "eve": [9, 9]}, record=path)
    >>> [line.round for line in cs.Record.read(path)]
    [1, 2]
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    def append(
        self,
        consensus: Consensus | None,
        *,
        round: int | None = None,
        accuracy: float | None = None,
        seconds: Mapping[str, float] | None = None,
        metrics: Mapping[str, float] | None = None,
        note: str | None = None,
        rejected: Mapping[str, str] | None = None,
    ) -> int:
        """Add a round, and return its number: if not given, one more than the last in the file.

        Without a consensus the round failed: say why in ``note`` and ``rejected``. ``seconds`` are
        for steps beside those of the consensus.
        """
        line: dict[str, Any] = {} if consensus is None else _of(consensus)
        line["rejected"] = {**line.get("rejected", {}), **_texts(rejected or {})}
        line["seconds"] = _rounded({**line.get("seconds", {}), **(seconds or {})})
        line |= {"accuracy": _number(accuracy), "metrics": _rounded(metrics or {})}
        line["note"] = None if note is None else shown(note, _SENTENCE)
        line = {key: value for key, value in line.items() if value not in (None, {}, [], ())}
        with _locked(self.path) as file:
            end, last = _whole(file, self.path)
            number = last + 1 if round is None else int(round)
            head = {"version": VERSION, "round": number, "time": float(f"{clock.time():.3f}")}
            text = json.dumps({**head, **line}, separators=(",", ":"), allow_nan=False)
            _write(file, end, _START + text[1:].encode() + b"\n")
        return number

    @staticmethod
    def read(path: str | os.PathLike[str]) -> tuple[RecordedRound, ...]:
        """Return the rounds in order; of one written twice (by a resumed run), the last."""
        found, _ = lines(path)
        rounds = {line["round"]: line for line in found}
        return tuple(_round(rounds[number]) for number in sorted(rounds))


def lines(path: str | os.PathLike[str], start: int = 0) -> tuple[list[dict[str, Any]], int]:
    """Return the complete lines from a place in the file on, and the place after them."""
    try:
        with open(path, "rb") as file:
            file.seek(start)
            content = file.read()
            file.seek(0)
            _check_start(file.read(len(_START)), path)
    except OSError as error:
        raise RecordFileError(f"{path}: cannot be read as a record ({error.strerror})") from None
    pieces = content.split(b"\n")[:-1]
    found, end = [], start
    for k, piece in enumerate(pieces):
        line = _parsed(piece)
        if line is None:
            if k + 1 < len(pieces):
                raise _damaged(path, f"a broken line at byte {end}")
            break  # torn by a power cut: the next writer will remove it
        _check_line(line, path)
        found.append(known(line))
        end += len(piece) + 1
    return found, end


def correlations(coded: str | None, size: int) -> Matrix | None:
    """Return the matrix of a line's ``correlation``: hundredths, the upper triangle by rows."""
    if coded is None:
        return None
    hundredths = np.frombuffer(base64.b64decode(coded), np.int8)
    matrix = np.eye(size)
    rows, columns = np.triu_indices(size, 1)
    matrix[rows, columns] = np.where(hundredths == _UNKNOWN, np.nan, hundredths / 100)
    matrix[columns, rows] = matrix[rows, columns]
    return matrix


def _of(consensus: Consensus) -> dict[str, Any]:
    """Return what a line says about a consensus."""
    group = {party: k for k, members in enumerate(consensus.groups) for party in members}
    parties, method = consensus.parties, consensus.diagnostics.get("method")
    reasons = {p: why for p, why in consensus.reasons.items() if p not in consensus.rejected}
    return {
        "method": None if method is None else shown(method, _SENTENCE),
        "parties": [name_of(party) for party in parties],
        "weights": [_number(consensus.weights[party]) for party in parties],
        "noise": [_number(consensus.noise[party]) for party in parties],
        "noise_spread": _spread(consensus.known_intervals, parties),
        "group": [group.get(party) for party in parties] if group else None,
        "reasons": _texts(reasons),
        "rejected": _texts(consensus.rejected),
        "caveats": consensus.caveats,
        "center_weight": _number(consensus.center_weight) or None,
        "correlation": _coded(consensus.covariance),
        "effective_parties": _number(consensus.diagnostics.get("effective_parties")),
        "seconds": consensus.diagnostics.get("seconds", {}),
    }


def _spread(
    intervals: Mapping[str, tuple[float, float]], parties: Sequence[str]
) -> list[float | None] | None:
    """Return half the width of each interval, in logarithms: one short number instead of two."""
    ends = [intervals.get(party) for party in parties]
    found = [None if e is None else float(f"{math.log(e[1] / e[0]) / 2:.3g}") for e in ends]
    return found if intervals else None


def name_of(party: str) -> str:
    """Return a party's name in a record: its id, if that is a single line of modest length.

    Otherwise the printable part of the id, with a hash; likewise for an id that looks as if it had
    one. So different parties have different names, and nobody can take another's.
    """
    if shown(party) == party and not _MARKED.search(party):
        return party
    mark = "#" + blake2b(party.encode(errors="surrogatepass"), digest_size=8).hexdigest()
    return shown(party, LONGEST - len(mark)) + mark


def _texts(reasons: Mapping[str, str]) -> dict[str, str]:
    return {name_of(party): shown(reason, _SENTENCE) for party, reason in reasons.items()}


def _coded(covariance: Matrix | None) -> str | None:
    if covariance is None:
        return None
    with np.errstate(all="ignore"):  # 0/0 is NaN, an unknown correlation
        scale = np.sqrt(np.diag(covariance))
        pairs = (covariance / scale[:, None] / scale)[np.triu_indices(len(scale), 1)]
    hundredths = np.where(np.isfinite(pairs), np.clip(np.rint(100 * pairs), -100, 100), _UNKNOWN)
    return base64.b64encode(hundredths.astype(np.int8).tobytes()).decode()


def _number(value: float | None) -> float | None:
    """Return a number rounded to four digits, or None for what JSON cannot express."""
    return float(f"{value:.4g}") if value is not None and math.isfinite(value) else None


def _rounded(values: Mapping[str, float]) -> dict[str, float | None]:
    return {shown(name): _number(value) for name, value in values.items()}


def _round(line: dict[str, Any]) -> RecordedRound:
    parties = tuple(line.get("parties", ()))
    group = line.get("group") or [None] * len(parties)
    numbers = sorted({k for k in group if k is not None})
    noise = dict(zip(parties, map(_or_nan, line.get("noise", ())), strict=True))
    spread = dict(zip(parties, line.get("noise_spread", ()), strict=False))
    return RecordedRound(
        round=line["round"],
        time=line["time"],
        method=line.get("method"),
        parties=parties,
        weights=dict(zip(parties, map(_or_nan, line.get("weights", ())), strict=True)),
        noise=noise,
        noise_intervals={
            party: (noise[party] * math.exp(-half), noise[party] * math.exp(half))
            for party, half in spread.items()
            if half is not None
        },
        groups=tuple(
            tuple(party for party, k in zip(parties, group, strict=True) if k == number)
            for number in numbers
        ),
        reasons=line.get("reasons", {}),
        rejected=line.get("rejected", {}),
        caveats=tuple(line.get("caveats", ())),
        center_weight=line.get("center_weight", 0.0),
        correlation=correlations(line.get("correlation"), len(parties)),
        effective_parties=line.get("effective_parties"),
        seconds={step: _or_nan(value) for step, value in line.get("seconds", {}).items()},
        accuracy=line.get("accuracy"),
        metrics={name: _or_nan(value) for name, value in line.get("metrics", {}).items()},
        note=line.get("note"),
    )


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else value


@contextmanager
def _locked(path: Path) -> Iterator[int]:
    """Open a record for appending, and lock out other writers."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_BINARY", 0), 0o666)
    try:
        if fcntl is not None:
            fcntl.flock(file, fcntl.LOCK_EX)
        yield file
    finally:
        os.close(file)


def _whole(file: int, path: Path) -> tuple[int, int]:
    """Remove a torn last line; return where the file ends, and the number of its last round."""
    size = os.fstat(file).st_size
    if size == 0:
        return 0, 0
    with mmap.mmap(file, 0, access=mmap.ACCESS_READ) as content:
        _check_start(content[: len(_START)], path)
        end = content.rfind(b"\n") + 1
        start = content.rfind(b"\n", 0, max(0, end - 1)) + 1
        last = _parsed(content[start:end])
        if last is None:  # a power cut may keep the end of a line and lose its middle
            end, start = start, content.rfind(b"\n", 0, max(0, start - 1)) + 1
            last = _parsed(content[start:end])
    if last is not None:
        _check_line(last, path)
    elif end:
        raise _damaged(path, f"a broken line at byte {start}")
    if end < size:
        os.ftruncate(file, end)
    return end, 0 if last is None else int(last["round"])


def _write(file: int, end: int, line: bytes) -> None:
    written = os.write(file, line)
    if written < len(line):  # the disk is full: half a line is worth nothing
        os.ftruncate(file, end)
        raise OSError(f"only {written} of {len(line)} bytes could be written")
    os.fsync(file)


def _parsed(piece: bytes) -> dict[str, Any] | None:
    """Return a line, or None if it is not complete."""
    try:
        line = json.loads(piece)
    except (ValueError, RecursionError):
        return None
    return line if isinstance(line, dict) else None


def _check_start(head: bytes, path: str | os.PathLike[str]) -> None:
    if head != _START[: len(head)]:
        raise RecordFileError(f"{path}: not a record of a run; it was left as it is")


def _check_line(line: dict[str, Any], path: str | os.PathLike[str]) -> None:
    if line.get("version") != VERSION:
        found = shown(repr(line.get("version")))
        raise RecordFileError(f"{path}: record version {found}, this release reads {VERSION}")
    wrong = fault(line)
    if wrong is not None:
        raise _damaged(path, f"a line is not of this format: {wrong}")


def _damaged(path: str | os.PathLike[str], what: str) -> RecordFileError:
    return RecordFileError(f"{path}: {what}; was it edited? Remove the line, or start a new record")
