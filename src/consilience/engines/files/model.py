"""One party's model on disk, as one file or as a folder of shards.

    model.safetensors, model.npz
    model/model.safetensors.index.json, model/model-00001-of-00002.safetensors, ...
    model/model.safetensors

Pickles are never opened, whatever they are called.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from consilience.engines.files import npz, safetensors
from consilience.engines.files.stored import File
from consilience.errors import UpdateError
from consilience.text import shown
from consilience.updates.tensors import Tensor

INDEX = "model.safetensors.index.json"
WHOLE = "model.safetensors"
_PICKLES = {".pt", ".pth", ".bin", ".ckpt", ".pkl", ".pickle"}


@dataclass(frozen=True, eq=False)
class StoredModel:
    """The tensors of a model, which stay in their files."""

    path: Path
    tensors: Mapping[str, Tensor]
    files: tuple[File, ...]
    metadata: safetensors.Metadata = field(default_factory=dict)
    shards: Mapping[str, str] | None = None  # tensor -> file name, for a folder


def nbytes(tensors: Iterable[Tensor]) -> int:
    """Return how many bytes tensors take."""
    return sum(tensor.size * int(tensor.storage.dtype.itemsize) for tensor in tensors)


def open_model(path: Path, files: ExitStack, kept: int = 0) -> StoredModel:
    """Open a model and check its headers; ``files`` closes it. Its files are read into memory at
    once as long as they have no more than ``kept`` bytes in all."""
    if os.path.isdir(path):
        return _open_folder(path, files, kept)
    return _open_file(path, files, kept)


def _open_file(path: Path, files: ExitStack, kept: int) -> StoredModel:
    kind = path.suffix.lower()
    if kind in _PICKLES:
        raise UpdateError(
            f"{shown(path)}: pickles are never loaded, as they can run any program. Convert it "
            "where it is trusted: "
            "safetensors.torch.save_file(torch.load(old, weights_only=True), new)"
        )
    if kind not in {".npz", ".safetensors"} and not path.exists():
        raise UpdateError(f"{shown(path)}: there is no such file or folder")
    if kind not in {".npz", ".safetensors"}:
        raise UpdateError(f"{shown(path)}: expected .safetensors, .npz or a folder of .safetensors")
    file = File(path, kept)
    files.callback(file.close)
    if kind == ".npz":
        return StoredModel(path, npz.read(file), (file,))
    tensors, metadata = safetensors.read(file)
    return StoredModel(path, tensors, (file,), metadata)


def _open_folder(path: Path, files: ExitStack, kept: int) -> StoredModel:
    index = path / INDEX
    if not os.path.lexists(index):
        return _open_unindexed(path, files, kept)
    places = _weight_map(index)
    shards = _open_shards(path, sorted(set(places.values())), files, kept)
    tensors: dict[str, Tensor] = {}
    metadata: safetensors.Metadata = {}
    for name, file in shards.items():
        held, more = safetensors.read(file)
        for tensor in held:
            if places.get(tensor) != name:
                raise UpdateError(
                    f"{file.name}: holds tensor '{shown(tensor)}', unlike {INDEX} says"
                )
        tensors.update(held)
        metadata.update(more)
    for tensor, name in places.items():
        if tensor not in tensors:
            raise UpdateError(
                f"{shards[name].name}: lacks tensor '{shown(tensor)}', which {INDEX} promises"
            )
    return StoredModel(path, tensors, tuple(shards.values()), metadata, places)


def _open_shards(path: Path, names: Sequence[str], files: ExitStack, kept: int) -> dict[str, File]:
    """Open the files of one model; their headers together are limited as that of one file."""
    shards: dict[str, File] = {}
    for name in names:
        file = shards[name] = File(path / name, kept)
        files.callback(file.close)
        kept -= file.size if file.size <= kept else 0
    length = sum(map(safetensors.data_start, shards.values()))
    if length > safetensors.LONGEST_HEADER:
        raise UpdateError(
            f"{shown(path)}: the headers of its {len(shards)} files have {length} bytes, at most "
            f"{safetensors.LONGEST_HEADER} are read"
        )
    return shards


def _open_unindexed(path: Path, files: ExitStack, kept: int) -> StoredModel:
    found = sorted(file for file in path.glob("*.safetensors") if not file.name.startswith("."))
    if len(found) != 1:
        raise UpdateError(
            f"{shown(path)}: expected {INDEX} or one .safetensors file in it, found {len(found)} "
            "of them"
        )
    whole = _open_file(found[0], files, kept)
    shards = dict.fromkeys(whole.tensors, WHOLE)
    return StoredModel(path, whole.tensors, whole.files, whole.metadata, shards)


def _weight_map(index: Path) -> dict[str, str]:
    """Return which shard holds which tensor. The names are foreign: none may lead out of the
    folder."""
    with closing(File(index)) as file:
        if file.size > safetensors.LONGEST_HEADER:
            raise UpdateError(f"{file.name}: has {file.size} bytes, more than an index should")
        found = safetensors.read_json(file, 0, file.size, "this index", 2).get("weight_map")
    if not isinstance(found, dict):
        raise UpdateError(f"{file.name}: broken, or without a weight_map")
    for tensor, name in found.items():
        if not _is_shard(name):
            what = f"'{shown(name)}'" if isinstance(name, str) else type(name).__name__
            raise UpdateError(
                f"{file.name}: tensor '{shown(tensor)}' lies in {what}, expected a .safetensors "
                "file's name"
            )
    return found


def _is_shard(name: Any) -> bool:
    plain = isinstance(name, str) and os.path.basename(name) == name
    return plain and name.endswith(".safetensors") and not name.startswith(".")
