"""Low-rank adapters, judged and summed as the updates ΔW = s·B·A, which are never formed.

The distances are exact: they come from products of the factors, whose ranks may differ. The
consensus is an adapter again: the sum Σ w_j s_j B_j A_j as stacked factors, or the nearest adapter
of a lower rank. Tensors beside the factors (biases, whole layers) are judged and summed together
with them, as by `in_process`.

A sum of products can only be formed whole. So coordinate-wise rules are refused, and there is no
corroboration (see `passes.corroborate`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from statistics import median_low
from threading import local
from typing import Any

import numpy as np

from consilience.arrays import Array, Matrix, Positions, Vector
from consilience.engines.in_process import InProcess
from consilience.errors import ConsilienceError, UpdateError
from consilience.estimators.coordinatewise import TrimmedMean
from consilience.evidence import FARTHEST, Block, Evidence, Layers
from consilience.passes.blas import one_thread
from consilience.passes.combine import combine
from consilience.passes.corroborate import Witnesses, witnesses_of
from consilience.passes.factors import (
    Factors,
    Grams,
    Stack,
    cut,
    grams_of,
    inner_products,
    padded,
    whole,
)
from consilience.passes.observe import TOLD, by_tensor, faint, observe, screened
from consilience.passes.parallel import in_order
from consilience.updates.adapters import STACK, Bias, LoRA, Product, factored
from consilience.updates.tensors import LARGEST, LARGEST_OF, Storage, Tensor, to_bfloat16
from consilience.updates.trees import Leaves, Path, unflatten
from consilience.updates.usable import Updates, log_rejected

# Factors this many times as large as their product cancel each other, and leave only rounding. For
# an honest adapter the ratio is about √r.
_CANCELLED = 1e5
_KEPT = 1 << 23  # most numbers to keep from the evidence for the sum


class Adapters(InProcess):
    """An engine over adapters (see `deliberation.Engine`)."""

    linear = True

    def __init__(self, updates: Updates, lora: LoRA) -> None:
        super().__init__(updates)
        self.lora = lora
        self.modules = tuple(p for p in self.updates.floats if _is_product(self._leaf(0, p)))
        self._gram: Matrix = np.zeros((0, 0))  # inner products, (J+1, J+1), the centre's last
        # By module: inner products, and the Gram matrices they come from, if not too large to keep.
        self._inner: dict[Path, Matrix] = {}
        self._grams: dict[Path, Grams] = {}
        self._ranks: Mapping[Path, int] = {}  # of the modules of the value
        self._viewed = updates, (factored(updates), _without_products(updates))
        self._rooms = _Rooms()
        self.cut = 0.0  # share of the squared length of the consensus that was cut off

    def observe(self, random: np.random.Generator, *, exact: bool) -> Evidence:
        """Return the evidence, exact for the factors, and drop unusable updates."""
        with np.errstate(over="ignore", invalid="ignore"):
            self._gram, reach = self._measured()
        bad = self._unusable(reach)
        plain, block = self._plain, None
        if plain.size and not bad:
            good, evidence = observe(plain, random, exact=exact, tell=self.tell("evidence"))
            bad, (block,) = _dropped(plain, good), evidence.blocks
        if bad:
            self.updates = self.updates.less(bad)
            return self.observe(random, exact=exact)
        distances, seen = _distances(self._gram), self._numbers
        if block is not None:
            distances, seen = distances + block.distances * plain.size, seen + block.count
        found = Block(self.parties, distances / self.size, min(seen, self.size))
        if faint(found):
            self.updates = replace(self.updates, faint=True)
        return Evidence((found,))

    def layers(self, reference: int, random: np.random.Generator) -> Layers | None:
        """Return the distances tensor by tensor, exact for the factors."""
        count = len(self.parties)
        known = {path: _distances(gram[:count, :count]) for path, gram in self._inner.items()}
        return by_tensor(self.updates, reference, random, known)

    def combine(
        self, weights: Vector, ring: Positions | None, witnesses: Witnesses | None
    ) -> tuple[Vector, Vector]:
        """Form the sum as factors; the distances in the ring come from the evidence."""
        assert witnesses is None, "a sum of products can only be formed whole"
        chosen = self._chosen(weights)
        ranks = {path: self._rank(path, chosen, weights) for path in self.modules}
        self.begin(ranks)

        def form(path: Path) -> float:
            stack, rank, lost = self._stack(path, chosen, weights), ranks[path], 0.0
            if len(stack.by) > rank:
                factors, lost = cut(stack, rank, self._grams_of(path, chosen, stack))
            else:
                factors = padded(whole(stack), rank, stack)
            self.keep(path, factors)  # at once, or finished factors would pile up
            self.done("combination", path)
            return lost * self._scale(path) ** 2

        with one_thread():
            lost = sum(in_order(form, self.modules))
        square = float(weights @ self._gram @ weights)
        self.cut = min(1.0, lost / square) if square > 0 else 0.0
        return self._with_plain(weights, ring)

    def _with_plain(self, weights: Vector, ring: Positions | None) -> tuple[Vector, Vector]:
        """Form the sum of the plain tensors; return the distances in the ring, over everything."""
        apart = np.zeros(len(self.parties))
        if ring is not None:
            apart[ring] = _distances(self._gram)[ring, np.roll(ring, 1)]
        plain = self._plain
        if plain.size:
            more, _ = combine(plain, weights, self._room, ring, self.tell("combination"))
            apart += more * plain.size
            if np.isnan(more).any():
                self.updates = self.updates.less(_dropped(plain, screened(plain)))
        return apart / self.size, np.zeros(len(apart))

    def reduce(self, rule: TrimmedMean, *, exact: bool) -> tuple[Vector, Vector]:
        """Refuse: the coordinates of a product are never formed."""
        raise ConsilienceError(
            "adapters are judged and summed as products of their factors, and coordinate-wise "
            "rules need every coordinate: choose another method, such as geometric-median"
        )

    def begin(self, ranks: Mapping[Path, int]) -> None:
        """Prepare a value with factors of these ranks."""
        self._value, self._ranks = {}, ranks

    def keep(self, path: Path, factors: Factors) -> None:
        """Store the factors of a module of the value."""
        for at, like, values in self.written(path, factors):
            # A copy: what was not converted may lie in memory that is used again.
            self._value[at] = stored(values, like.dtype).copy()

    def written(self, path: Path, factors: Factors) -> list[tuple[Path, Tensor, Array]]:
        """Return the path, outline and numbers of each factor of a module of the value."""
        outlines = self.outlines(path)
        paths = self.model(path).paths
        return [(at, outlines[at], values) for at, values in zip(paths, factors, strict=True)]

    def outlines(self, path: Path) -> Leaves:
        """Return tensors with the shapes and dtypes of the factors of a module of the value."""
        model, rank = self.model(path), self._ranks[path]
        left, right = model.left, model.right
        shapes = (left.shape[0], rank, *left.shape[2:]), (rank, *right.shape[1:])
        like = (replace(f, shape=s) for f, s in zip((left, right), shapes, strict=True))
        return dict(zip(model.paths, like, strict=True))

    def model(self, path: Path) -> Product:
        """Return the template for the factors of a module of the value."""
        product: Product = self._leaf(self._sent.template, path).storage
        return product

    def room(self, path: Path) -> Storage:
        """Return uninitialised storage for a tensor beside the factors."""
        return self._leaf(self._plain.template, path).empty()

    def done(self, step: str, path: Path) -> None:
        """Report that a module is done."""

    def biases(self) -> dict[Path, tuple[Tensor, Array]]:
        """Return the consensus of the biases of B, without the scale that multiplies them."""
        found = {}
        for path, leaf in self.updates.leaves[0].items():
            if isinstance(leaf.source, Bias):
                like = self._leaf(self._sent.template, path).source.sent
                found[path] = like, self._value[path] / self._scale((leaf.source.module,))
        return found

    def finish(self, weights: Vector) -> Any:
        """Return the adapter in the form in which the parties sent theirs."""
        self.elect(weights)
        for path, (like, values) in self.biases().items():
            self._value[path] = stored(values, like.dtype)
        leaves = dict(self._sent.leaves[self._sent.template])
        for path in self.modules:
            leaves |= self.outlines(path)
        made = {path: leaves[path].rebuild(storage) for path, storage in self._value.items()}
        return unflatten(self._sent.trees[self._sent.template], made)

    @property
    def rank(self) -> int:
        """The largest rank of a module of the value."""
        return max(self._ranks.values())

    @property
    def _sent(self) -> Updates:
        """The tensors as sent."""
        return self._views()[0]

    @property
    def _plain(self) -> Updates:
        """The tensors beside the factors."""
        return self._views()[1]

    def _views(self) -> tuple[Updates, Updates]:
        """Return both views, which change only with the parties."""
        if self._viewed[0] is not self.updates:
            self._viewed = self.updates, (factored(self.updates), _without_products(self.updates))
        return self._viewed[1]

    @property
    def _numbers(self) -> float:
        """How many numbers the factors of a typical party have: its degrees of freedom, which are
        fewer than the coordinates of its update."""
        products = [[self._product(j, path) for path in self.modules] for j in self._everybody]
        return float(median_low([sum(p.numbers for p in of) for of in products]))

    @property
    def _everybody(self) -> range:
        return range(len(self.parties))

    @property
    def _points(self) -> range:
        """The positions of the parties, and of the centre if there is one."""
        return range(len(self.parties) + (self.updates.center is not None))

    def _ranks_of(self, path: Path) -> list[int]:
        return [self._product(j, path).rank for j in self._points]

    def _scale(self, path: Path) -> float:
        return self.lora.scale(self.model(path).module, self._ranks[path])

    def _leaf(self, point: int, path: Path) -> Tensor:
        """Return a tensor of a party, or of the centre, which has the last position."""
        if point < len(self.parties):
            return self.updates.leaves[point][path]
        assert self.updates.center is not None
        return self.updates.center[path]

    def _product(self, point: int, path: Path) -> Product:
        product: Product = self._leaf(point, path).storage
        return product

    def _measured(self) -> tuple[Matrix, Vector]:
        """Return the inner products of the updates, the centre's last; and for each update the
        bound on its squared length that the lengths of its factors give."""
        count, points = len(self.parties), len(self._points)
        ranks = {path: self._ranks_of(path) for path in self.modules}
        squares = sum(sum(of) ** 2 for of in ranks.values())
        keep = 2 * squares <= _KEPT and self.lora.rank != STACK
        told = len(ranks) * count**2 <= TOLD

        def measure(path: Path) -> tuple[Matrix, Vector]:
            found = inner_products(
                ranks[path], lambda some, room: self._stack(path, some, room=room)
            )
            if keep and found.grams is not None:
                self._grams[path] = found.grams
            if told:
                self._inner[path] = found.products
            self.done("evidence", path)
            return found.products, found.reach

        self._grams, self._inner = {}, {}
        gram, reach = np.zeros((count + 1, count + 1)), np.zeros(count + 1)
        with one_thread():
            for mine, lengths in in_order(measure, self.modules):
                gram[:points, :points] += mine
                reach[:points] += lengths
        return gram, reach

    def _stack(
        self, path: Path, points: Sequence[int], weights: Vector | None = None, room: int = 0
    ) -> Stack:
        """Return the factors of some points and their multipliers: their scales, or with weights
        their coefficients in the value. They are valid until the thread's memory is reused."""
        products = [self._product(j, path) for j in points]
        scales = np.array([product.scale for product in products])
        if weights is not None:
            scales *= weights[list(points)] / self._scale(path)
        ranks, like = [product.rank for product in products], products[0]
        wide = any(factor.wide for p in products for factor in (p.left, p.right))
        shapes = (like.height, sum(ranks)), (sum(ranks), like.width)
        left, right = self._rooms.take(room, shapes, wide=wide)
        at = 0
        for product, rank in zip(products, ranks, strict=True):
            product.read_into(left[:, at : at + rank], right[at : at + rank])
            at += rank
        return Stack(left, right, np.repeat(scales, ranks))

    def _grams_of(self, path: Path, points: Sequence[int], stack: Stack) -> Grams:
        """Return the Gram matrices of stacked factors, kept from the evidence or computed again."""
        if path not in self._grams:
            return grams_of(stack)
        if len(points) == len(self._points):
            return self._grams[path]
        chosen = np.repeat(np.isin(self._points, points), self._ranks_of(path))
        return self._grams[path].of(np.flatnonzero(chosen))

    def _unusable(self, reach: Vector) -> dict[str, str]:
        """Return the parties with unusable factors, with reasons."""
        squares = np.diag(self._gram)
        sound = (squares <= FARTHEST * self.size) & (reach <= _CANCELLED**2 * squares)
        if sound[:-1].all():
            if not np.isfinite(self._gram).all():
                raise UpdateError("the centre is too far from the updates to compare them with it")
            return {}
        sent = self._sent
        bad = _dropped(sent, screened(sent, ~sound[:-1]))
        unsound = [j for j in np.flatnonzero(~sound[:-1]) if self.parties[j] not in bad]
        unread = {}
        for j in unsound:
            why = f"its factors make numbers above {LARGEST:g}"
            if squares[j] <= FARTHEST * self.size:
                why = "its factors cancel each other: of what they make only rounding is left"
            unread[self.parties[j]] = why
        log_rejected(unread)
        return bad | unread

    def _chosen(self, weights: Vector) -> list[int]:
        """Return the positions with nonzero weight, the centre's included."""
        there = weights != 0
        there[-1] &= self.updates.center is not None
        return [int(j) for j in np.flatnonzero(there)] or [0]

    def _rank(self, path: Path, chosen: Sequence[int], weights: Vector) -> int:
        """Return the rank of a module in the value."""
        total = sum(self._product(j, path).rank for j in chosen)
        if self.lora.rank == STACK:
            return total
        model = self._product(0, path)
        most = min(total, model.height, model.width)
        if isinstance(self.lora.rank, int):
            return min(self.lora.rank, most)
        if self.updates.center is not None:
            return self._product(len(self.parties), path).rank
        heavy = np.flatnonzero(witnesses_of(weights[:-1]))
        return min(most, max(self._product(int(j), path).rank for j in heavy))


