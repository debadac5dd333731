"""Files and folders that appear whole or not at all.

They are written beside their target, under an unpredictable name:
``.NAME.0123456789abcdef.partial``. The writer holds a lock. What a killed process leaves behind is
not locked, and the next writer of the same target removes it. No link is followed. A file is
removed only if its owner is the one that files made by this process in the same place have.
"""

from __future__ import annotations

import os
import re
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

try:
    import fcntl
except ImportError:  # not Unix: no locks, and leftovers are not removed
    fcntl = None  # type: ignore[assignment]

CONTENT = "content"  # in a hidden folder, what gets the target's name
_LOCK = "lock"

_PLAIN = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
_NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL | _PLAIN
_OLD = os.O_RDWR | getattr(os, "O_NONBLOCK", 0) | _PLAIN  # do not block on a pipe
_FOLDER = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_CLOEXEC", 0)
# A new name can be lost only to a writer that looks for leftovers before the lock is taken.
_TRIES = 10


@contextmanager
def whole(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """Give a file to write to, which replaces the target if all goes well.

    The target is always the old file or the complete new one. A kill may leave the unfinished file
    behind; the next writer of the same target removes it.
    """
    target = Path(path)
    partial, descriptor = _new_file(target)
    try:
        with os.fdopen(descriptor, "w+b") as file:
            _remove_old_files(target, partial)
            yield file
            file.flush()
            os.fsync(descriptor)
            if fcntl is not None:  # elsewhere an open file cannot be renamed
                _give_name(partial, descriptor, target)
        if fcntl is None:
            os.replace(partial, target)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


class HiddenFolder:
    """A folder beside a target, whose `CONTENT`, a file or a folder, becomes the target.

    If it is ``shared``, several processes may have one each beside the same target.
    """

    def __init__(self, target: Path, *, shared: bool = False) -> None:
        self._target, self._shared = target, shared
        self._name = ""
        self._parent = self._lock = self.descriptor = -1

    def begin(self) -> None:
        """Make the folder, and remove those that killed processes left behind."""
        self._parent = os.open(self._target.parent, _FOLDER)
        if not any(self._made() for _ in range(_TRIES)):
            raise OSError(0, "another process removes what is made")
        owner = os.fstat(self._lock).st_uid
        for name in _partials(os.listdir(self._parent), self._target.name):
            gone = name == self._name or self._removed(name, owner)
            if not gone and not self._shared:
                raise OSError(0, "another process is writing it")

    @property
    def path(self) -> Path:
        """Return where the folder is."""
        return self._target.with_name(self._name)

    def end(self) -> None:
        """Remove the folder and all that is in it. It may be called at any time."""
        if self.descriptor >= 0:
            with suppress(OSError):
                self.clear()
                os.unlink(_LOCK, dir_fd=self.descriptor)
            self._forget()
        if self._parent >= 0:
            os.close(self._parent)
            self._parent = -1

    def clear(self) -> None:
        """Remove all that was made in the folder."""
        _clear(self.descriptor)

    def commit(self) -> None:
        """Rename the content to its target."""
        os.fsync(self.descriptor)
        target, folder, parent = self._target.name, self.descriptor, self._parent
        os.replace(CONTENT, target, src_dir_fd=folder, dst_dir_fd=parent)
        os.fsync(parent)

    def _made(self) -> bool:
        """Make the folder; tell whether it is still the one that was made."""
        self._name = _hidden(self._target.name)
        os.mkdir(self._name, 0o700, dir_fd=self._parent)
        try:
            self.descriptor = os.open(self._name, _FOLDER | _PLAIN, dir_fd=self._parent)
            self._lock = os.open(_LOCK, _NEW, 0o600, dir_fd=self.descriptor)
        except FileNotFoundError:  # it was taken for a leftover
            self._forget()
            return False
        owner = os.fstat(self._lock).st_uid
        ours = os.fstat(self.descriptor).st_uid == owner
        if ours and os.listdir(self.descriptor) == [_LOCK] and _lock(self._lock) is not False:
            return True
        os.unlink(_LOCK, dir_fd=self.descriptor)
        self._forget()
        return False

    def _forget(self) -> None:
        """Remove the folder if it is empty and still under its name."""
        with suppress(OSError):
            found = os.stat(self._name, dir_fd=self._parent, follow_symlinks=False)
            if os.path.samestat(found, os.fstat(self.descriptor)):
                os.rmdir(self._name, dir_fd=self._parent)
        for descriptor in (self._lock, self.descriptor):
            if descriptor >= 0:
                os.close(descriptor)
        self._lock = self.descriptor = -1

    def _removed(self, name: str, owner: int) -> bool:
        """Remove what a killed process left; return False if its maker is alive.

        A private folder with a lock of ours in it holds nothing but ours.
        """
        with suppress(OSError), _opened(name, _FOLDER | _PLAIN, self._parent) as folder:
            if os.fstat(folder).st_uid != owner:
                return True
            if os.listdir(folder):  # empty: killed before there was a lock
                with _opened(_LOCK, _OLD, folder) as lock:
                    if not _is_file_of(lock, owner):
                        return True
                    locked = _lock(lock)
                    if not locked:
                        return locked is None
                    _clear(folder)
                    os.unlink(_LOCK, dir_fd=folder)
            os.rmdir(name, dir_fd=self._parent)
        return True


def _hidden(name: str) -> str:
    return f".{name}.{secrets.token_hex(8)}.partial"


def _partials(names: list[str], target: str) -> list[str]:
    """Return those of the names that `_hidden` may have made for a target."""
    made = re.compile(rf"\.{re.escape(target)}\.[0-9a-f]{{16}}\.partial", re.DOTALL)
    return [name for name in names if made.fullmatch(name)]


def _new_file(target: Path) -> tuple[Path, int]:
    """Make and lock a file beside the target."""
    for _ in range(_TRIES):
        partial = target.with_name(_hidden(target.name))
        descriptor = os.open(partial, _NEW, 0o666)
        if _lock(descriptor) is not False and _is_called(partial, descriptor):
            return partial, descriptor
        os.close(descriptor)
    raise OSError(0, f"{target}: another process removes what is made")


def _remove_old_files(target: Path, mine: Path) -> None:
    """Remove what killed processes left; a failure here must not cost the new file."""
    if fcntl is None:
        return
    with suppress(OSError):
        owner = os.lstat(mine).st_uid
        for name in _partials(os.listdir(target.parent), target.name):
            path = target.with_name(name)
            with suppress(OSError), _opened(path, _OLD) as old:
                if path != mine and _is_file_of(old, owner) and _lock(old):
                    path.unlink()


def _give_name(partial: Path, descriptor: int, target: Path) -> None:
    if not _is_called(partial, descriptor):
        raise OSError(0, f"{target}: somebody else took away what was to become it")
    os.replace(partial, target)
    with _opened(target.parent, _FOLDER) as folder:
        os.fsync(folder)


def _lock(descriptor: int) -> bool | None:
    """Take a lock: True if it was free, False if not, None if there are no locks here."""
    if fcntl is None:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def _is_called(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.lstat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _is_file_of(descriptor: int, owner: int) -> bool:
    found = os.fstat(descriptor)
    return stat.S_ISREG(found.st_mode) and found.st_uid == owner


def _clear(folder: int) -> None:
    """Empty a folder of ours except for its lock: files, and folders of files."""
    for name in os.listdir(folder):
        if name == _LOCK:
            continue
        if stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
            with _opened(name, _FOLDER | _PLAIN, folder) as inner:
                for held in os.listdir(inner):
                    os.unlink(held, dir_fd=inner)
            os.rmdir(name, dir_fd=folder)
        else:
            os.unlink(name, dir_fd=folder)


@contextmanager
def _opened(name: str | os.PathLike[str], how: int, folder: int | None = None) -> Iterator[int]:
    descriptor = os.open(name, how, dir_fd=folder)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
