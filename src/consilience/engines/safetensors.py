"""The safetensors format: eight bytes of header length, a JSON header, and the tensors' bytes.

Read here and not with the safetensors library, which does not say where in the file a tensor lies.
A file comes from a party nobody can vouch for: every number in its header is checked before use.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np

from consilience.engines.stored import File, FileArray
from consilience.errors import ConsilienceError, UpdateError
from consilience.tensors import Tensor

# The format allows 100 MB. Parsed, a header takes ten times its size of memory, and that of a
# model with ten thousand tensors has 1 MB.
LONGEST_HEADER = 1 << 24
_BEFORE_HEADER = 8

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
_NAMES = {name: code for code, name in _DTYPES.items()}

Metadata = dict[str, str]


def read(file: File) -> tuple[dict[str, Tensor], Metadata]:
    """Return the tensors of a file, which stay in it, and its metadata."""
    header, start = _header(file)
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise UpdateError(f"{file.path}: its __metadata__ is not a mapping of text to text")
    tensors = {name: _tensor(file, name, entry, start) for name, entry in header.items()}
    _check_cover(file, tensors, start)
    return tensors, metadata


def header(tensors: Mapping[str, Tensor], metadata: Metadata, length: int = 0) -> bytes:
    """Return the start of a file with these tensors in this order, padded to a length."""
    entries: dict[str, Any] = {"__metadata__": metadata} if metadata else {}
    at = 0
    for name, tensor in tensors.items():
        if tensor.dtype not in _NAMES:
            raise ConsilienceError(
                f"tensor '{name}' is {tensor.dtype}, which safetensors has not; write an .npz"
            )
        end = at + tensor.size * tensor.storage.dtype.itemsize
        entries[name] = {
            "dtype": _NAMES[tensor.dtype],
            "shape": tensor.shape,
            "data_offsets": [at, end],
        }
        at = end
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    text = text.ljust(max(length - _BEFORE_HEADER, -(-len(text) // 8) * 8))
    return len(text).to_bytes(_BEFORE_HEADER, "little") + text


def _header(file: File) -> tuple[dict[str, Any], int]:
    """Return the parsed header, and where the tensors' bytes start."""
    if file.size < _BEFORE_HEADER:
        raise UpdateError(f"{file.path}: not a safetensors file: it has {file.size} bytes")
    length = int.from_bytes(file.read(0, _BEFORE_HEADER), "little")
    start = _BEFORE_HEADER + length
    if start > file.size:
        raise UpdateError(
            f"{file.path}: truncated or not a safetensors file: it says its header has {length} "
            f"bytes, the file has {file.size}"
        )
    if length > LONGEST_HEADER:
        raise UpdateError(
            f"{file.path}: its header has {length} bytes, at most {LONGEST_HEADER} are read"
        )
    try:
        found = json.loads(file.read(_BEFORE_HEADER, length), object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        raise UpdateError(f"{file.path}: its safetensors header is broken ({error})") from None
    if not isinstance(found, dict):
        raise UpdateError(f"{file.path}: its safetensors header is not a JSON object")
    return found, start


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object, refusing one that says a thing twice."""
    found = dict(pairs)
    if len(found) != len(pairs):
        (twice, _), *_ = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"{twice!r} occurs twice")
    return found


def _tensor(file: File, name: str, entry: Any, start: int) -> Tensor:
    where = f"{file.path}: tensor '{name}'"
    try:
        code, shape, (begin, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
        counts = [*shape, begin, end]
    except (TypeError, KeyError, ValueError):
        raise UpdateError(f"{where} lacks a dtype, shape or data_offsets") from None
    if not all(type(count) is int and 0 <= count < 1 << 62 for count in counts):
        raise UpdateError(f"{where} has shape {shape} and offsets {begin}, {end}: not all counts")
    if code not in _DTYPES:
        raise UpdateError(
            f"{where} is {code}, expected float16, 32, 64 or bfloat16, or integers: convert it"
        )
    if not begin <= end <= file.size - start:
        raise UpdateError(
            f"{where} lies at bytes {begin} to {end} of {file.size - start}: the file is truncated "
            "or its header wrong"
        )
    dtype = np.dtype("<u2" if code == "BF16" else f"<{np.dtype(_DTYPES[code]).str[1:]}")
    size = math.prod(shape)
    if size * dtype.itemsize != end - begin:
        raise UpdateError(
            f"{where} has {end - begin} bytes, expected {size * dtype.itemsize} of {code} {shape}"
        )
    storage = FileArray(file, start + begin, dtype, size)
    return Tensor(storage, _DTYPES[code], tuple(shape), None)


def _check_cover(file: File, tensors: Mapping[str, Tensor], start: int) -> None:
    """Raise unless the tensors cover the rest of the file, each byte once, as the format asks."""
    at, before = start, "the header"
    for name, tensor in sorted(
        tensors.items(), key=lambda item: (item[1].storage.offset, item[1].size)
    ):
        if tensor.storage.offset != at:
            how = "overlaps" if tensor.storage.offset < at else "leaves a hole after"
            raise UpdateError(f"{file.path}: tensor '{name}' {how} {before}")
        at += tensor.size * tensor.storage.dtype.itemsize
        before = f"tensor '{name}'"
    if at != file.size:
        raise UpdateError(f"{file.path}: {file.size - at} bytes at its end belong to no tensor")