class _Rooms(local):
    """Memory that a thread reuses. The system clears new memory, which takes as long as reading
    into it."""

    def __init__(self) -> None:
        self._rooms: dict[int, Array] = {}

    def take(self, room: int, shapes: Sequence[tuple[int, int]], *, wide: bool) -> Iterator[Array]:
        """Yield matrices of these shapes, in double precision if wide, with whatever the memory
        held before."""
        dtype = np.dtype(np.float64 if wide else np.float32)
        ends = np.cumsum([0, *(m * n * dtype.itemsize for m, n in shapes)]).tolist()
        if room not in self._rooms or len(self._rooms[room]) < ends[-1]:
            self._rooms[room] = np.empty(ends[-1], np.uint8)
        for (start, stop), shape in zip(pairwise(ends), shapes, strict=True):
            yield self._rooms[room][start:stop].view(dtype).reshape(shape)


def stored(values: Array, dtype: str) -> Array:
    """Return numbers in a dtype, flat and clipped to its range."""
    flat = values.reshape(-1)
    largest = LARGEST_OF.get(dtype, np.inf)
    if not np.abs([flat.min(initial=0), flat.max(initial=0)]).max() <= largest:
        flat = flat.clip(-largest, largest)
    return to_bfloat16(flat) if dtype == "bfloat16" else flat.astype(dtype, copy=False)


def _without_products(updates: Updates) -> Updates:
    def plain(leaves: Leaves) -> Leaves:
        return {path: leaf for path, leaf in leaves.items() if not _is_product(leaf)}

    center = None if updates.center is None else plain(updates.center)
    return replace(updates, leaves=tuple(map(plain, updates.leaves)), center=center)


def _is_product(leaf: Tensor) -> bool:
    return isinstance(leaf.storage, Product)


def _dropped(before: Updates, after: Updates) -> dict[str, str]:
    return {p: after.rejected[p] for p in before.parties if p not in after.parties}


def _distances(gram: Matrix) -> Matrix:
    squares = np.diag(gram)
    distances = np.maximum(squares[:, None] + squares - 2 * gram, 0.0)
    np.fill_diagonal(distances, 0.0)
    return distances
