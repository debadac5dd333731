"""The second pass over the updates: the weighted sum, and where each party lies from it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from consilience.coordinatewise import TrimmedMean, shares
from consilience.evidence import SHARE, SMALL, Vector
from consilience.parallel import in_order, stripes
from consilience.tensors import Array
from consilience.updates import Path, Updates

Storage = dict[Path, Array]
Spans = Sequence[tuple[int, int]]

# Numbers in a chunk: a megabyte stays in a core's cache, and BLAS leaves products of two rows with
# so many to the thread that asks.
_CHUNK = 1 << 18
_COLUMNS = 1 << 13  # in a chunk of a coordinate-wise rule: enough to hide what a call costs


def combine(
    updates: Updates, weights: Vector, *, measure: bool = False, near: bool = False
) -> tuple[Storage, Vector]:
    """Return y = Σ_j w_j x_j tensor by tensor, in the updates' dtypes, and the squared distances.

    ``weights`` ends with that of the centre. With ``measure``, the mean squared distance of y from
    every party and the centre is measured on the way, while the numbers are at hand. Expanded,
    ‖x − y‖² = ‖x‖² − 2xᵀy + ‖y‖² takes no copy, but loses the digits of parties much closer to y
    than to zero: they are ``near``.
    """
    model = updates.leaves[updates.template()]
    value = {path: model[path].empty() for path in updates.floats}
    count = len(weights) if updates.center is not None else len(weights) - 1
    chosen = np.arange(count) if measure else np.flatnonzero(weights[:count])
    dtype = np.dtype(np.float64 if updates.wide else np.float32)
    # Twice the same row: a product of one row is left to another kernel, that wakes threads.
    pair = np.repeat(weights[None, chosen].astype(dtype), 2, axis=0)
    width = max(64, _CHUNK // len(chosen))

    def sums(spans: Spans) -> Vector:
        squares = np.zeros(len(weights))
        buffer = np.empty((len(chosen), width), dtype)
        for start, stop in spans:
            rows = updates.rows(chosen, start, stop, buffer)
            y = pair @ rows
            for path, low, high, at in updates.pieces(start, stop):
                model[path].store(y[0, at : at + high - low], value[path], low)
            if measure:
                _add_squares(squares, rows, y, near)
        return squares

    total = np.zeros(len(weights))
    for squares in in_order(sums, stripes(updates.chunks(width), updates.size * len(chosen))):
        total += squares
        if not np.isfinite(total).all():
            break  # somebody's update is unusable: the rest of such a sum is not worth forming
    return value, total / updates.size


def _add_squares(squares: Vector, rows: Array, y: Array, near: bool) -> None:
    """Add the squared distances of the rows from y[0]; without a centre's row, that of zero."""
    length = float(y[0] @ y[0])
    if near:
        apart = rows - y[0]
        squares[: len(rows)] += np.vecdot(apart, apart)
    else:
        cross = (rows @ y.T)[:, 0].astype(float)
        squares[: len(rows)] += np.vecdot(rows, rows) - 2 * cross + length
    if len(rows) < len(squares):
        squares[-1] += length


def reduce_coordinates(
    updates: Updates, rule: TrimmedMean, *, exact: bool = False, precise: bool = False
) -> tuple[Storage, Vector, Vector]:
    """Return a coordinate-wise rule's value, each party's share in it and its squared distance.

    Where there are many coordinates, shares and distances are those of every sixteenth chunk,
    unless ``exact``. The distances are NaN if some number is too large for its square to exist,
    or none at all.
    """
    count, everybody = len(updates.parties), np.arange(len(updates.parties))
    model = updates.leaves[updates.template()]
    value = {path: model[path].empty() for path in updates.floats}
    dtype = np.dtype(np.float64 if updates.wide or precise else np.float32)
    width = max(1024, min(_COLUMNS, _CHUNK // count))
    told = 1 if exact or updates.size <= SMALL else SHARE

    def reduce(spans: Spans) -> tuple[Vector, Vector, int]:
        said, squares, seen = np.zeros(count), np.zeros(count), 0
        buffer = np.empty((2, count + 1, width), dtype)
        for start, stop in spans:
            rows, work = buffer[:, :, : stop - start]
            chunk = updates.rows(everybody, start, stop, rows[:-1])
            if not np.isfinite(np.vecdot(chunk, chunk)).all():
                return said, np.full(count, np.nan), 1
            np.copyto(work[:-1], chunk)
            reduced, least, greatest = rule.reduce(work[:-1], work[-1])
            for path, low, high, at in updates.pieces(start, stop):
                model[path].store(reduced[at : at + high - low], value[path], low)
            if start // width % told == 0:
                said += shares(chunk, least, greatest)
                apart = chunk - reduced
                squares += np.vecdot(apart, apart)
                seen += stop - start
        return said, squares, seen

    said, squares, seen = np.zeros(count), np.zeros(count), 0
    for found in in_order(reduce, stripes(updates.chunks(width), updates.size * count)):
        said, squares, seen = said + found[0], squares + found[1], seen + found[2]
    return value, said / seen, squares / seen
