"""Shows a round in Flower's log as a table of the parties, not as a line for each number."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from flwr.app import MetricRecord

from consilience.integrations.rounds import ClosedRound

log = logging.getLogger("flwr")

# Metrics of single parties, and how Flower lists them at the end of a run.
PARTY = re.compile(r"(weight|noise|named|group)/")
_LISTED = re.compile(rf"\s+'{PARTY.pattern}.*?(?P<end>\}}*,?)")


@contextmanager
def tables(last: Callable[[], ClosedRound | None]) -> Iterator[None]:
    """Show the last round as a table in the log, within the context."""
    shortened = _Shortened(last)
    log.addFilter(shortened)
    try:
        yield
    finally:
        log.removeFilter(shortened)


class _Shortened(logging.Filter):
    def __init__(self, last: Callable[[], ClosedRound | None]) -> None:
        super().__init__()
        self._last = last

    def filter(self, record: logging.LogRecord) -> bool:
        """Remove metrics of single parties from a line; tell whether anything of it is left."""
        said = record.args  # a single mapping is not wrapped in a tuple
        if isinstance(said, MetricRecord):
            return self._round(record, said)
        line = said[0] if isinstance(said, tuple) and len(said) == 1 else None
        found = _LISTED.fullmatch(line) if isinstance(line, str) else None
        if found is None:
            return True
        record.args = (" " * 7 + found["end"],)
        return found["end"].startswith("}")

    def _round(self, record: logging.LogRecord, metrics: MetricRecord) -> bool:
        ended = self._last()
        if ended is not None and any(map(PARTY.match, metrics)):
            plain = {key: value for key, value in metrics.items() if not PARTY.match(key)}
            lines = str(ended.summary).splitlines()
            text = record.msg.replace("%s", str(plain).replace("%", "%%"))
            record.msg, record.args = "\n\t     ".join([text, *lines]), ()
        return True
