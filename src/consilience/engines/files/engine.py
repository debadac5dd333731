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
from dataclasses import replace
from pathlib import Path
from threading import Lock

import numpy as np

from consilience.arrays import Vector
from consilience.consensus import Consensus
from consilience.deliberation import deliberate
from consilience.engines.files.model import StoredModel, nbytes, open_model
from consilience.engines.files.output import Output
from consilience.engines.files.stored import FileArray, Nowhere, UnreadableFileError
from consilience.engines.in_process import InProcess
from consilience.errors import ConsilienceError, UpdateError
from consilience.estimators.catalogue import DEFAULT, Method, resolve
from consilience.evidence import Evidence
from consilience.memory import Memory
from consilience.passes.sampling import sampled_spans
from consilience.require import Require
from consilience.text import shown
from consilience.updates.names import Patterns
from consilience.updates.parsing import parse
from consilience.updates.tensors import Tensor
from consilience.updates.trees import Path as Key
from consilience.updates.usable import Updates

AnyPath = str | os.PathLike[str]
# Called with the step ("evidence" or "combination"), and how many bytes of it are done
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
    seed: int | None = None,
    progress: Progress | None = None,
    require: Require | None = None,
    tensors: Patterns | None = None,
    evidence: Patterns | None = None,
) -> Consensus:
    """Combine models in files into one, trusting each party as far as it deserves.

    Args:
        parties: ``{party id: path}``, or paths, whose parties are called by the shortest ends of
            the paths that differ. A path is a .safetensors file, an .npz file that is not
            compressed, or a folder of .safetensors shards with an index.
        out: where the consensus goes: a .safetensors or .npz file, or a folder of shards. It is
            replaced as a whole at the end, or not touched. None to learn only who is trusted.
        method, memory, exact, seed, require, tensors, evidence: as in `aggregate`. Tensors that are
            not aggregated are the centre's, and missing where there is none.
        center: the path of the previous global model, where a prior needs one.
        progress: called now and then with the step, and the bytes done and to do.

    The consensus's ``value`` is the path of the output. A party whose file cannot be used is
    rejected with a reason, and the round goes on.
    """
    paths = _named(parties)
    target = None if out is None else Path(out)
    if target is not None:
        _check_target(target, [*paths.values(), *([] if center is None else [Path(center)])])
    chosen = resolve(method)
    with ExitStack() as files:
        kept = _KEPT // max(1, len(paths))
        found = {party: _opened(path, files, kept) for party, path in paths.items()}
        base = None if center is None else open_model(Path(center), files)
        sound = {party: c for party, c in found.items() if isinstance(c, StoredModel)}
        output = None
        if target is not None:
            shards = _shards([base] if base and base.shards else list(sound.values()))
            output = Output(target, shards, [c.metadata for c in sound.values()])
        parsed = _parsed(found, base, tensors, evidence)
        engine = Files(parsed, found, base, output, Meter(progress), exact=exact)
        if output is not None:
            files.callback(output.end)
            output.begin()
        consensus = engine.deliberate(chosen, memory, seed, require)
    consensus.diagnostics["method"] = method if isinstance(method, str) else repr(method)
    return consensus


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
        self.totals = {"evidence": 0, "combination": 0}

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


