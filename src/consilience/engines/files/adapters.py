"""Adapters in files, merged into a PEFT folder or into a model.

Only the factors of the current modules are in memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from consilience.arrays import Array, Vector
from consilience.engines.adapters import Adapters, stored
from consilience.engines.files import peft
from consilience.engines.files.engine import Meter, in_pieces
from consilience.engines.files.model import StoredModel, nbytes
from consilience.engines.files.output import Output
from consilience.engines.files.stored import FileArray, Nowhere
from consilience.errors import ConsilienceError, UpdateError
from consilience.passes.factors import Factors
from consilience.text import shown
from consilience.updates.adapters import PREFIX, STACK, LoRA, Product, parse_adapters
from consilience.updates.tensors import Storage, Tensor, from_bfloat16
from consilience.updates.trees import Path as Key
from consilience.updates.usable import Updates

Found = Mapping[str, peft.StoredAdapter | UpdateError]
_BLOCK = 1 << 20  # numbers of a model formed or copied at once
METADATA = {"format": "pt"}  # as PEFT writes it for factors
_BASE = ".base_layer."  # in PEFT's names for tensors of layers that it wrapped


class FolderOfFactors(Adapters):
    """An engine over PEFT folders; its value is a PEFT folder."""

    def __init__(
        self,
        found: Found,
        center: peft.StoredAdapter | None,
        output: Output | None,
        meter: Meter,
        rank: int | str | None,
    ) -> None:
        self.adapters = {p: a for p, a in found.items() if isinstance(a, peft.StoredAdapter)}
        lora = LoRA(rank=rank, parties={p: a.lora for p, a in self.adapters.items()})
        super().__init__(in_pieces(_parsed(found, center, lora)), lora)
        self.output, self._meter, self.metadata = output, meter, METADATA
        self._layout: dict[str, Tensor] = {}
        total = sum(nbytes(leaves.values()) for leaves in map(dict, self._sent.leaves))
        meter.totals = {"evidence": total, "combination": total}

    def done(self, step: str, path: Key) -> None:
        """Report progress."""
        pairs = [self._product(j, path) for j in range(len(self.parties))]
        self._meter.advance(step, sum(nbytes((pair.left, pair.right)) for pair in pairs))

    def begin(self, ranks: Mapping[Key, int]) -> None:
        """Prepare a value with factors of these ranks."""
        super().begin(ranks)
        self._layout = {}
        for path, leaf in self._sent.leaves[self._sent.template].items():
            self._layout[path[0]] = leaf
        for path in self.modules:
            for (name,), outline in self.outlines(path).items():
                self._layout[name] = outline
        self.lay_out()

    def lay_out(self) -> None:
        """Lay out the output before several threads write to it."""
        if self.output is not None:
            self.output.lay_out(self._layout)

    def keep(self, path: Key, factors: Factors) -> None:
        """Write the factors of a module."""
        for (name,), like, values in self.written(path, factors):
            self.place(name)[:] = stored(values, like.dtype)

    def place(self, name: str) -> FileArray | Nowhere:
        """Return the place of a tensor in the output."""
        if self.output is None:
            return Nowhere(self._layout[name].size)
        return self.output.room(self._layout, name)

    def room(self, path: Key) -> Storage:
        """Return the place of a tensor beside the factors."""
        bias = isinstance(self.updates.leaves[0][path].storage, np.ndarray)
        return super().room(path) if bias else self.place(path[0])

    def finish(self, weights: Vector) -> Path | None:
        """Complete the output and give it its name."""
        self.elect(weights)
        for path, (like, values) in self.biases().items():
            self.place(path[0])[:] = stored(values, like.dtype)
        return self.committed(weights)

    def committed(self, weights: Vector) -> Path | None:
        """Give the output its name if the input files have not changed."""
        if self.output is None:
            return None
        used = [self.adapters[party] for party in self.parties]
        for adapter in used:
            for file in adapter.model.files:
                file.check_unchanged()
        self.describe(used, weights)
        self.output.commit(self.metadata)
        return self.output.path

    def describe(self, used: list[peft.StoredAdapter], weights: Vector) -> None:
        """Write the configuration beside the tensors."""
        assert self.output is not None
        ranks = {self.model(path).module: self._ranks[path] for path in self.modules}
        configs, said = [adapter.config for adapter in used], [float(w) for w in weights]
        self.output.beside[peft.CONFIG] = peft.configuration(configs, said, ranks)


class IntoBase(FolderOfFactors):
    """An engine over PEFT folders; its value is their base model with the update added."""

    def __init__(
        self,
        found: Found,
        center: peft.StoredAdapter | None,
        base: StoredModel,
        output: Output | None,
        meter: Meter,
        rank: int | str | None,
    ) -> None:
        super().__init__(found, center, output, meter, STACK if rank is None else rank)
        self.base, self.metadata, self._said = base, METADATA | base.metadata, center
        self._turned = self._which_are_turned()
        for path in self.updates.leaves[0]:
            if path not in self._turned:
                self._check_plain(path)

    def begin(self, ranks: Mapping[Key, int]) -> None:
        """Prepare a model like the base."""
        self._turned = self._which_are_turned()  # again: more parties may be rejected by now
        Adapters.begin(self, ranks)
        self._layout = dict(self.base.tensors)
        self.lay_out()

    def keep(self, path: Key, factors: Factors) -> None:
        """Write a matrix of the base plus its update."""
        left, right = (factor.astype(np.float64) for factor in factors)
        if self._turned[path]:
            left, right = right.T, left.T
        name = self._matrix(path)
        before = self.base.tensors[name]
        height, width = len(left), right.shape[1]
        rows = max(1, _BLOCK // width)
        for start in range(0, height, rows):
            stop = min(height, start + rows)
            self._add(before, name, (left[start:stop] @ right).reshape(-1), start * width)

    def room(self, path: Key) -> Storage:
        """Return the place of a tensor beside the factors: that of the same tensor of the base."""
        name = self._name(path)
        if isinstance(self.updates.leaves[0][path].storage, np.ndarray):  # a bias of B
            return Adapters.room(self, path)
        if name in map(self._matrix, self.modules):
            return Nowhere(self.base.tensors[name].size)  # not the parties' copy of the base
        like = self._leaf(self._plain.template, path)
        return _Converted(self.place(name), like.dtype, self.base.tensors[name].dtype)

    def finish(self, weights: Vector) -> Path | None:
        """Copy the rest of the base, and give the output its name."""
        self.elect(weights)
        if self.output is not None:
            biases = {path: self._name(path) for path in self.biases()}
            trained = {self._name(path) for path in self._plain.leaves[0] if path not in biases}
            for path, name in biases.items():
                before = self.base.tensors[name]
                if name in trained:  # the layer's own bias, beside that of B
                    before = replace(before, storage=self.place(name))
                self._add(before, name, self._value[path], 0)
            changed = {*map(self._matrix, self.modules), *trained, *biases.values()}
            for name in (name for name in self.base.tensors if name not in changed):
                self._copy(name)
        return self.committed(weights)

    def describe(self, used: list[peft.StoredAdapter], weights: Vector) -> None:
        """Write nothing: the configuration is that of the model."""

    def _matrix(self, path: Key) -> str:
        return f"{self._product(0, path).module}.weight"

    def _name(self, path: Key) -> str:
        """Return the base's name for a tensor beside the factors."""
        name = str(path[0]).removeprefix(PREFIX).replace(_BASE, ".")
        return f"{name.removesuffix('.lora_B.bias')}.bias" if ".lora_B.bias" in name else name

    def _which_are_turned(self) -> dict[Key, bool]:
        """Tell by module whether the base holds its matrix transposed.

        The centre decides, if it says so, or else most of the accepted parties: unsaid is false, as
        PEFT has it.
        """
        voters = [self.adapters[party].config for party in self.parties]
        if self._said is not None and "fan_in_fan_out" in self._said.config:
            voters = [self._said.config]
        turned = 2 * sum(bool(one.get("fan_in_fan_out")) for one in voters) > len(voters)
        return {path: self._is_turned(path, turned) for path in self.modules}

    def _is_turned(self, path: Key, linear: bool) -> bool:
        """Tell whether the base holds a matrix transposed; raise if it holds none that fits."""
        product, name = self._product(0, path), self._matrix(path)
        turned = product.embedding or linear
        shape = self._leaf(0, path).shape
        expected = shape[::-1] if turned else shape
        if name not in self.base.tensors:
            raise ConsilienceError(f"{shown(self.base.path)}: no tensor '{shown(name)}' to add to")
        found = self.base.tensors[name]
        if found.shape != expected or found.kind != "float":
            raise ConsilienceError(
                f"{shown(self.base.path)}: tensor '{shown(name)}' is {found.dtype} of shape "
                f"{found.shape}, the adapters are for floats of shape {expected}"
            )
        return turned

    def _check_plain(self, path: Key) -> None:
        name, leaf = self._name(path), self._leaf(0, path)
        found = self.base.tensors.get(name)
        if found is None or found.shape != leaf.shape or found.kind != leaf.kind:
            said = "is not there" if found is None else f"is {found.dtype} of shape {found.shape}"
            raise ConsilienceError(
                f"{shown(self.base.path)}: tensor '{shown(name)}' {said}, the adapters bring "
                f"one of shape {leaf.shape}"
            )

    def _add(self, before: Tensor, name: str, values: Array, start: int) -> None:
        stop = start + len(values)
        summed = before.floats(start, stop) + values
        self.place(name)[start:stop] = stored(summed, before.dtype)

    def _copy(self, name: str) -> None:
        base, place = self.base.tensors[name], self.place(name)
        for start in range(0, base.size, _BLOCK):
            stop = min(base.size, start + _BLOCK)
            place[start:stop] = base.read(start, stop)


