"""Aggregation of models in files, of any size, in little memory.

The same two passes as over arrays: the evidence from a sample of each file, then the sum, formed
piece by piece in the output. Only the pieces at hand are ever in memory.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, fields
from functools import cached_property, partial
from pathlib import Path
from threading import Lock, local
from typing import Any

import numpy as np

from consilience.catalogue import DEFAULT, Method
from consilience.consensus import Consensus, aggregate
from consilience.engines.checkpoint import Checkpoint, nbytes, open_checkpoint
from consilience.engines.output import Output
from consilience.engines.stored import FileTensor, Nowhere, UnreadableFileError
from consilience.errors import ConsilienceError, UpdateError
from consilience.evidence import Vector, sampled_spans
from consilience.memory import Memory
from consilience.tensors import Array
from consilience.text import shown
from consilience.trees import Leaves
from consilience.trees import Path as Key
from consilience.updates import Updates, parse

AnyPath = str | os.PathLike[str]
# Called with the step ("evidence", "screening" or "combination"), and how many bytes of it are done
# and there are. What it raises ends the aggregation, with nothing written.
Progress = Callable[[str, int, int], None]

_SECONDS_BETWEEN_CALLS = 0.05
# Numbers a thread reads at once, 4 MB in single precision: in short reads, threads would wait for
# one another to have Python's lock back.
_BLOCK = 1 << 20
# Bytes, an equal share for each party: models that fit are read once, and so cannot change between
# the evidence and the sum.
_KEPT = 1 << 24


def aggregate_files(
    parties: Mapping[str, AnyPath] | Sequence[AnyPath],
    out: AnyPath | None,
    method: str | Method = DEFAULT,
    memory: Memory | None = None,
    center: AnyPath | None = None,
    *,
    exact: bool = False,
    progress: Progress | None = None,
) -> Consensus:
    """Combine models in files into one, trusting each party as far as it deserves.

    Args:
        parties: ``{party id: path}``, or paths, whose parties are called by the shortest ends of
            the paths that differ. A path is a .safetensors file, an .npz file that is not
            compressed, or a folder of .safetensors shards with an index.
        out: where the consensus goes: a .safetensors or .npz file, or a folder of shards. It is
            replaced as a whole at the end, or not touched. None to learn only who is trusted.
        method, memory, exact: as in `aggregate`.
        center: the path of the previous global model, where a prior needs one.
        progress: called now and then with the step, and the bytes done and to do.

    The consensus's ``value`` is the path of the output. A party whose file cannot be used is
    rejected with a reason, and the round goes on.
    """
    paths = _named(parties)
    target = None if out is None else Path(out)
    if target is not None:
        _check_target(target, [*paths.values(), *([] if center is None else [Path(center)])])
    meter = Meter(progress)
    with ExitStack() as files:
        kept = _KEPT // max(1, len(paths))
        found = {party: _opened(path, files, kept) for party, path in paths.items()}
        base = None if center is None else open_checkpoint(Path(center), files)
        sound = {party: c for party, c in found.items() if isinstance(c, Checkpoint)}
        output = None
        if target is not None:
            shards = _shards([base] if base and base.shards else list(sound.values()))
            output = Output(target, shards, [c.metadata for c in sound.values()])
        updates = _updates(found, base, output, meter)
        if output is not None:
            files.callback(output.end)
            output.begin()
            output.lay_out(updates.checkpoint(updates.template()).tensors)
        return _aggregate(updates, method, memory, exact=exact)


def names_of(paths: Sequence[Path]) -> list[str]:
    """Return a name for each path: its last part, or as many of the last as make it unique."""
    parts = [tuple(map(_text, Path(os.path.abspath(path)).parts)) for path in paths]
    names = []
    for mine in parts:
        others = [theirs for theirs in parts if theirs is not mine]
        if mine in others:
            raise ConsilienceError(f"{shown(os.path.join(*mine))}: given twice")
        count = next(n for n in range(1, len(mine) + 1) if all(t[-n:] != mine[-n:] for t in others))
        names.append("/".join(mine[-count:]))
    return names


def _text(name: str) -> str:
    """Return a file's name as text that can be printed and kept; different names stay different.
    What is no UTF-8 in it Python has as half characters."""
    return name.replace("\\", "\\\\").encode(errors="backslashreplace").decode()


class Meter:
    """Tells the caller how far the work is, not too often, from whichever thread."""

    def __init__(self, progress: Progress | None) -> None:
        self._progress = progress
        self._lock = Lock()
        self._step, self._done, self._called = "", 0, 0.0
        self.totals = {"evidence": 0, "screening": 0, "combination": 0}

    def advance(self, step: str, count: int) -> None:
        """Add bytes to a step; one that was complete, or another, starts anew."""
        if self._progress is None:
            return
        with self._lock:
            total = self.totals[step]
            if total == 0:
                return
            if step != self._step or self._done >= total:
                self._step, self._done, self._called = step, 0, 0.0
            self._done = min(self._done + count, total)
            if self._done == total or time.monotonic() - self._called > _SECONDS_BETWEEN_CALLS:
                self._called = time.monotonic()
                self._progress(step, self._done, total)


@dataclass(frozen=True, eq=False)
class FileUpdates(Updates):
    """Updates that lie in files: the consensus is formed in a file too."""

    checkpoints: Mapping[str, Checkpoint] = field(default_factory=dict)
    output: Output | None = None
    meter: Meter = field(default_factory=lambda: Meter(None))
    blocks: local = field(default_factory=local, init=False)  # what each thread has read ahead

    def checkpoint(self, party: int) -> Checkpoint:
        """Return a party's files."""
        return self.checkpoints[self.parties[party]]

    @cached_property
    def width(self) -> int:
        """Return how many bytes a coordinate takes, about."""
        return max(1, nbytes(self.leaves[0][path] for path in self.floats) // self.size)

    def read(self, start: int, stop: int, out: Array, about: int | None = None) -> None:
        """Read a stretch of coordinates for the evidence."""
        super().read(start, stop, out, about)
        self.meter.advance("evidence", (stop - start) * len(self.parties) * self.width)

    def rows(self, chosen: Array, start: int, stop: int, buffer: Array) -> Array:
        """Return coordinates start..stop of the chosen parties, out of a block read at once."""
        mine, key = self.blocks, (chosen.tobytes(), buffer.dtype)
        if getattr(mine, "key", None) != key:
            width = min(self.size, max(buffer.shape[1], _BLOCK // len(chosen)))
            mine.key, mine.block = key, np.empty((len(chosen), width), buffer.dtype)
            mine.start = mine.stop = -1
        if not mine.start <= start <= stop <= mine.stop:
            end = min(self.size, start + mine.block.shape[1])
            mine.start = mine.stop = -1  # until all of it is read: a read may fail
            super().rows(chosen, start, end, mine.block)
            mine.start, mine.stop = start, end
        found: Array = mine.block[:, start - mine.start : stop - mine.start]
        return found

    def _unusable(self, leaves: Leaves) -> str | None:
        reason = super()._unusable(leaves)
        self.meter.advance("screening", self.size * self.width)
        return reason

    def rebuild(self, floats: Mapping[Key, Any], weights: Vector) -> Path | None:
        """Complete the output with what is not combined, and give it its name."""
        if self.output is None:
            return None
        for path, leaf in self.leaves[self.template()].items():
            if path not in floats:
                self.elected(leaf, path, weights)
        for party in range(len(self.parties)):
            for file in self.checkpoint(party).files:
                file.check_unchanged()
        self.output.commit(self.checkpoint(int(np.argmax(weights))).metadata)
        return self.output.path


def _updates(
    found: Mapping[str, Checkpoint | UpdateError],
    base: Checkpoint | None,
    output: Output | None,
    meter: Meter,
) -> FileUpdates:
    parsed = parse(
        {
            p: c if isinstance(c, UpdateError) else _tensors(c, output, meter)
            for p, c in found.items()
        },
        None if base is None else _tensors(base, None, meter),
    )
    return FileUpdates(
        **{f.name: getattr(parsed, f.name) for f in fields(Updates) if f.init},
        checkpoints={p: c for p, c in found.items() if isinstance(c, Checkpoint)},
        output=output,
        meter=meter,
    )


def _tensors(checkpoint: Checkpoint, output: Output | None, meter: Meter) -> dict[str, FileTensor]:
    """Return the tensors of a checkpoint, each with its room in the output; by name, so that the
    sample, and so the consensus, does not depend on how a model is cut into files."""
    formed = partial(meter.advance, "combination")
    made = {}
    for name, t in sorted(checkpoint.tensors.items()):
        room: Callable[[], Any] = partial(Nowhere, t.size)
        if output is not None:
            room = partial(output.room, checkpoint.tensors, name)
        made[name] = FileTensor(t.storage, t.dtype, t.shape, None, room, formed)
    return made


def _aggregate(
    updates: FileUpdates, method: str | Method, memory: Memory | None, *, exact: bool
) -> Consensus:
    """Aggregate, and once more without a party whose file fails while it is read."""
    while True:
        try:
            updates.meter.totals = _totals(updates, exact=exact)
            return aggregate(updates, method, memory, exact=exact)
        except UnreadableFileError as error:
            party = next((p for p, c in updates.checkpoints.items() if error.file in c.files), None)
            if party is None:
                raise  # the centre's
            updates = updates.without({party: str(error)})


def _totals(updates: FileUpdates, *, exact: bool) -> dict[str, int]:
    """Return how many bytes each step has to do with."""
    spans = [(0, updates.size)] if exact else sampled_spans(updates)
    everybody = len(updates.parties) * updates.width
    model = updates.leaves[updates.template()]
    return {
        "evidence": sum(stop - start for start, stop in spans) * everybody,
        "screening": updates.size * everybody,
        "combination": nbytes(model[path] for path in updates.floats),
    }


def _opened(path: Path, files: ExitStack, kept: int) -> Checkpoint | UpdateError:
    try:
        return open_checkpoint(path, files, kept)
    except UpdateError as error:
        return error


def _named(parties: Mapping[str, AnyPath] | Sequence[AnyPath]) -> dict[str, Path]:
    if isinstance(parties, Mapping):
        return {str(party): Path(path) for party, path in parties.items()}
    if isinstance(parties, str | os.PathLike):
        raise ConsilienceError(f"expected paths, one for each party, found one: {parties}")
    paths = [Path(path) for path in parties]
    return dict(zip(names_of(paths), paths, strict=True))


def _check_target(target: Path, inputs: Sequence[Path]) -> None:
    """Refuse an output that would cost an input, or a folder with something in it."""
    there = [os.stat(target)] if os.path.exists(target) else []
    for path in inputs if there else ():
        if any(os.path.samestat(part, there[0]) for part in _parts(path)):
            raise ConsilienceError(
                f"{shown(target)}: is one of the inputs, of {shown(path)}; choose another output"
            )
    if target.suffix.lower() in {".safetensors", ".npz"}:
        if target.is_dir():
            raise ConsilienceError(f"{target}: is a folder, expected a file's name")
    elif target.is_dir():
        if any(target.iterdir()):
            raise ConsilienceError(f"{target}: is a folder with something in it; remove it first")
    elif target.exists() or not any(map(os.path.isdir, inputs)):
        raise ConsilienceError(f"{target}: expected the name of a .safetensors or .npz file")


def _parts(path: Path) -> Iterator[os.stat_result]:
    """Yield what a path is, and what lies in it if it is a folder. Links in there are not followed:
    nobody's link to the output shall stop a merge, and to replace the output does not harm it."""
    with suppress(OSError, ValueError):
        yield os.stat(path)
        if os.path.isdir(path):
            for name in os.listdir(path):
                yield os.lstat(path / name)


def _shards(checkpoints: Sequence[Checkpoint]) -> dict[str, str]:
    """Return the commonest way in which these models are cut into files."""
    ways = Counter(frozenset(c.shards.items()) for c in checkpoints if c.shards)
    return dict(ways.most_common(1)[0][0]) if ways else {}
