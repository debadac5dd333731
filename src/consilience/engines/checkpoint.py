"""A checkpoint: one party's model on disk, as one file or as a folder of shards.

    model.safetensors, model.npz
    model/model.safetensors.index.json, model/model-00001-of-00002.safetensors, ...
    model/model.safetensors

Pickles are never opened, whatever they are called.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from consilience.engines import npz, safetensors
from consilience.engines.stored import File
from consilience.errors import UpdateError
from consilience.tensors import Tensor

INDEX = "model.safetensors.index.json"
WHOLE = "model.safetensors"
_PICKLES = {".pt", ".pth", ".bin", ".ckpt", ".pkl", ".pickle"}


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """The tensors of a model, which stay in their files."""

    path: Path
    tensors: Mapping[str, Tensor]
    files: tuple[File, ...]
    metadata: safetensors.Metadata = field(default_factory=dict)
    shards: Mapping[str, str] | None = None  # tensor -> file name, where it is a folder

    @property
    def size(self) -> int:
        """Return how many bytes its tensors take."""
        return nbytes(self.tensors.values())


def nbytes(tensors: Iterable[Tensor]) -> int:
    """Return how many bytes tensors take."""
    return sum(tensor.size * int(tensor.storage.dtype.itemsize) for tensor in tensors)


def open_checkpoint(path: Path, files: ExitStack) -> Checkpoint:
    """Open a model and check all it says of itself; ``files`` closes it."""
    if path.is_dir():
        return _open_folder(path, files)
    return _open_file(path, files)


def _open_file(path: Path, files: ExitStack) -> Checkpoint:
    if path.suffix.lower() in _PICKLES:
        raise UpdateError(
            f"{path}: pickles are never loaded, as they can run any program. Convert it where it "
            "is trusted: safetensors.torch.save_file(torch.load(old, weights_only=True), new)"
        )
    file = File(path)
    files.callback(file.close)
    if path.suffix.lower() == ".npz":
        return Checkpoint(path, npz.read(file), (file,))
    if path.suffix.lower() == ".safetensors":
        tensors, metadata = safetensors.read(file)
        return Checkpoint(path, tensors, (file,), metadata)
    raise UpdateError(f"{path}: expected .safetensors, .npz or a folder of .safetensors")


def _open_folder(path: Path, files: ExitStack) -> Checkpoint:
    index = path / INDEX
    if not index.exists():
        return _open_unindexed(path, files)
    weight_map = _weight_map(index)
    parts = {
        name: _open_file(path / name, files) for name in dict.fromkeys(sorted(weight_map.values()))
    }
    tensors: dict[str, Tensor] = {}
    metadata: safetensors.Metadata = {}
    for name, part in parts.items():
        for tensor in part.tensors:
            if weight_map.get(tensor) != name:
                raise UpdateError(f"{part.path}: holds tensor '{tensor}', unlike {INDEX} says")
        tensors.update(part.tensors)
        metadata.update(part.metadata)
    for tensor, name in weight_map.items():
        if tensor not in tensors:
            raise UpdateError(f"{path / name}: lacks tensor '{tensor}', which {INDEX} promises")
    opened = tuple(file for part in parts.values() for file in part.files)
    return Checkpoint(path, tensors, opened, metadata, weight_map)


def _open_unindexed(path: Path, files: ExitStack) -> Checkpoint:
    found = sorted(file for file in path.glob("*.safetensors") if not file.name.startswith("."))
    if len(found) != 1:
        raise UpdateError(
            f"{path}: expected {INDEX} or one .safetensors file in it, found {len(found)} of them"
        )
    whole = _open_file(found[0], files)
    shards = dict.fromkeys(whole.tensors, WHOLE)
    return Checkpoint(path, whole.tensors, whole.files, whole.metadata, shards)


def _weight_map(index: Path) -> dict[str, str]:
    """Return which shard holds which tensor. The names come from a stranger: no way out of the
    folder may be among them."""
    file = File(index)
    try:
        if file.size > safetensors.LONGEST_HEADER:
            raise UpdateError(f"{index}: has {file.size} bytes, more than an index should")
        found: Any = json.loads(file.read(0, file.size), object_pairs_hook=safetensors.unique)
        weight_map = found["weight_map"]
        pairs = dict(weight_map).items()
    except (ValueError, RecursionError, TypeError, KeyError) as error:
        if isinstance(error, UpdateError):
            raise
        raise UpdateError(f"{index}: broken, or without a weight_map ({error})") from None
    finally:
        file.close()
    for tensor, name in pairs:
        plain = isinstance(name, str) and os.path.basename(name) == name
        if not plain or name.startswith(".") or not name.endswith(".safetensors"):
            raise UpdateError(
                f"{index}: tensor '{tensor}' lies in {name!r}, expected a .safetensors file's name"
            )
    return dict(pairs)
