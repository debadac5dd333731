"""Files that are open while they are used, of which a model may have more than a process may open.

The limit is the process's, so this is too: the file that was not used for longest is closed for
another, and opened again when its turn comes.
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
    """A file that is open while it is used, and longer while there is room for it."""

    def __init__(self) -> None:
        self.users = 0
        self.descriptor = -1

    def open(self) -> int:
        """Return a new descriptor of the file."""
        raise NotImplementedError

    @contextmanager
    def use(self) -> Iterator[int]:
        """Give a descriptor that is valid for a while."""
        _OPENED.borrow(self)
        try:
            yield self.descriptor
        finally:
            _OPENED.give_back(self)

    def close(self) -> None:
        """Give the descriptor back, if there is one."""
        _OPENED.close(self)


class Descriptors:
    """The files that are open, half as many as this process may open, or fewer."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._open: dict[Opened, None] = {}  # in the order of their last use

    def borrow(self, file: Opened) -> None:
        """Open a file if it is not; it stays open until it is given back."""
        with self._lock:
            if file.descriptor < 0:
                self._close_some(_most_open())
                file.descriptor = self._opened(file)
            self._open.pop(file, None)
            self._open[file] = None
            file.users += 1

    def give_back(self, file: Opened) -> None:
        """Let a file be closed when there is need."""
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
        """Close files until there are fewer than so many."""
        idle = [file for file in self._open if file.users == 0]
        for file in idle[: max(0, len(self._open) - most + 1)]:
            self._close(file)

    def _close(self, file: Opened) -> None:
        del self._open[file]
        descriptor, file.descriptor = file.descriptor, -1
        os.close(descriptor)


_OPENED = Descriptors()


def _most_open() -> int:
    import resource  # here, since Windows has none and may do without files

    return min(_MOST, max(1, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2))