class Files(InProcess):
    """An engine over models in files: read piece by piece, and the value is formed in a file."""

    def __init__(
        self,
        updates: Updates,
        found: Mapping[str, StoredModel | UpdateError],
        base: StoredModel | None,
        output: Output | None,
        meter: Meter,
        *,
        exact: bool,
    ) -> None:
        super().__init__(updates)
        self._checkpoints = {p: c for p, c in found.items() if isinstance(c, StoredModel)}
        there = {name for (name,) in updates.leaves[0]}
        self._kept = {n: t for n, t in (base.tensors if base else {}).items() if n not in there}
        self._layouts: dict[str, dict[str, Tensor]] = {}  # party -> tensors of an output like its
        self._output, self._meter, self._exact = output, meter, exact
        self._all = exact  # whether the evidence is now taken from all coordinates
        self.without({})

    def without(self, bad: Mapping[str, str]) -> None:
        """Leave out some parties, each with the reason."""
        self.updates = self.updates.without(bad)
        self.updates = replace(self.updates, widest=max(1, _BLOCK // len(self.parties)))

    def observe(self, random: np.random.Generator, *, exact: bool) -> Evidence:
        """Return the evidence, and drop unusable updates."""
        self._all = exact
        return super().observe(random, exact=exact)

    def _totals(self) -> dict[str, int]:
        """Return how many bytes each step has to do with."""
        size, count, width = self.size, len(self.parties), self._width
        spans = [(0, size)]
        if not self._all:  # which places it will be is not known here, but how many
            spans = sampled_spans(size, count, np.random.default_rng(0))
        seen = sum(stop - start for start, stop in spans)
        return {"evidence": seen * count * width, "combination": self.updates.size * width}

    @property
    def _width(self) -> int:
        """How many bytes a coordinate takes, about."""
        leaves = self.updates.leaves[0]
        return max(1, nbytes(leaves[path] for path in self.updates.floats) // self.updates.size)

    def tell(self, step: str) -> Callable[[int], None]:
        """Return whom to tell how many coordinates of a step are done."""
        self._meter.totals = self._totals()
        times = self._width * (len(self.parties) if step == "evidence" else 1)
        return lambda count: self._meter.advance(step, count * times)

    def room(self, path: Key) -> FileArray | Nowhere:
        """Return the place of a tensor in the output."""
        (name,) = path
        return self._place(name)

    def _place(self, name: str) -> FileArray | Nowhere:
        model = self.parties[self.updates.template]
        if model not in self._layouts:
            mine, there = self._checkpoints[model].tensors, self.updates.leaves[0]
            self._layouts[model] = {n: t for n, t in mine.items() if (n,) in there} | self._kept
        tensors = self._layouts[model]
        if self._output is None:
            return Nowhere(tensors[name].size)
        return self._output.room(tensors, name)

    def finish(self, weights: Vector) -> Path | None:
        """Complete the output with what is not combined, and give it its name."""
        if self._output is None:
            return None
        for path, leaf in self.updates.leaves[0].items():
            if leaf.kind != "float":
                self.updates.elect(path, weights, self.room(path))
        for name, tensor in self._kept.items():
            out = self._place(name)
            for start in range(0, tensor.size, _BLOCK):
                stop = min(start + _BLOCK, tensor.size)
                out[start:stop] = tensor.storage[start:stop]
        used = [self._checkpoints[party] for party in self.parties]
        for model in used:
            for file in model.files:
                file.check_unchanged()
        self._output.commit(used[int(np.argmax(weights))].metadata)
        return self._output.path

    def deliberate(
        self, method: Method, memory: Memory | None, seed: int | None, require: Require | None
    ) -> Consensus:
        """Aggregate, and once more without a party whose file fails while it is read."""
        while True:
            try:
                return deliberate(
                    self, method, memory, exact=self._exact, seed=seed, require=require
                )
            except UnreadableFileError as error:
                owners = (p for p, c in self._checkpoints.items() if error.file in c.files)
                party = next(owners, None)
                if party is None:
                    raise  # the centre's
                self.without({party: str(error)})


def _parsed(
    found: Mapping[str, StoredModel | UpdateError],
    base: StoredModel | None,
    chosen: Patterns | None,
    evidence: Patterns | None,
) -> Updates:
    """Return the models as updates; by name, so that the sample, and so the consensus, does not
    depend on how a model is cut into files."""

    def tensors(model: StoredModel) -> dict[str, Tensor]:
        return dict(sorted(model.tensors.items()))

    return parse(
        {p: c if isinstance(c, UpdateError) else tensors(c) for p, c in found.items()},
        None if base is None else tensors(base),
        chosen,
        evidence,
    )


def _opened(path: Path, files: ExitStack, kept: int) -> StoredModel | UpdateError:
    try:
        return open_model(path, files, kept)
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


def _shards(models: Sequence[StoredModel]) -> dict[str, str]:
    """Return the commonest way in which these models are cut into files."""
    ways = Counter(frozenset(c.shards.items()) for c in models if c.shards)
    return dict(ways.most_common(1)[0][0]) if ways else {}
