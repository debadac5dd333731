"""Models in files, of any size, in little memory.

The same two passes as over arrays: the evidence from a sample of each file, then the sum, formed
piece by piece in the output. Only the current pieces are in memory.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from threading import Lock

import numpy as np

from consilience.arrays import Vector
from consilience.consensus import Consensus
from consilience.deliberation import deliberate
from consilience.engines.files.model import StoredModel, nbytes
from consilience.engines.files.output import Output
from consilience.engines.files.stored import FileArray, Nowhere, UnreadableFileError
from consilience.engines.in_process import InProcess
from consilience.errors import UpdateError
from consilience.estimators.catalogue import Method
from consilience.evidence import Evidence
from consilience.memory import Memory
from consilience.passes.sampling import sampled_spans
from consilience.require import Require
from consilience.updates.names import Patterns
from consilience.updates.parsing import parse
from consilience.updates.tensors import Tensor
from consilience.updates.trees import Path as Key
from consilience.updates.usable import Updates

AnyPath = str | os.PathLike[str]
# Called with the step ("evidence" or "combination"), the bytes done and the bytes in total. An
# exception from it ends the aggregation, with nothing written.
Progress = Callable[[str, int, int], None]

_SECONDS_BETWEEN_CALLS = 0.05
# Numbers a thread reads at once, 4 MB in single precision: with shorter reads, threads would wait
# for Python's lock.
_BLOCK = 1 << 20


class Meter:
    """Reports progress to the caller, not too often, from any thread."""

    def __init__(self, progress: Progress | None) -> None:
        self._progress = progress
        self._lock = Lock()
        self._step, self._done, self._called = "", 0, 0.0
        self.totals = {"evidence": 0, "combination": 0}

    def advance(self, step: str, count: int) -> None:
        """Add bytes to a step; a completed or different step starts anew."""
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
    """An engine over models in files, read piece by piece; the value is formed in a file."""

    def __init__(
        self,
        found: Mapping[str, StoredModel | UpdateError],
        base: StoredModel | None,
        output: Output | None,
        meter: Meter,
        chosen: Patterns | None = None,
        evidence: Patterns | None = None,
        *,
        exact: bool,
    ) -> None:
        super().__init__(_parsed(found, base, chosen, evidence))
        self._models = {p: m for p, m in found.items() if isinstance(m, StoredModel)}
        there = {name for (name,) in self.updates.leaves[0]}
        self._kept = {n: t for n, t in (base.tensors if base else {}).items() if n not in there}
        self._layouts: dict[str, dict[str, Tensor]] = {}  # party -> tensors of an output like its
        self._output, self._meter = output, meter
        self._all = exact  # whether the evidence is from all coordinates
        self.updates = in_pieces(self.updates)

    def observe(self, random: np.random.Generator, *, exact: bool) -> Evidence:
        """Return the evidence, and drop unusable updates."""
        self._all = exact
        return super().observe(random, exact=exact)

    def _totals(self) -> dict[str, int]:
        """Return the number of bytes in each step."""
        size, count, width = self.size, len(self.parties), self._width
        spans = [(0, size)]
        if not self._all:  # the places are not known here, but their number is
            spans = sampled_spans(size, count, np.random.default_rng(0))
        seen = sum(stop - start for start, stop in spans)
        return {"evidence": seen * count * width, "combination": self.updates.size * width}

    @property
    def _width(self) -> int:
        """The approximate number of bytes per coordinate."""
        leaves = self.updates.leaves[0]
        return max(1, nbytes(leaves[path] for path in self.updates.floats) // self.updates.size)

    def tell(self, step: str) -> Callable[[int], None]:
        """Return a function that is told how many coordinates of a step are done."""
        self._meter.totals = self._totals()
        times = self._width * (len(self.parties) if step == "evidence" else 1)
        return lambda count: self._meter.advance(step, count * times)

    def room(self, path: Key) -> FileArray | Nowhere:
        """Return the place of a tensor in the output."""
        (name,) = path
        return self._place(name)

    def _place(self, name: str) -> FileArray | Nowhere:
        party = self.parties[self.updates.template]
        if party not in self._layouts:
            mine, there = self._models[party].tensors, self.updates.leaves[0]
            self._layouts[party] = {n: t for n, t in mine.items() if (n,) in there} | self._kept
        tensors = self._layouts[party]
        if self._output is None:
            return Nowhere(tensors[name].size)
        return self._output.room(tensors, name)

    def finish(self, weights: Vector) -> Path | None:
        """Vote on what is not combined, complete the output, and give it its name."""
        if self._output is None:
            return None
        self.elect(weights)
        for name, tensor in self._kept.items():
            out = self._place(name)
            for start in range(0, tensor.size, _BLOCK):
                stop = min(start + _BLOCK, tensor.size)
                out[start:stop] = tensor.storage[start:stop]
        used = [self._models[party] for party in self.parties]
        for model in used:
            for file in model.files:
                file.check_unchanged()
        self._output.commit(used[int(np.argmax(weights))].metadata)
        return self._output.path


def in_pieces(updates: Updates) -> Updates:
    """Return updates of which only small pieces are read at a time."""
    return replace(updates, widest=max(1, _BLOCK // len(updates.parties)))


def deliberate_readable(
    engine: InProcess,
    models: Mapping[str, StoredModel],
    method: Method,
    memory: Memory | None,
    *,
    exact: bool,
    seed: int | None,
    require: Require | None,
) -> Consensus:
    """Aggregate; if a party's file fails during reading, do it again without that party."""
    while True:
        try:
            return deliberate(engine, method, memory, exact=exact, seed=seed, require=require)
        except UnreadableFileError as error:
            party = next((p for p, model in models.items() if error.file in model.files), None)
            if party is None:
                raise  # it is the centre's file
            engine.updates = engine.updates.without({party: str(error)})


def _parsed(
    found: Mapping[str, StoredModel | UpdateError],
    base: StoredModel | None,
    chosen: Patterns | None,
    evidence: Patterns | None,
) -> Updates:
    """Return the models as updates, sorted by name, so that sample and consensus do not depend on
    how a model is split into files."""

    def tensors(model: StoredModel) -> dict[str, Tensor]:
        return dict(sorted(model.tensors.items()))

    return parse(
        {p: m if isinstance(m, UpdateError) else tensors(m) for p, m in found.items()},
        None if base is None else tensors(base),
        chosen,
        evidence,
    )
