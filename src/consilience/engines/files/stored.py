"""Tensors in files, read and written a piece at a time.

Files are read at positions, not mapped into memory: mapped pages count as the process's memory, and
if a mapped file is truncated the process is killed, while a short read is an ordinary error.
Several threads may read and write at once.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from consilience.arrays import Array, Positions
from consilience.engines.files.descriptors import Opened
from consilience.errors import ConsilienceError, UpdateError
from consilience.text import shown

# How far ahead of a reader the kernel is asked to fetch: the disk then sees requests of this size,
# however small a piece is.
_AHEAD = 1 << 22
_WORTH_IT = 1 << 16  # bytes: shorter pieces may share pages, which would be flushed repeatedly
_LONGEST_PATH = 200  # characters of a path in an error
_TICK = 20_000_000  # nanoseconds


class UnreadableFileError(UpdateError):
    """A file that was valid when it was opened can no longer be read."""

    def __init__(self, file: File, message: str) -> None:
        super().__init__(message)
        self.file = file


class File(Opened):
    """A party's file, read at positions. One of at most ``kept`` bytes is read once, into memory,
    so that what is judged is what is combined, even if somebody writes to the file meanwhile."""

    def __init__(self, path: Path, kept: int = 0) -> None:
        super().__init__()
        self.path, self.name = path, shown(path, _LONGEST_PATH)
        self._found: os.stat_result | None = None
        self._content: Array | None = None
        try:
            with self.use() as descriptor:
                self._found = os.fstat(descriptor)
                if self._found.st_size > kept:
                    self._found = _settled(descriptor)
        except (OSError, ValueError) as error:
            raise _not_opened(self.name, error) from None
        self.size = self._found.st_size
        if self.size <= kept:
            content = np.empty(self.size, np.uint8)
            try:
                self.read_into(content, 0)
            finally:
                self.close()
            self._content = content

    def open(self) -> int:
        """Open the file; later again, but only if it is the same and unchanged."""
        if not stat.S_ISREG(os.stat(self.path).st_mode):  # opening a device may have effects
            raise UpdateError(f"{self.name}: expected a file, found something else")
        # Not blocking: opening a pipe would wait for a writer.
        how = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
        descriptor = os.open(self.path, how)
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise UpdateError(f"{self.name}: expected a file, found something else")
            self._check(descriptor)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def read_into(self, out: Array, offset: int) -> None:
        """Fill a contiguous array with the bytes from an offset on."""
        end = offset + out.nbytes
        if self._content is not None and end <= self.size:
            out.view(np.uint8)[:] = self._content[offset:end]
            return
        try:
            with self.use() as descriptor:
                if end // _AHEAD != offset // _AHEAD or offset % _AHEAD == 0:
                    _fetch_ahead(descriptor, end)
                at = offset + _pread(descriptor, out, offset)
        except OSError as error:
            raise UnreadableFileError(
                self, f"{self.name}: cannot be read ({error.strerror})"
            ) from None
        if at < end:
            raise UnreadableFileError(
                self,
                f"{self.name}: ends at byte {at}, expected {self.size}: it was cut short while it "
                "was read",
            )

    def read(self, offset: int, count: int) -> bytes:
        """Return some bytes."""
        out = np.empty(count, np.uint8)
        self.read_into(out, offset)
        return out.tobytes()

    def check_unchanged(self) -> None:
        """Raise if the file was written to since it was opened: the evidence need not be true of
        what was combined."""
        if self._content is None:
            try:
                with self.use() as descriptor:
                    self._check(descriptor)
            except OSError as error:
                raise UnreadableFileError(
                    self, f"{self.name}: cannot be read ({error.strerror})"
                ) from None

    def _check(self, descriptor: int) -> None:
        if self._found is not None and _state(self._found) != _state(os.fstat(descriptor)):
            raise UnreadableFileError(self, f"{self.name}: was changed while it was read")


def _state(found: os.stat_result) -> tuple[int, ...]:
    """Return what every write changes. Anybody can set st_mtime; nobody can set st_ctime."""
    return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


def _settled(descriptor: int) -> os.stat_result:
    """Return a file's state once its last change is old enough for the next one to show: the
    kernel's clock for files may stand still for 10 ms."""
    found = os.fstat(descriptor)
    age = time.time_ns() - found.st_ctime_ns
    if 0 <= age < _TICK:
        time.sleep((_TICK - age) / 1e9)
        found = os.fstat(descriptor)
    return found


