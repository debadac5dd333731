"""numpy's .npz format: a zip archive of .npy files. Uncompressed members are read in place; nothing
is ever unpickled.

zipfile reads the directory. What it and the members' headers say is checked against the file first.
"""

from __future__ import annotations

import io
import re
import struct
import zipfile
from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise
from typing import IO, Any, TypeVar, cast

import numpy as np

from consilience.engines.files.safetensors import MOST_TENSORS, sized
from consilience.engines.files.stored import File, FileArray
from consilience.errors import ConsilienceError, UpdateError
from consilience.text import shown
from consilience.updates.tensors import Tensor

T = TypeVar("T")
R = TypeVar("R")

_LARGEST_DIRECTORY = 1 << 23  # bytes
_LOCAL_HEADER = struct.Struct("<4s5H3I2H")
_LONGEST_NPY_HEADER = 1 << 12
_LONGEST_NAME = (1 << 16) - 1 - len(".npy")  # bytes
_COPY = 1 << 20

_NPY_LENGTH = {b"\x93NUMPY\x01\0": struct.Struct("<H"), b"\x93NUMPY\x02\0": struct.Struct("<I")}
_NPY_MAGIC = 8
_ENTRY = (
    r"\s*['\"](descr|fortran_order|shape)['\"]\s*:"
    r"\s*(['\"][<>|=]?\w{1,9}(?:\[\w{1,9}\])?['\"]|True|False"
    r"|\(\s*(?:\d{1,18}\s*,\s*)*(?:\d{1,18}\s*)?\))\s*"
)
_NPY_ENTRY = re.compile(_ENTRY)
_NPY_ENTRIES = re.compile(f"{_ENTRY}(?:,{_ENTRY}){{2}}")
# No long doubles: their bytes have another meaning on other machines.
_NUMBERS = re.compile(r"[<>|=]?(?:f[248]|[iu][1248]|b1|c8|c16)")


class _Bounded(io.RawIOBase):
    """A file that refuses reads larger than an honest directory."""

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
    """Return the arrays of a file, without reading them."""
    try:
        with zipfile.ZipFile(cast(IO[bytes], _Bounded(file))) as archive:
            members = archive.infolist()
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError, struct.error) as error:
        raise UpdateError(f"{file.name}: truncated or not an .npz file ({shown(error)})") from None
    if len(members) > MOST_TENSORS:
        raise UpdateError(f"{file.name}: holds {len(members)} arrays, at most {MOST_TENSORS}")
    by_name = _by_name(file, members)
    places = {name: _named(file, name, _place, member) for name, member in by_name.items()}
    _check_apart(file, members, places.values())
    return {name: _named(file, name, _array, place) for name, place in places.items()}


def write(file: IO[bytes], tensors: Mapping[str, Tensor]) -> None:
    """Write arrays from anywhere as an .npz file, a piece at a time."""
    with zipfile.ZipFile(file, "w") as archive:
        for name, tensor in tensors.items():
            # All members have the same date, so that equal arrays make equal files.
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
                f"tensor '{shown(name)}' is bfloat16, which numpy has not; "
                "write a .safetensors file"
            )
        if "\0" in name or len(name.encode()) > _LONGEST_NAME:
            raise ConsilienceError(
                f"no member of an archive can be called '{shown(name)}'; write a .safetensors file"
            )


def _by_name(file: File, members: list[zipfile.ZipInfo]) -> dict[str, zipfile.ZipInfo]:
    found: dict[str, zipfile.ZipInfo] = {}
    for member in members:
        name = member.filename.removesuffix(".npy")
        if name in found:
            raise UpdateError(f"{file.name}: array '{shown(name)}' occurs twice")
        found[name] = member
    return found


def _named(file: File, name: str, look: Callable[[File, T], R], at: T) -> R:
    """Look at an array; an error names the array."""
    try:
        return look(file, at)
    except UpdateError as error:
        raise UpdateError(f"{file.name}: array '{shown(name)}': {error}") from None


def _place(file: File, member: zipfile.ZipInfo) -> tuple[int, int]:
    """Return the byte range of a member in the file. Its start is told by the member's own header,
    not by the directory."""
    at = member.header_offset
    if member.compress_type != zipfile.ZIP_STORED:
        raise UpdateError(
            "is compressed and cannot be read in pieces: "
            "convert the file with np.savez(new, **np.load(old))"
        )
    if not 0 <= at <= file.size - _LOCAL_HEADER.size:
        raise UpdateError("the archive's directory points outside of the file")
    fields = _LOCAL_HEADER.unpack(file.read(at, _LOCAL_HEADER.size))
    if fields[0] != b"PK\x03\x04":
        raise UpdateError("the archive's directory points to something else")
    start = at + _LOCAL_HEADER.size + fields[-2] + fields[-1]
    end = start + member.file_size
    if member.flag_bits & 1 or member.compress_size != member.file_size or end > file.size:
        raise UpdateError("the archive's directory does not fit the file")
    return start, end


def _check_apart(
    file: File, members: list[zipfile.ZipInfo], places: Iterable[tuple[int, int]]
) -> None:
    """Raise if members share bytes: a small file could pose as a large model."""
    starts = (member.header_offset for member in members)
    spans = sorted(zip(starts, (end for _, end in places), strict=True))
    for (_, end), (begin, _) in pairwise(spans):
        if begin < end:
            raise UpdateError(f"{file.name}: two arrays share the bytes {begin} to {end}")


def _array(file: File, place: tuple[int, int]) -> Tensor:
    start, end = place
    head = file.read(start, min(_LONGEST_NPY_HEADER, end - start))
    fields, length = _npy_header(head)
    if set(fields) != {"descr", "fortran_order", "shape"}:
        raise UpdateError("has a broken header, or not that of an array of numbers")
    code = fields["descr"][1:-1]
    if not _NUMBERS.fullmatch(code):
        what = "pickled objects, which are never loaded" if "O" in code else code
        raise UpdateError(f"expected numbers, found {what}")
    shape = tuple(int(number) for number in re.findall(r"\d+", fields["shape"]))
    if fields["fortran_order"] == "True" and len(shape) > 1:
        raise UpdateError(
            "lies in Fortran order: save it with np.savez(..., np.ascontiguousarray(a))"
        )
    dtype, begin = np.dtype(code), start + length
    size = sized(shape, dtype.name, dtype.itemsize, end - begin)
    return Tensor(FileArray(file, begin, dtype, size), dtype.name, shape, None)


def _npy_header(head: bytes) -> tuple[dict[str, str], int]:
    """Return the entries of an .npy header, none if it is malformed, and where it ends.

    The header is Python text. It is matched, not evaluated: a few kilobytes of text can make
    Python's own parser slow, or crash it.
    """
    prefix = _NPY_LENGTH.get(head[:_NPY_MAGIC])
    if prefix is None or len(head) < _NPY_MAGIC + prefix.size:
        return {}, 0
    start = _NPY_MAGIC + prefix.size
    end = start + int(prefix.unpack_from(head, _NPY_MAGIC)[0])
    text = head[start:end].decode("latin-1").strip()
    inner = text[1:-1].strip().removesuffix(",")
    if end > len(head) or text[:1] + text[-1:] != "{}" or not _NPY_ENTRIES.fullmatch(inner):
        return {}, 0
    return dict(_NPY_ENTRY.findall(inner)), end
