"""Files and folders that appear whole or not at all.

They grow beside their target, under a name nobody can foresee: ``.NAME.0123456789abcdef.partial``.
Whoever writes there holds a lock. What a killed process leaves behind has no lock, and the next
writer of the same target removes it. No link is followed, and nothing of another owner is removed:
our owner is that of the files this process makes in the same place.
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
except ImportError:  # not a Unix: nothing is locked, and nothing left behind is removed
    fcntl = None  # type: ignore[assignment]

CONTENT = "content"  # what gets the target's name, in a hidden folder
_LOCK = "lock"

_PLAIN = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
_NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL | _PLAIN
_OLD = os.O_RDWR | getattr(os, "O_NONBLOCK", 0) | _PLAIN  # not to wait where it is a pipe
_FOLDER = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_CLOEXEC", 0)
# A new name is lost only to somebody who looks for leftovers between its making and its lock.
_TRIES = 10


@contextmanager
def whole(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """Give a file to write to, which takes the place of another when all went well.

    The target is always the old file or the complete new one. A kill may leave the unfinished
    file behind; the next to write the same target removes it.
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
    """A folder beside a target for what becomes the target: its `CONTENT`, a file or a folder.

    If it is ``shared``, several processes may have one each beside the same target.
    """

    def __init__(self, target: Path, *, shared: bool = False) -> None:
        self._target, self._shared = target, shared
        self._name = ""
        self._parent = self._lock = self.descriptor = -1

    def begin(self) -> None:
        """Make the folder, and remove what killed processes left of theirs."""
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
        """Where the folder is."""
        return self._target.with_name(self._name)

    def end(self) -> None:
        """Remove the folder with all that is in it; fit to be called at any time."""
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
        """Give the content its target's name."""
        os.fsync(self.descriptor)
        target, folder, parent = self._target.name, self.descriptor, self._parent
        os.replace(CONTENT, target, src_dir_fd=folder, dst_dir_fd=parent)
        os.fsync(parent)

    def _made(self) -> bool:
        """Make the folder, and tell whether it is really the one that was made."""
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
        """Remove the folder if it is empty and its name still its own."""
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

        A folder with a lock of ours in it, which only we can look into, holds nothing else's.
        """
        with suppress(OSError), _opened(name, _FOLDER | _PLAIN, self._parent) as folder:
            if os.fstat(folder).st_uid != owner:
                return True
            if os.listdir(folder):  # or else it was killed before there was a lock
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
    """Return the names, of those in a folder, that `_hidden` may have made for a target."""
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
    """Remove what killed processes left; whatever hinders it must not cost the new file."""
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
    """Remove all from a folder of ours but its lock: files, and folders of files."""
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