def _not_opened(name: str, error: Exception) -> ConsilienceError:
    if isinstance(error, ConsilienceError):
        return error
    why = error.strerror if isinstance(error, OSError) else "no file can have this name"
    return UpdateError(f"{name}: cannot be opened ({why})")


class OutputFile(Opened):
    """A file being written in a folder of our own: the target, or a part of it."""

    def __init__(self, folder: int, name: str, target: Path) -> None:
        super().__init__()
        self.target = target
        self._folder, self._name = folder, name
        self._how = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

    def open(self) -> int:
        """Create the file, or open it again."""
        descriptor = os.open(self._name, self._how, 0o666, dir_fd=self._folder)
        self._how &= ~(os.O_CREAT | os.O_EXCL)
        return descriptor

    def read_into(self, out: Array, offset: int) -> None:
        """Fill a contiguous array with the bytes from an offset on."""
        with writing(self.target), self.use() as descriptor:
            if _pread(descriptor, out, offset) < out.nbytes:
                raise OSError(errno.EIO, "it was cut short by somebody else")

    def write(self, data: bytes | memoryview, offset: int) -> None:
        """Write bytes from an offset on."""
        rest = memoryview(data)
        with writing(self.target), self.use() as descriptor:
            while rest:
                count = os.pwrite(descriptor, rest, offset)
                _begin_to_flush(descriptor, offset, count)
                offset, rest = offset + count, rest[count:]

    def make_room(self, size: int) -> None:
        """Give the file its final size, to find out early whether the disk has room."""
        with writing(self.target), self.use() as descriptor:
            os.ftruncate(descriptor, size)
            if size and hasattr(os, "posix_fallocate"):
                os.posix_fallocate(descriptor, 0, size)

    def sync(self) -> None:
        """Wait until all of it is on disk."""
        with writing(self.target), self.use() as descriptor:
            os.fsync(descriptor)


@contextmanager
def writing(target: Path) -> Iterator[None]:
    """Turn a system error into one that says what could not be written."""
    try:
        yield
    except OSError as error:
        raise ConsilienceError(
            f"{shown(target, _LONGEST_PATH)}: cannot be written ({error.strerror})"
        ) from error


@dataclass(frozen=True, eq=False)
class FileArray:
    """A flat array in a file: it slices like an array, and each slice is a read."""

    file: File | OutputFile
    offset: int
    dtype: np.dtype[Any]
    size: int
    written = True  # not in memory: numbers must be formed elsewhere

    def __getitem__(self, span: slice | Positions) -> Array:
        if not isinstance(span, slice):  # single places: a read for each
            return np.concatenate([self[at : at + 1] for at in span.tolist()])
        start, stop, _ = span.indices(self.size)
        piece = np.empty(max(0, stop - start), self.dtype)
        self.read_into(start, piece)
        return piece.astype(self.dtype.newbyteorder("="), copy=False)

    def read_into(self, start: int, out: Array) -> None:
        """Fill an array of the same dtype, from position ``start`` on."""
        self.file.read_into(out, self.offset + start * self.dtype.itemsize)

    def __setitem__(self, span: slice, values: Array) -> None:
        start, _, _ = span.indices(self.size)
        piece = np.ascontiguousarray(values, self.dtype)
        assert isinstance(self.file, OutputFile)
        self.file.write(piece.view(np.uint8).data, self.offset + start * self.dtype.itemsize)


@dataclass(frozen=True)
class Nowhere:
    """Storage for a result that nobody wants."""

    size: int
    written = True

    def __setitem__(self, span: slice, values: Array) -> None:
        pass


def _pread(descriptor: int, out: Array, offset: int) -> int:
    """Fill an array as far as the file goes; return the number of bytes."""
    done = os.preadv(descriptor, [out.data], offset)
    if 0 < done < out.nbytes:  # a signal, or the end of the file
        rest = out.view(np.uint8)
        while count := os.preadv(descriptor, [rest[done:].data], offset + done):
            done += count
    return done


def _fetch_ahead(descriptor: int, offset: int) -> None:
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(descriptor, offset, _AHEAD, os.POSIX_FADV_WILLNEED)


def _begin_to_flush(descriptor: int, offset: int, count: int) -> None:
    """Have the disk begin to write, while the rest is formed: at the end we wait for all of it."""
    if count >= _WORTH_IT and hasattr(os, "posix_fadvise"):
        # Linux drops only pages that are on disk already, and begins to write the others.
        os.posix_fadvise(descriptor, offset, count, os.POSIX_FADV_DONTNEED)
