"""The safetensors format: eight bytes of header length, a JSON header, and the tensors' bytes.

The safetensors library is not used, as it does not tell where in the file a tensor lies. A file
comes from an untrusted party: every number in its header is checked before use.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import IO, Any

import numpy as np

from consilience.engines.files.stored import File, FileArray
from consilience.errors import ConsilienceError, UpdateError
from consilience.text import shown
from consilience.updates.tensors import Tensor

# The format allows 100 MB. A parsed header takes ten times its size in memory; one with ten
# thousand tensors has 1 MB.
LONGEST_HEADER = 1 << 24
MOST_TENSORS = 1 << 17
_LONGEST_METADATA = 1 << 20  # each file of an output gets as much
_MOST_DIMENSIONS = 64  # the limit of numpy and torch
_BEFORE_HEADER = 8
_BLOCK = 1 << 20  # numbers written at once

_DTYPES = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U64": "uint64",
    "U32": "uint32",
    "U16": "uint16",
    "U8": "uint8",
    "BOOL": "bool",
    "C64": "complex64",
}
_STORED = {
    code: np.dtype("<u2" if code == "BF16" else name).newbyteorder("<")
    for code, name in _DTYPES.items()
}
_NAMES = {name: code for code, name in _DTYPES.items()}

Metadata = dict[str, str]


def read(file: File) -> tuple[dict[str, Tensor], Metadata]:
    """Return the tensors of a file, without reading them, and its metadata."""
    start = data_start(file)
    header = read_json(file, _BEFORE_HEADER, start - _BEFORE_HEADER, "its safetensors header", 8)
    metadata = header.pop("__metadata__", None)
    metadata = {} if metadata is None else metadata  # as the format's own reader does
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise UpdateError(f"{file.name}: its __metadata__ is not a mapping of text to text")
    size = sum(map(len, (*metadata, *metadata.values())))
    if size > _LONGEST_METADATA:
        raise UpdateError(
            f"{file.name}: its __metadata__ has {size} characters, at most {_LONGEST_METADATA} "
            "are read"
        )
    for text in (*header, *metadata, *metadata.values()):
        if not is_text(text):
            raise UpdateError(f"{file.name}: '{shown(text)}' in its header is half a character")
    tensors = {}
    for name, entry in header.items():
        try:
            tensors[name] = _tensor(file, entry, start)
        except UpdateError as error:
            raise UpdateError(f"{file.name}: tensor '{shown(name)}': {error}") from None
    _check_cover(file, tensors, start)
    return tensors, metadata


def is_text(text: str) -> bool:
    """Tell whether text can be encoded: JSON can contain a lone surrogate."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def data_start(file: File) -> int:
    """Return where the tensors' bytes start, after checking the header's length."""
    if file.size < _BEFORE_HEADER:
        raise UpdateError(f"{file.name}: not a safetensors file: it has {file.size} bytes")
    length = int.from_bytes(file.read(0, _BEFORE_HEADER), "little")
    if _BEFORE_HEADER + length > file.size:
        raise UpdateError(
            f"{file.name}: truncated or not a safetensors file: it says its header has {length} "
            f"bytes, the file has {file.size}"
        )
    if length > LONGEST_HEADER:
        raise UpdateError(
            f"{file.name}: its header has {length} bytes, at most {LONGEST_HEADER} are read"
        )
    return _BEFORE_HEADER + length


