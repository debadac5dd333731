"""numpy's .npz format: a zip archive of .npy files. Members that are not compressed can be read
in place; nothing is ever unpickled.

zipfile reads the directory, numpy each member's header; what both say is checked against the file
before use.
"""

from __future__ import annotations

import io
import math
import struct
import zipfile
from collections.abc import Mapping
from itertools import pairwise
from typing import IO, Any, cast

import numpy as np

from consilience.engines.stored import File, FileArray
from consilience.errors import ConsilienceError, UpdateError
from consilience.tensors import Tensor

_LARGEST_DIRECTORY = 1 << 24
_LOCAL_HEADER = struct.Struct("<4s5H3I2H")
_LONGEST_NPY_HEADER = 1 << 14
_COPY = 1 << 20


class _Bounded(io.RawIOBase):
    """A file that refuses to be read in pieces larger than an honest directory."""

    def __init__(self, file: File) -> None:
        self.file, self.at = file, 0

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        at = offset + (0, self.at, self.file.size)[whence]
        if at < 0:
            raise OSError("a place before the start of the file")
        self.at = at
        return self.at

    def tell(self) -> int:
        return self.at

    def read(self, count: int = -1) -> bytes:
        rest = max(0, self.file.size - self.at)
        count = rest if count < 0 else min(count, rest)
        if count > _LARGEST_DIRECTORY:
            raise zipfile.BadZipFile(f"its directory has {count} bytes")
        self.at += count
        return self.file.read(self.at - count, count)


def read(file: File) -> dict[str, Tensor]:
    """Return the arrays of a file, which stay in it."""
    try:
        with zipfile.ZipFile(cast(IO[bytes], _Bounded(file))) as archive:
            members = archive.infolist()
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError, struct.error) as error:
        raise UpdateError(f"{file.path}: truncated or not an .npz file ({error})") from None
    tensors: dict[str, Tensor] = {}
    spans: list[tuple[int, int]] = []
    for member in members:
        name = member.filename.removesuffix(".npy")
        if name in tensors:
            raise UpdateError(f"{file.path}: array '{name}' occurs twice")
        tensors[name], span = _array(file, name, member)
        spans.append(span)
    spans.sort()
    for (_, end), (begin, _) in pairwise(spans):
        if begin < end:
            raise UpdateError(f"{file.path}: two arrays share the bytes {begin} to {end}")
    return tensors


def write(file: IO[bytes], tensors: Mapping[str, Tensor]) -> None:
    """Write arrays that lie elsewhere as an .npz file, a piece at a time."""
    with zipfile.ZipFile(file, "w") as archive:
        for name, tensor in tensors.items():
            # A member's date is the day zip began, so that equal arrays make equal files.
            member = zipfile.ZipInfo(f"{name}.npy")
            with archive.open(member, "w", force_zip64=True) as out:
                head: dict[str, Any] = {
                    "descr": np.lib.format.dtype_to_descr(tensor.storage.dtype),
                    "fortran_order": False,
                    "shape": tensor.shape,
                }
                np.lib.format.write_array_header_1_0(out, head)
                for start in range(0, tensor.size, _COPY):
                    out.write(tensor.storage[start : start + _COPY].data)


def check_writable(tensors: Mapping[str, Tensor]) -> None:
    """Raise if an .npz cannot hold a tensor."""
    for name, tensor in tensors.items():
        if tensor.dtype == "bfloat16":
            raise ConsilienceError(
                f"tensor '{name}' is bfloat16, which numpy has not; write a .safetensors file"
            )


def _array(file: File, name: str, member: zipfile.ZipInfo) -> tuple[Tensor, tuple[int, int]]:
    """Return an array, and which bytes of the file it takes with its headers."""
    where = f"{file.path}: array '{name}'"
    if member.compress_type != zipfile.ZIP_STORED:
        raise UpdateError(
            f"{where} is compressed and cannot be read in pieces: "
            "convert the file with np.savez(new, **np.load(old))"
        )
    start = _data_start(file, where, member)
    end = start + member.file_size
    if member.flag_bits & 1 or member.compress_size != member.file_size or end > file.size:
        raise UpdateError(f"{where}: the archive's directory does not fit the file")
    shape, dtype, begin = _npy_header(file, where, start, end)
    size = math.prod(shape)
    if size * dtype.itemsize != end - begin:
        raise UpdateError(
            f"{where} has {end - begin} bytes, expected {size * dtype.itemsize} of {dtype} {shape}"
        )
    tensor = Tensor(FileArray(file, begin, dtype, size), dtype.name, shape, None)
    return tensor, (member.header_offset, end)


def _data_start(file: File, where: str, member: zipfile.ZipInfo) -> int:
    """Return where a member's bytes start: its own header, not the directory, tells."""
    at = member.header_offset
    if not 0 <= at <= file.size - _LOCAL_HEADER.size:
        raise UpdateError(f"{where}: the archive's directory points outside of the file")
    fields = _LOCAL_HEADER.unpack(file.read(at, _LOCAL_HEADER.size))
    if fields[0] != b"PK\x03\x04":
        raise UpdateError(f"{where}: the archive's directory points to something else")
    return int(at + _LOCAL_HEADER.size + fields[-2] + fields[-1])


def _npy_header(
    file: File, where: str, start: int, end: int
) -> tuple[tuple[int, ...], np.dtype[Any], int]:
    head = io.BytesIO(file.read(start, min(_LONGEST_NPY_HEADER, end - start)))
    try:
        version = np.lib.format.read_magic(head)
        if version == (1, 0):
            shape, fortran, dtype = np.lib.format.read_array_header_1_0(head)
        elif version == (2, 0):
            shape, fortran, dtype = np.lib.format.read_array_header_2_0(head)
        else:
            raise ValueError(f"version {version}")
    except Exception as error:  # a header is Python text: too many ways to be wrong to list
        raise UpdateError(f"{where} has a broken header ({error})") from None
    if dtype.kind not in "fiubc":
        what = "pickled objects, which are never loaded" if dtype.hasobject else str(dtype)
        raise UpdateError(f"{where}: expected numbers, found {what}")
    if fortran and len(shape) > 1:
        raise UpdateError(
            f"{where} lies in Fortran order: save it with np.savez(..., np.ascontiguousarray(a))"
        )
    if not all(type(count) is int and 0 <= count < 1 << 62 for count in shape):
        raise UpdateError(f"{where} has shape {shape}")
    return shape, dtype, start + head.tell()
