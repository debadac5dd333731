"""What the oracles of all kinds have in common: what may be raised, and what may be said."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from consilience import ConsilienceError

LONGEST_TEXT = 2000  # characters of a reason, an error or a line of a log


class BrokenPromiseError(AssertionError):
    """A promise was broken."""


def expect(true: bool, *words: object) -> None:
    """Raise `BrokenPromiseError` unless something is true."""
    if not true:
        raise BrokenPromiseError(" ".join(map(str, words)))


def check_text(text: str, what: str) -> None:
    """Foreign text must not reach a line raw: it could forge another, or fill the disk."""
    expect(text.isprintable(), what, "does not print on one line:", ascii(text[:200]))
    expect(len(text) <= LONGEST_TEXT, what, "has", len(text), "characters:", text[:200])


def check_error(error: ConsilienceError, file: Path | None = None) -> None:
    """An error is one printable line that names the file, and not a lack of memory in disguise."""
    seen: BaseException | None = error
    while seen is not None:
        expect(not isinstance(seen, MemoryError), "out of memory:", repr(seen)[:300])
        seen = seen.__cause__ or seen.__context__
    check_text(str(error), f"a {type(error).__name__}")
    if file is not None:
        expect(file.name in str(error), "the error does not name", file.name, "but says:", error)


def refused(run: Callable[[], object], kind: type[ConsilienceError], file: Path) -> bool:
    """Run something that may refuse a file, by its name and with this kind of error, and tell
    whether it did."""
    try:
        run()
    except ConsilienceError as error:
        expect(isinstance(error, kind), f"expected a {kind.__name__}, found {error!r}")
        check_error(error, file)
        return True
    return False


def check_reasons(reasons: Iterable[str]) -> None:
    """Every reason says something, on one line."""
    for reason in reasons:
        expect(isinstance(reason, str) and bool(reason), "a reason that says nothing:", reason)
        check_text(reason, "a reason")


class _Listener(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.heard: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.heard.append(record)


@contextmanager
def listening() -> Iterator[None]:
    """Listen to the loggers that parties are named in: no line may be forged, none a traceback."""
    listener = _Listener()
    logs = [logging.getLogger(name) for name in ("consilience", "flwr")]
    before = [(log.handlers, log.propagate) for log in logs]
    for log in logs:
        log.handlers, log.propagate = [listener], False
    try:
        yield
    finally:
        for log, (handlers, propagate) in zip(logs, before, strict=True):
            log.handlers, log.propagate = handlers, propagate
    for record in listener.heard:
        check_text(record.getMessage(), "a line of the log")
        if record.exc_info:
            told = f"the log has a traceback: {record.getMessage()}"
            raise BrokenPromiseError(told) from record.exc_info[1]