def read_json(file: File, start: int, length: int, what: str, each: int) -> dict[str, Any]:
    """Return a JSON object from a file, unless it has so many values that it would fill the memory:
    an honest one has at most ``each`` per tensor."""
    raw = file.read(start, length)
    # Each value follows one of these characters.
    if raw.count(b",") + raw.count(b"[") + raw.count(b"{") > each * MOST_TENSORS:
        raise UpdateError(f"{file.name}: {what} has more values than {MOST_TENSORS} tensors need")
    try:
        found = json.loads(raw.decode(), object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise UpdateError(f"{file.name}: {what} is broken ({shown(error)})") from None
    if not isinstance(found, dict):
        raise UpdateError(f"{file.name}: {what} is not a JSON object")
    return found


def header(tensors: Mapping[str, Tensor], metadata: Metadata, length: int = 0) -> bytes:
    """Return the header for these tensors in this order, padded to a length."""
    entries: dict[str, Any] = {"__metadata__": metadata} if metadata else {}
    at = 0
    for name, tensor in tensors.items():
        if name == "__metadata__":
            raise ConsilienceError(f"safetensors cannot hold a tensor called '{name}'; write .npz")
        if tensor.dtype not in _NAMES:
            raise ConsilienceError(
                f"tensor '{shown(name)}' is {tensor.dtype}, which safetensors has not; "
                "write an .npz"
            )
        end = at + tensor.size * tensor.storage.dtype.itemsize
        entries[name] = {
            "dtype": _NAMES[tensor.dtype],
            "shape": tensor.shape,
            "data_offsets": [at, end],
        }
        at = end
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    if 0 < length < _BEFORE_HEADER + len(text):
        raise AssertionError("a header that would overwrite the tensors")
    text = text.ljust(max(length - _BEFORE_HEADER, -(-len(text) // 8) * 8))
    return len(text).to_bytes(_BEFORE_HEADER, "little") + text


def write(file: IO[bytes], tensors: Mapping[str, Tensor]) -> None:
    """Write tensors from anywhere as a file, a piece at a time."""
    file.write(header(tensors, {}))
    for tensor in tensors.values():
        flat = tensor.flat()
        for start in range(0, flat.size, _BLOCK):
            piece = flat.read(start, min(start + _BLOCK, flat.size))
            file.write(piece.astype(piece.dtype.newbyteorder("<"), copy=False).data)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object; refuse duplicate keys."""
    found = dict(pairs)
    if len(found) != len(pairs):
        (twice, _), *_ = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"'{shown(twice)}' occurs twice")
    return found


def _tensor(file: File, entry: Any, start: int) -> Tensor:
    try:
        code, shape, (begin, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
    except (TypeError, KeyError, ValueError):
        raise UpdateError("lacks a dtype, shape or data_offsets") from None
    if not isinstance(shape, list) or not _are_counts([*shape, begin, end]):
        raise UpdateError("its shape and offsets are not all counts")
    if not isinstance(code, str) or code not in _DTYPES:
        found = shown(code) if isinstance(code, str) else "of no dtype"
        raise UpdateError(
            f"is {found}, expected float16, 32, 64 or bfloat16, or integers: convert it"
        )
    if not begin <= end <= file.size - start:
        raise UpdateError(
            f"lies at bytes {begin} to {end} of {file.size - start}: the file is truncated or its "
            "header wrong"
        )
    dtype = _STORED[code]
    size = sized(shape, code, dtype.itemsize, end - begin)
    return Tensor(FileArray(file, start + begin, dtype, size), _DTYPES[code], tuple(shape), None)


def _are_counts(numbers: list[Any]) -> bool:
    return all(type(number) is int and 0 <= number < 1 << 62 for number in numbers)


def sized(shape: Sequence[int], dtype: str, itemsize: int, room: int) -> int:
    """Return the number of elements of a shape; raise unless they fill exactly ``room`` bytes."""
    if len(shape) > _MOST_DIMENSIONS:
        raise UpdateError(f"has {len(shape)} dimensions, at most {_MOST_DIMENSIONS} exist")
    # Zeros are skipped, as in numpy: no array can have the shape 0 × 2^61 × 2^61.
    if math.prod(count for count in shape if count) * itemsize >= 1 << 62:
        raise UpdateError(f"has {room} bytes, expected more than there are: its shape lies")
    size = math.prod(shape)
    if size * itemsize != room:
        raise UpdateError(f"has {room} bytes, expected {size * itemsize} of {dtype} {shown(shape)}")
    return size


def _check_cover(file: File, tensors: Mapping[str, Tensor], start: int) -> None:
    """Raise unless the tensors cover the rest of the file, each byte once, as the format asks."""
    at, before = start, None
    for name, tensor in sorted(
        tensors.items(), key=lambda item: (item[1].storage.offset, item[1].size)
    ):
        if tensor.storage.offset != at:
            how = "overlaps" if tensor.storage.offset < at else "leaves a hole after"
            what = "the header" if before is None else f"tensor '{shown(before)}'"
            raise UpdateError(f"{file.name}: tensor '{shown(name)}' {how} {what}")
        at += tensor.size * tensor.storage.dtype.itemsize
        before = name
    if at != file.size:
        raise UpdateError(f"{file.name}: {file.size - at} bytes at its end belong to no tensor")