@dataclass(frozen=True)
class _Converted:
    """A place that converts numbers to its dtype."""

    place: FileArray | Nowhere
    given: str
    kept: str
    written = True

    def __setitem__(self, span: slice, values: Array) -> None:
        floats = from_bfloat16(values) if self.given == "bfloat16" else values
        whole = not np.issubdtype(floats.dtype, np.floating)
        self.place[span] = floats if whole else stored(floats, self.kept)


def _parsed(found: Found, center: peft.StoredAdapter | None, lora: LoRA) -> Updates:
    """Return the adapters as updates; reject those for another base, and those whose ranks differ
    from their configuration."""
    sound = {p: a for p, a in found.items() if isinstance(a, peft.StoredAdapter)}
    odd = peft.disagreements(sound, center)
    given: dict[str, Any] = {}
    for party, adapter in found.items():
        if isinstance(adapter, UpdateError):
            given[party] = adapter
        elif party in odd:
            given[party] = UpdateError(odd[party])
        else:
            given[party] = dict(sorted(adapter.model.tensors.items()))
    around = None if center is None else dict(sorted(center.model.tensors.items()))
    updates = parse_adapters(given, around, lora, None if center is None else center.lora)
    return updates.without(_misranked(updates, sound))


def _misranked(updates: Updates, adapters: Mapping[str, peft.StoredAdapter]) -> dict[str, str]:
    bad = {}
    for party, leaves in zip(updates.parties, updates.leaves, strict=True):
        products = [x.storage for x in leaves.values() if isinstance(x.storage, Product)]
        try:
            peft.check_ranks(adapters[party], {p.module: p.rank for p in products})
        except UpdateError as error:
            bad[party] = str(error)
    return bad
