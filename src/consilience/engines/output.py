"""The output of an aggregation from files: written as it is formed, seen whole or not at all.

It grows in a hidden folder beside its target, ``.NAME.partial``, locked while somebody writes to
it, and takes its name only when all of it is on the disk. What a killed process leaves behind has
no lock, and the next one to write to the same target starts it anew.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from consilience.engines import npz, safetensors
from consilience.engines.checkpoint import INDEX, WHOLE, nbytes
from consilience.engines.stored import FileArray, OutputFile, writing
from consilience.errors import ConsilienceError
from consilience.tensors import Tensor


class Output:
    """Where the consensus of files goes: a .safetensors file, an .npz file, or a folder of shards.

    ``shards`` says which file of a folder holds which tensor. ``metadata`` is all that may have to
    be written in the end: room is left for the longest.
    """

    def __init__(
        self,
        path: Path,
        shards: Mapping[str, str] | None,
        metadata: Iterable[safetensors.Metadata],
    ) -> None:
        self.path = path
        self.format = "npz" if path.suffix.lower() == ".npz" else "safetensors"
        self.folder = path.suffix.lower() not in {".safetensors", ".npz"}
        self._shards = shards if self.folder and shards else {}
        self._longest = max(metadata, key=lambda entries: len(json.dumps(entries)), default={})
        self._partial = path.with_name(f".{path.name}.partial")
        self._lock = -1
        self._model: Mapping[str, Tensor] | None = None
        self._files: dict[str, OutputFile] = {}
        self._tensors: dict[str, Tensor] = {}

    def begin(self) -> None:
        """Take the hidden folder, and the rubbish in it."""
        if not self.path.parent.is_dir():
            raise ConsilienceError(f"{self.path}: there is no folder {self.path.parent}")
        with writing(self.path):
            while self._lock < 0:
                self._partial.mkdir(exist_ok=True)
                self._take_lock(os.open(self._partial, os.O_RDONLY | os.O_DIRECTORY))
            self._clear()

    def end(self) -> None:
        """Remove what has not got its name; fit to be called at any time."""
        if self._lock < 0:
            return
        self._clear()
        if self._still_there():
            self._partial.rmdir()
        self._give_back()

    def room(self, model: Mapping[str, Tensor], name: str) -> FileArray:
        """Return the place of a tensor in an output with the dtypes of a model."""
        if model is not self._model:
            self.lay_out(model)
        array: FileArray = self._tensors[name].storage
        return array

    def lay_out(self, model: Mapping[str, Tensor]) -> None:
        """Make room for tensors like those of a model; what was written before is gone."""
        if self.format == "npz":
            npz.check_writable(model)
        with writing(self.path):
            self._clear()
            for name, tensors in self._by_file(model).items():
                self._lay_out_file(name, tensors)
        self._model = model

    def commit(self, metadata: safetensors.Metadata) -> None:
        """Give the output its name, once all of it is on the disk."""
        with writing(self.path):
            if self.format == "npz":
                self._zip()
            else:
                self._write_headers(metadata)
            if self.folder and len(self._files) > 1:
                self._write_index()
            _sync_folder(self._partial)
            os.replace(self._partial if self.folder else self._partial / self.path.name, self.path)
            _sync_folder(self.path.parent)

    def _write_headers(self, metadata: safetensors.Metadata) -> None:
        for name, tensors in self._by_file(self._tensors).items():
            length = min(tensor.storage.offset for tensor in tensors.values())
            self._files[name].write(safetensors.header(tensors, metadata, length), 0)
            os.fsync(self._files[name].descriptor)

    def _lay_out_file(self, name: str, tensors: Mapping[str, Tensor]) -> None:
        file = self._files[name] = OutputFile(self._partial / name, self.path)
        at = 0 if self.format == "npz" else len(safetensors.header(tensors, self._longest))
        for key, tensor in tensors.items():
            dtype = tensor.storage.dtype.newbyteorder("<")  # as in safetensors
            storage = FileArray(file, at, dtype, tensor.size)
            self._tensors[key] = replace(tensor, storage=storage)
            at += tensor.size * dtype.itemsize
        os.ftruncate(file.descriptor, at)
        if at and hasattr(os, "posix_fallocate"):  # is there room? Better to know it now
            os.posix_fallocate(file.descriptor, 0, at)

    def _by_file(self, tensors: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
        """Group tensors by their file, wide dtypes first, so that each tensor is aligned."""
        found: dict[str, dict[str, Tensor]] = {}
        for key in sorted(tensors, key=lambda key: -int(tensors[key].storage.dtype.itemsize)):
            name = self._shards.get(key, WHOLE) if self.folder else self.path.name
            found.setdefault(name, {})[key] = tensors[key]
        return found

    def _zip(self) -> None:
        """Put the tensors into an archive. A member's checksum stands before its bytes, so that an
        archive cannot be written as the tensors are formed."""
        finished = self._partial / "archive"
        with open(finished, "wb") as file:
            npz.write(file, self._tensors)
            file.flush()
            os.fsync(file.fileno())
        os.replace(finished, self._partial / self.path.name)

    def _write_index(self) -> None:
        places = {key: name for name, held in self._by_file(self._tensors).items() for key in held}
        size = nbytes(self._tensors.values())
        with open(self._partial / INDEX, "w", encoding="utf-8") as file:
            json.dump(
                {"metadata": {"total_size": size}, "weight_map": places},
                file,
                indent=2,
                sort_keys=True,
            )
            file.flush()
            os.fsync(file.fileno())

    def _clear(self) -> None:
        """Forget and remove what was written so far."""
        for file in self._files.values():
            file.close()
        self._model, self._files, self._tensors = None, {}, {}
        if self._still_there():
            for path in self._partial.iterdir():
                path.unlink()

    def _take_lock(self, folder: int) -> None:
        import fcntl  # here, since Windows has none and may do without files

        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(folder)
            raise ConsilienceError(f"{self.path}: another process is writing it") from None
        self._lock = folder
        if not self._still_there():  # its last owner renamed or removed it just before
            self._give_back()

    def _give_back(self) -> None:
        lock, self._lock = self._lock, -1
        os.close(lock)

    def _still_there(self) -> bool:
        """Tell whether the hidden folder has its name still, and is not somebody else's by now."""
        try:
            return os.path.samestat(os.fstat(self._lock), os.stat(self._partial))
        except FileNotFoundError:
            return False


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
