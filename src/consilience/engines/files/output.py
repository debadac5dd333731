"""The output of an aggregation from files: written as it is formed, visible only when complete.

It is written in a hidden folder beside its target (see `consilience.storage.whole`), and gets its
name only when all of it is on disk. An .npz file is assembled there at the end.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import IO

from consilience.engines.files import npz, safetensors
from consilience.engines.files.model import INDEX, WHOLE, nbytes
from consilience.engines.files.stored import FileArray, OutputFile, writing
from consilience.errors import ConsilienceError
from consilience.storage.whole import CONTENT, HiddenFolder
from consilience.updates.tensors import Tensor

_METADATA = 1 << 23  # bytes in all files of an output together


class Output:
    """Where the consensus of files goes: a .safetensors file, an .npz file, or a folder of shards.

    ``shards`` says which file of a folder holds which tensor. ``metadata`` are the candidates of
    which one is written into each file at the end: room is left for the longest one within the
    limit. ``beside`` are further files of a folder.
    """

    def __init__(
        self,
        path: Path,
        shards: Mapping[str, str] | None,
        metadata: Iterable[safetensors.Metadata],
        beside: Mapping[str, bytes] | None = None,
    ) -> None:
        self.path = path
        self.format = "npz" if path.suffix.lower() == ".npz" else "safetensors"
        self.folder = path.suffix.lower() not in {".safetensors", ".npz"}
        self._single = "tensors" if self.format == "npz" else CONTENT
        self._shards = shards if self.folder and shards else {}
        self._metadata = tuple(metadata)
        self.beside = dict(beside or {})
        self._most = _METADATA  # bytes in one file
        self._hidden = HiddenFolder(path)
        self._place = -1  # descriptor of the folder the files are made in
        self._model: Mapping[str, Tensor] | None = None
        self._files: dict[str, OutputFile] = {}
        self._tensors: dict[str, Tensor] = {}

    def begin(self) -> None:
        """Make the hidden folder, and remove those that killed processes left behind."""
        if not self.path.parent.is_dir():
            raise ConsilienceError(f"{self.path}: there is no folder {self.path.parent}")
        with writing(self.path):
            self._hidden.begin()

    def end(self) -> None:
        """Remove what has not got its name. It may be called at any time."""
        self._close()
        self._hidden.end()

    def room(self, model: Mapping[str, Tensor], name: str) -> FileArray:
        """Return the place of a tensor in an output with the dtypes of a model."""
        if model is not self._model:
            self.lay_out(model)
        array: FileArray = self._tensors[name].storage
        return array

    def lay_out(self, model: Mapping[str, Tensor]) -> None:
        """Make room for tensors like those of a model; what was written before is lost."""
        if self.format == "npz":
            npz.check_writable(model)
        with writing(self.path):
            self._close()
            self._hidden.clear()
            self._place = self._hidden.descriptor
            if self.folder:
                os.mkdir(CONTENT, dir_fd=self._place)
                self._place = os.open(CONTENT, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=self._place)
            files = self._by_file(model)
            self._most = _METADATA // max(1, len(files))
            longest = max(map(self._kept, self._metadata), key=_length, default={})
            for name, tensors in files.items():
                self._lay_out_file(name, tensors, longest)
        self._model = model

    def commit(self, metadata: safetensors.Metadata) -> None:
        """Give the output its name, once all of it is on disk."""
        with writing(self.path):
            if self.format == "npz":
                self._zip()
            else:
                self._write_headers(metadata)
            if self.folder:
                if len(self._files) > 1:
                    self._write_index()
                for name, content in self.beside.items():
                    with self._new(name) as file:
                        file.write(content)
                os.fsync(self._place)
            self._hidden.commit()

    def _write_headers(self, metadata: safetensors.Metadata) -> None:
        metadata = self._kept(metadata)
        for name, tensors in self._by_file(self._tensors).items():
            length = min(tensor.storage.offset for tensor in tensors.values())
            self._files[name].write(safetensors.header(tensors, metadata, length), 0)
            self._files[name].sync()

    def _kept(self, metadata: safetensors.Metadata) -> safetensors.Metadata:
        return metadata if _length(metadata) <= self._most else {}

    def _lay_out_file(
        self, name: str, tensors: Mapping[str, Tensor], longest: safetensors.Metadata
    ) -> None:
        file = self._files[name] = OutputFile(self._place, name, self.path)
        at = 0 if self.format == "npz" else len(safetensors.header(tensors, longest))
        for key, tensor in tensors.items():
            dtype = tensor.storage.dtype.newbyteorder("<")  # as in safetensors
            storage = FileArray(file, at, dtype, tensor.size)
            self._tensors[key] = replace(tensor, storage=storage)
            at += tensor.size * dtype.itemsize
        file.make_room(at)

    def _by_file(self, tensors: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
        """Group tensors by file, wide dtypes first, so that all are aligned."""
        found: dict[str, dict[str, Tensor]] = {}
        for key in sorted(tensors, key=lambda key: -int(tensors[key].storage.dtype.itemsize)):
            name = self._shards.get(key, WHOLE) if self.folder else self._single
            found.setdefault(name, {})[key] = tensors[key]
        return found

    def _zip(self) -> None:
        """Put the tensors into an archive. This has to wait for the end, as the checksum of a
        member comes before its bytes."""
        with self._new(CONTENT) as file:
            npz.write(file, self._tensors)

    def _write_index(self) -> None:
        places = {key: name for name, held in self._by_file(self._tensors).items() for key in held}
        size = nbytes(self._tensors.values())
        found = {"metadata": {"total_size": size}, "weight_map": places}
        with self._new(INDEX) as file:
            file.write(json.dumps(found, indent=2, sort_keys=True).encode())

    @contextmanager
    def _new(self, name: str) -> Iterator[IO[bytes]]:
        """Make a file beside those of the tensors; it is on disk when the context ends."""
        how = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(name, how, 0o666, dir_fd=self._place), "w+b") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())

    def _close(self) -> None:
        """Discard what was written so far."""
        for file in self._files.values():
            file.close()
        if self._place not in (-1, self._hidden.descriptor):
            os.close(self._place)
        self._place = -1
        self._model, self._files, self._tensors = None, {}, {}


def _length(metadata: safetensors.Metadata) -> int:
    return len(safetensors.header({}, metadata))
