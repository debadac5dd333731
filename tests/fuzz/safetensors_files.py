"""Safetensors files: damaged bytes, and headers that lie. The second opinion is safetensors' own
parser, in Rust."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
from numpy.random import Generator

from fuzz.damage import damaged, lied, written
from fuzz.models import Format, judge
from fuzz.trees import Values, numpy_dtype

_DTYPES = {
    **{"F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64", "BOOL": "bool"},
    **{"I8": "int8", "I16": "int16", "I32": "int32", "I64": "int64", "C64": "complex64"},
    **{"U8": "uint8", "U16": "uint16", "U32": "uint32", "U64": "uint64"},
}
_CODES = {name: code for code, name in _DTYPES.items()}


def case(random: Generator, folder: Path) -> None:
    """Merge sound files with damaged ones."""
    judge(random, folder, FORMAT)


def _write(random: Generator, path: Path, values: Values) -> None:
    header: dict[str, Any] = {"__metadata__": {"format": "np"}} if random.random() < 0.5 else {}
    data = b""
    for (name,), array in values.items():
        start, data = len(data), data + array.tobytes()
        header[name] = {
            "dtype": _CODES[array.dtype.name],
            "shape": list(array.shape),
            "data_offsets": [start, len(data)],
        }
    path.write_bytes(_file(json.dumps(header).encode(), data))


def _file(header: bytes, data: bytes) -> bytes:
    return len(header).to_bytes(8, "little") + header + data


def _damage(random: Generator, path: Path, sound: bytes, other: bytes) -> None:
    if random.random() < 0.5:
        path.write_bytes(damaged(random, sound, other))
        return
    length = int.from_bytes(sound[:8], "little")
    header, data = json.loads(sound[8 : 8 + length]), sound[8 + length :]
    way = random.random()
    if way < 0.7:
        text = written(lied(random, header))
    elif way < 0.8:  # says a thing twice
        text = written(header).replace(b"}}", b'},"layer.0":{}}', 1)
    elif way < 0.9:
        many = {f"t{k}": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for k in range(999)}
        text = written({**many, **header})
    else:
        one = header.get("layer.0", {})
        one["shape"] = [int(random.choice([1, 2, 2**61]))] * int(random.integers(1, 400))
        text = written(header)
    path.write_bytes(_file(text, data))


def _read(path: Path) -> dict[str, Any] | None:
    found = {}
    try:
        entries = safetensors.deserialize(path.read_bytes())
    except Exception:  # of Rust's making; it says no
        return None
    for name, entry in entries:
        dtype = _DTYPES.get(entry["dtype"])
        if dtype is None:  # one of the small ones, which are not combined
            return None
        array = np.frombuffer(bytes(entry["data"]), numpy_dtype(dtype))
        found[name] = array.reshape(entry["shape"])
    return found


FORMAT = Format(".safetensors", ("float16", "bfloat16", "float32", "float64"), _write, _damage, _read)
