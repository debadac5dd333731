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
    "BF16": "bfloat16",
    "BOOL": "bool",
    "C64": "complex64",
    **{f"F{n}": f"float{n}" for n in (16, 32, 64)},
    **{f"I{n}": f"int{n}" for n in (8, 16, 32, 64)},
    **{f"U{n}": f"uint{n}" for n in (8, 16, 32, 64)},
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


def _shards(random: Generator, folder: Path, values: Values) -> dict[str, Any] | None:
    """Make a folder of two shards and an index, of which one is damaged."""
    folder.mkdir()
    names = [name for (name,) in values]
    files = [folder / f"model-0000{k}-of-00002.safetensors" for k in (1, 2)]
    held = {name: files[k % 2] for k, name in enumerate(names)}
    for file in files:
        _write(random, file, {p: v for p, v in values.items() if held[p[0]] is file})
    index = {"metadata": {}, "weight_map": {name: file.name for name, file in held.items()}}
    where = folder / "model.safetensors.index.json"
    where.write_bytes(written(index))
    if random.random() < 0.5:
        lie = written(lied(random, index))
        where.write_bytes(lie if random.random() < 0.5 else damaged(random, written(index)))
        raise LookupError("nobody else reads an index")
    _damage(random, files[0], files[0].read_bytes(), files[1].read_bytes())
    first, second = map(_read, files)
    if first is None or second is None or set(first) != {n for n in names if held[n] is files[0]}:
        return None
    return {**first, **second}


FORMAT = Format(
    ".safetensors",
    ("float16", "bfloat16", "float32", "float64"),
    *(_write, _damage, _read, _shards),
)
