"""The second pass over the updates: the weighted sum, and a look at where it lies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from consilience.coordinatewise import FEW, TrimmedMean, shares
from consilience.evidence import SMALL, Block, Vector
from consilience.parallel import in_order, stripes
from consilience.tensors import Array
from consilience.trees import Path
from consilience.updates import Updates

Storage = dict[Path, Array]
Spans = Sequence[tuple[int, int]]

_CHUNK = 1 << 20  # numbers: a few megabytes last a call long enough for threads to take turns
_COLUMNS = 1 << 13  # in a chunk of a coordinate-wise rule: enough to hide what a call costs
_TOLD = 64  # chunks, of which one tells who contributed to a coordinate-wise rule
_EVERY = 12  # parties, of which one is in the jury


def combine(updates: Updates, weights: Vector, *, check: bool = False) -> tuple[Storage, float]:
    """Return y = Σ_j w_j x_j tensor by tensor, in the updates' dtypes, and how far off the jury is.

    ``weights`` ends with that of the centre. The jury is one party in twelve. With ``check``, the
    mean squared distance between y and the jury's mean is measured, in all coordinates: whatever
    hides between those that evidence was taken from, and matters, shows there (see `foretold`).
    It is not finite where an update is not. Every coordinate of y is formed all the same.
    """
    stack = updates.stack
    dtype = np.dtype(np.float64 if updates.wide else np.float32)
    centred = weights[-1] != 0 and updates.center is not None
    if stack is None or stack.dtype != dtype or centred or not weights[:-1].all():
        return _gathered(updates, weights, dtype, centred)
    jury, said = jury_of(weights)

    def squares(spans: Spans) -> float:
        total = 0.0
        for start, stop in spans:
            apart = np.einsum("j,jk->k", said.astype(dtype), stack[jury, start:stop])
            apart -= y[start:stop]
            total += float(np.einsum("k,k->", apart, apart))
        return total

    with np.errstate(over="ignore", invalid="ignore"):
        y = weights[:-1].astype(dtype) @ stack  # by BLAS, on all cores
        work = stripes(updates.chunks(_CHUNK // 8), updates.size * len(said)) if check else []
        total = sum(in_order(squares, work)) if check else float(y @ y)
    if not np.isfinite(total):  # too large for single precision, or no number
        return _gathered(updates, weights, dtype, centred)
    return {updates.floats[0]: y}, total / updates.size if check else 0.0


def _gathered(
    updates: Updates, weights: Vector, dtype: np.dtype[Any], centred: bool
) -> tuple[Storage, float]:
    """The same of updates that are not the rows of one array, read piece by piece by threads."""
    model = updates.leaves[updates.template()]
    value = {path: model[path].empty() for path in updates.floats}
    jury, said = jury_of(weights)
    opinion = np.zeros(len(weights) - 1)
    opinion[jury] = said
    chosen = np.flatnonzero((weights[:-1] != 0) | (opinion != 0))
    asked = np.flatnonzero(opinion[chosen])
    w, opinion = weights[chosen], opinion[chosen[asked]]
    width = max(256, _CHUNK // len(chosen))

    def formed(rows: Array, origin: Array | None) -> tuple[Array, float]:
        y = np.einsum("j,jk->k", w.astype(rows.dtype), rows)
        if origin is not None:
            y += rows.dtype.type(weights[-1]) * origin
        apart = y - np.einsum("j,jk->k", opinion.astype(rows.dtype), rows[asked])
        return y, float(np.einsum("k,k->", apart, apart))

    def sums(spans: Spans) -> float:
        total, buffer = 0.0, np.empty((len(chosen), width), dtype)
        for start, stop in spans:
            rows = updates.rows(chosen, start, stop, buffer)
            origin = updates.centre(start, stop, dtype) if centred else None
            y, square = formed(rows, origin)
            if not np.isfinite(square):  # too large for single precision, or no number
                y, square = formed(rows.astype(np.float64), origin)
            total += square
            for path, low, high, at in updates.pieces(start, stop):
                piece = model[path].within(y[at : at + high - low])
                model[path].store(piece, value[path], low)
        return total

    work = stripes(updates.chunks(width), updates.size * len(chosen))
    with np.errstate(over="ignore", invalid="ignore"):
        return value, sum(in_order(sums, work)) / updates.size


def jury_of(weights: Vector) -> tuple[slice, Vector]:
    """Return every twelfth party, of the twelve ways the one that weighs most, and what each has to
    say in the jury's mean. Where that would be to judge oneself, the next twelfth, equally."""
    parties = weights[:-1]
    totals = np.array([parties[way::_EVERY].sum() for way in range(min(_EVERY, len(parties)))])
    way = int(np.argmax(totals))
    if totals[way] < 0.9 * totals.sum():
        jury = slice(way, len(parties), _EVERY)
        return jury, parties[jury] / totals[way]
    jury = slice((way + 1) % len(totals), len(parties), _EVERY)
    return jury, np.full(len(parties[jury]), 1 / len(parties[jury]))


def foretold(weights: Vector, block: Block) -> float:
    """Return how far off the jury is, as the evidence has it.

    The jury's error is at most twelve times that of y (squared): so as little as would harm y
    shows, whoever hides it, unless it is in the jury's mean as it is in y.
    """
    jury, said = jury_of(weights)
    between = weights.copy()
    between[jury] -= said
    return float(-0.5 * between @ block.distances @ between)


def reduce_coordinates(
    updates: Updates, rule: TrimmedMean, *, exact: bool = False, precise: bool = False
) -> tuple[Storage, Vector, Vector]:
    """Return a coordinate-wise rule's value, each party's share in it and its squared distance.

    Where there are many coordinates, shares and distances are those of one chunk in so many, unless
    ``exact``. The distances are NaN, and the value is not to be used, if some number is too large
    for its square to exist, or none at all; not so where ``precise``, of screened updates.
    """
    count, everybody = len(updates.parties), np.arange(len(updates.parties))
    model = updates.leaves[updates.template()]
    value = {path: model[path].empty() for path in updates.floats}
    dtype = np.dtype(np.float64 if updates.wide or precise else np.float32)
    width = max(1024, min(_COLUMNS, _COLUMNS * FEW // count))
    told = 1 if exact or updates.size <= SMALL else _TOLD

    def reduce(spans: Spans) -> tuple[Vector, Vector, int]:
        said, squares, seen = np.zeros(count), np.zeros(count), 0
        buffer = np.empty((2, count + 1, width), dtype)
        for start, stop in spans:
            rows, work = buffer[:, :, : stop - start]
            chunk = updates.rows(everybody, start, stop, rows[:-1])
            if not (precise or np.isfinite(np.vecdot(chunk, chunk)).all()):
                return said, np.full(count, np.nan), 1
            np.copyto(work[:-1], chunk)
            reduced, least, greatest = rule.reduce(work[:-1], work[-1])
            for path, low, high, at in updates.pieces(start, stop):
                piece = model[path].within(reduced[at : at + high - low])
                model[path].store(piece, value[path], low)
            if start // width % told == 0:
                said += shares(chunk, least, greatest)
                apart = chunk - reduced
                squares += np.vecdot(apart, apart)
                seen += stop - start
        return said, squares, seen

    said, squares, seen = np.zeros(count), np.zeros(count), 0
    work = stripes(updates.chunks(width), updates.size * count)
    for found in in_order(reduce, work, 1 if count <= FEW else None):
        said, squares, seen = said + found[0], squares + found[1], seen + found[2]
    return value, said / seen, squares / seen
