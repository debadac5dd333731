"""Checkpoints: what a server needs to go on after a kill at any moment.

A checkpoint is a folder, `round-000012`, with the model (safetensors), the memory (npz), the rest
(JSON), and their checksums, as `sha256sum --check` reads them; nothing is pickled. It is written
under another name and renamed when it is complete and on disk, so a folder of that name is never
half a checkpoint. The last two rounds are kept.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from consilience.engines.files import safetensors
from consilience.errors import ConsilienceError
from consilience.memory import Memory
from consilience.text import shown
from consilience.updates.tensors import tensor

Tensors = dict[str, NDArray[Any]]

_FORMAT = "consilience-checkpoint"
_VERSION = 2
_FILES = ("memory.npz", "model.safetensors", "state.json")
_SUMS = "SHA256SUMS"
_KEPT = 2
_UNFINISHED = ".saving-"


class CheckpointError(ConsilienceError):
    """A folder is not a checkpoint from which this run can go on. It is left as it is."""


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """The state of a federation after a round."""

    round: int
    model: Tensors
    memory: Memory
    rejections: dict[str, dict[str, Any]] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)  # the framework's node -> its party

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Write the checkpoint below a folder, whole or not at all; remove all but the last two."""
        root = Path(folder)
        root.mkdir(parents=True, exist_ok=True)
        partial = root / f"{_UNFINISHED}{os.getpid()}-{secrets.token_hex(4)}"
        target = root / f"round-{self.round:06d}"
        partial.mkdir()
        try:
            self._write(partial)
            if target.exists():  # a new run in the folder of an old one
                _put_away(target)
            os.replace(partial, target)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
        _sync(root)
        with suppress(OSError):  # what cannot be removed now is removed next time
            for old in _rounds(root)[:-_KEPT]:
                _put_away(old)
        for old in root.glob(f"{_UNFINISHED}*"):
            shutil.rmtree(old, ignore_errors=True)
        return target

    def _write(self, folder: Path) -> None:
        with open(folder / "model.safetensors", "xb") as model:  # a piece at a time
            safetensors.write(model, {name: tensor(values) for name, values in self.model.items()})
        self.memory.save(folder / "memory.npz")
        state = {
            "format": _FORMAT,
            "version": _VERSION,
            "round": self.round,
            "tensors": list(self.model),  # their order, which safetensors does not keep
            "rejections": self.rejections,
            "names": self.names,
        }
        (folder / "state.json").write_text(json.dumps(state), encoding="utf-8")
        (folder / _SUMS).write_text(_sums(folder), encoding="utf-8")
        for file in folder.iterdir():
            _sync(file)
        _sync(folder)


def latest(folder: str | os.PathLike[str]) -> Checkpoint | None:
    """Return the last checkpoint below a folder; None if there is none yet."""
    root = Path(folder)
    if root.exists() and not root.is_dir():
        raise CheckpointError(f"{root}: a file, expected a folder for checkpoints")
    found = _rounds(root)
    if not found:
        return None
    try:
        return _read(found[-1])
    except Exception as error:  # damage shows in too many ways to list
        before = f", or remove it to go on from {found[-2].name}" if len(found) > 1 else ""
        raise CheckpointError(
            f"{found[-1]}: not a readable checkpoint ({shown(error, 200)}); it was left as it is. "
            f"Name another folder{before}"
        ) from error


def fits(checkpoint: Mapping[str, NDArray[Any]], model: Mapping[str, NDArray[Any]]) -> str | None:
    """Return in words how a checkpoint's model differs from that of a run, or None."""
    found, expected = ({k: (v.shape, v.dtype) for k, v in m.items()} for m in (checkpoint, model))
    for name in [*expected, *found]:
        if found.get(name) != expected.get(name):
            return (
                f"tensor '{shown(name)}' is {_said(found, name)}, expected {_said(expected, name)}"
            )
    return None


def _said(tensors: Mapping[str, tuple[tuple[int, ...], Any]], name: str) -> str:
    return "{1} of shape {0}".format(*tensors[name]) if name in tensors else "missing"


def _read(folder: Path) -> Checkpoint:
    from safetensors.numpy import load_file

    if not (folder / _SUMS).exists():
        raise ValueError(f"it has no {_SUMS}: an earlier version made it, or it is not whole")
    if (folder / _SUMS).read_text(encoding="utf-8") != _sums(folder):
        raise ValueError(f"it is not what was saved: see sha256sum --check {_SUMS} in it")
    state = json.loads((folder / "state.json").read_text(encoding="utf-8"))
    if (state["format"], state["version"]) != (_FORMAT, _VERSION):
        raise ValueError(
            f"found {state['format']!r} version {state['version']}, expected version {_VERSION}"
        )
    tensors = load_file(folder / "model.safetensors")
    model = {name: tensors[name] for name in state["tensors"]}
    memory = Memory.load(folder / "memory.npz")
    rejections, names = state["rejections"], state["names"]
    if not all(isinstance(party, str) for party in names.values()):
        raise ValueError("a party's name is no text")
    if not all(isinstance(one["times"], int) for one in rejections.values()):
        raise ValueError("a party was rejected how often?")
    return Checkpoint(int(state["round"]), model, memory, rejections, names)


def _sums(folder: Path) -> str:
    """Return the checksums of a checkpoint's files, one per line."""
    lines = []
    for name in _FILES:
        with open(folder / name, "rb") as file:
            lines.append(f"{hashlib.file_digest(file, 'sha256').hexdigest()}  {name}\n")
    return "".join(lines)


def _rounds(root: Path) -> list[Path]:
    found = (path for path in root.glob("round-*") if path.name[6:].isdecimal())
    return sorted(found, key=lambda path: int(path.name[6:]))


def _put_away(path: Path) -> None:
    """Rename a checkpoint before removing it, as a kill might leave half of it."""
    os.replace(path, path.with_name(f"{_UNFINISHED}old-{secrets.token_hex(4)}"))


def _sync(path: Path) -> None:
    if os.name == "nt" and path.is_dir():  # Windows cannot open a folder, nor needs to
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
