"""Open files: models may need more of them than a process may open.

The limit is per process, and so is this pool: it closes the least recently used file to open
another, and opens it again when needed.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

from consilience.errors import ConsilienceError

_MOST = 512  # files at once
_TOO_MANY = {errno.EMFILE, errno.ENFILE}


class Opened:
    """A file that is open while in use, and longer while the limit allows."""

    def __init__(self) -> None:
        self.users = 0
        self.descriptor = -1

    def open(self) -> int:
        """Return a new descriptor of the file."""
        raise NotImplementedError

    @contextmanager
    def use(self) -> Iterator[int]:
        """Give a descriptor that is valid within the context."""
        _OPENED.borrow(self)
        try:
            yield self.descriptor
        finally:
            _OPENED.give_back(self)

    def close(self) -> None:
        """Close the descriptor, if there is one."""
        _OPENED.close(self)


class Descriptors:
    """The open files: at most half as many as this process may open."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._open: dict[Opened, None] = {}  # least recently used first

    def borrow(self, file: Opened) -> None:
        """Open a file if necessary; it stays open until it is given back."""
        with self._lock:
            if file.descriptor < 0:
                self._close_some(_most_open())
                file.descriptor = self._opened(file)
            self._open.pop(file, None)
            self._open[file] = None
            file.users += 1

    def give_back(self, file: Opened) -> None:
        """Allow a file to be closed when others need its place."""
        with self._lock:
            file.users -= 1

    def close(self, file: Opened) -> None:
        """Close a file that is no longer used."""
        with self._lock:
            if file.descriptor >= 0:
                self._close(file)

    def _opened(self, file: Opened) -> int:
        try:
            return file.open()
        except OSError as error:
            if error.errno not in _TOO_MANY:
                raise
        self._close_some(1)
        try:
            return file.open()
        except OSError as error:
            if error.errno not in _TOO_MANY:
                raise
            raise ConsilienceError(
                "too many files are open in this process; raise the limit with ulimit -n"
            ) from None

    def _close_some(self, most: int) -> None:
        """Close files until there are fewer than ``most``."""
        idle = [file for file in self._open if file.users == 0]
        for file in idle[: max(0, len(self._open) - most + 1)]:
            self._close(file)

    def _close(self, file: Opened) -> None:
        del self._open[file]
        descriptor, file.descriptor = file.descriptor, -1
        os.close(descriptor)


_OPENED = Descriptors()


def _most_open() -> int:
    import resource  # here, as Windows has no such module

    return min(_MOST, max(1, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2))
