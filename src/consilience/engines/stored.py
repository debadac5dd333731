"""Tensors that lie in files, read and written a piece at a time.

Positional reads rather than a memory map: mapped pages count as the process's memory, and a file
cut short underneath a map kills the process; a read that comes short is an error like any other.
Several threads may read and write at once.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from consilience.errors import ConsilienceError, UpdateError
from consilience.tensors import Array, Storage, Tensor

# How far ahead of a reader the kernel is asked to fetch: the disk sees requests of this size,
# whatever the size of a piece.
_AHEAD = 1 << 22


class UnreadableFileError(UpdateError):
    """A file that was sound when it was opened cannot be read any more."""

    def __init__(self, file: File, message: str) -> None:
        super().__init__(message)
        self.file = file


class File:
    """A file of one of the parties, open for positional reads."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            # Not blocking: opening a pipe would wait for somebody to write to it.
            self.descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            if error.errno in {errno.EMFILE, errno.ENFILE}:
                raise ConsilienceError(
                    f"{path}: too many files are open; raise the limit with ulimit -n"
                ) from None
            raise UpdateError(f"{path}: cannot be opened ({error.strerror})") from None
        self._opened = os.fstat(self.descriptor)
        if not stat.S_ISREG(self._opened.st_mode):
            self.close()
            raise UpdateError(f"{path}: expected a file, found something else")
        self.size = self._opened.st_size

    def close(self) -> None:
        """Give the descriptor back."""
        os.close(self.descriptor)

    def read_into(self, out: Array, offset: int) -> None:
        """Fill a contiguous array with the bytes from an offset on."""
        end = offset + out.nbytes
        if end // _AHEAD != offset // _AHEAD or offset % _AHEAD == 0:
            _fetch_ahead(self.descriptor, end)
        try:
            at = offset + _pread(self.descriptor, out, offset)
        except OSError as error:
            raise UnreadableFileError(
                self, f"{self.path}: cannot be read ({error.strerror})"
            ) from None
        if at < end:
            raise UnreadableFileError(
                self,
                f"{self.path}: ends at byte {at}, expected {self.size}: it was cut short while it "
                "was read",
            )

    def read(self, offset: int, count: int) -> bytes:
        """Return some bytes."""
        out = np.empty(count, np.uint8)
        self.read_into(out, offset)
        return out.tobytes()

    def check_unchanged(self) -> None:
        """Raise if somebody wrote to the file since it was opened: what the evidence said of it
        need not be true of what was combined."""
        now = os.fstat(self.descriptor)
        if (now.st_size, now.st_mtime_ns) != (self._opened.st_size, self._opened.st_mtime_ns):
            raise UnreadableFileError(self, f"{self.path}: was changed while it was read")


class OutputFile:
    """A file being written that will be, or be part of, the target."""

    def __init__(self, path: Path, target: Path) -> None:
        self.descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        self.target = target

    def close(self) -> None:
        """Give the descriptor back."""
        os.close(self.descriptor)

    def read_into(self, out: Array, offset: int) -> None:
        """Fill a contiguous array with the bytes from an offset on."""
        with writing(self.target):
            if _pread(self.descriptor, out, offset) < out.nbytes:
                raise OSError(errno.EIO, "it was cut short by somebody else")

    def write(self, data: bytes | memoryview, offset: int) -> None:
        """Write bytes from an offset on."""
        rest = memoryview(data)
        with writing(self.target):
            while rest:
                count = os.pwrite(self.descriptor, rest, offset)
                offset, rest = offset + count, rest[count:]


@contextmanager
def writing(target: Path) -> Iterator[None]:
    """Say what could not be written when the system refuses."""
    try:
        yield
    except OSError as error:
        raise ConsilienceError(f"{target}: cannot be written ({error.strerror})") from error


@dataclass(frozen=True, eq=False)
class FileArray:
    """A flat array that lies in a file: it slices like an array, and each slice is a read."""

    file: File | OutputFile
    offset: int
    dtype: np.dtype[Any]
    size: int

    def __getitem__(self, span: slice) -> Array:
        start, stop, _ = span.indices(self.size)
        piece = np.empty(max(0, stop - start), self.dtype)
        self.read_into(start, piece)
        return piece

    def read_into(self, start: int, out: Array) -> None:
        """Fill an array of the same dtype, from a place on."""
        self.file.read_into(out, self.offset + start * self.dtype.itemsize)

    def __setitem__(self, span: slice, values: Array) -> None:
        start, _, _ = span.indices(self.size)
        piece = np.ascontiguousarray(values, self.dtype)
        assert isinstance(self.file, OutputFile)
        self.file.write(piece.view(np.uint8).data, self.offset + start * self.dtype.itemsize)


@dataclass(frozen=True)
class Nowhere:
    """Storage for a result nobody wants."""

    size: int

    def __setitem__(self, span: slice, values: Array) -> None:
        pass


@dataclass(frozen=True, eq=False)
class FileTensor(Tensor):
    """A tensor in a party's file, where a result with its dtype goes, and who is told."""

    room: Callable[[], FileArray | Nowhere]
    formed: Callable[[int], None]

    def read(self, start: int, stop: int, out: Array) -> None:
        """Write coordinates start..stop into the float array ``out``."""
        if self.storage.dtype == out.dtype:
            self.storage.read_into(start, out)
        else:
            super().read(start, stop, out)

    def look(self, places: Array, out: Array) -> None:
        """Write the coordinates at some places into the float array ``out``, a read for each."""
        for at, place in enumerate(places.tolist()):
            self.read(place, place + 1, out[at : at + 1])

    def piece(self, start: int, stop: int, spare: Array) -> Array:
        """Return coordinates start..stop, read into the spare."""
        out = spare[: min(stop, self.size) - start]
        self.read(start, start + out.size, out)
        return out

    def empty(self) -> FileArray | Nowhere:
        """Return the place in the output for a result of the same dtype and size."""
        return self.room()

    def store(self, values: Array, out: Storage, start: int = 0) -> None:
        """Round float values to this tensor's dtype, into its place in the output."""
        super().store(values, out, start)
        self.formed(values.size * int(self.storage.dtype.itemsize))


def _pread(descriptor: int, out: Array, offset: int) -> int:
    """Fill an array as far as the file goes; return the number of bytes."""
    done = os.preadv(descriptor, [out.data], offset)
    if 0 < done < out.nbytes:  # a signal came, or the end of the file
        rest = out.view(np.uint8)
        while count := os.preadv(descriptor, [rest[done:].data], offset + done):
            done += count
    return done


def _fetch_ahead(descriptor: int, offset: int) -> None:
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(descriptor, offset, _AHEAD, os.POSIX_FADV_WILLNEED)
