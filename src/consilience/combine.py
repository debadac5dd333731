"""The second pass over the updates: the weighted sum, and where it lies from a party."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from consilience.coordinatewise import TrimmedMean
from consilience.evidence import Vector
from consilience.tensors import Array, Tensor
from consilience.updates import Path, Updates

Storage = dict[Path, Array]

# Small enough that BLAS does not wake other threads for a sum that one finishes sooner.
_CHUNK = 1 << 13
_LONG_CHUNK = 1 << 15


def combine(updates: Updates, weights: Vector, centre_weight: float) -> Storage:
    """Return Σ_j w_j x_j plus the centre's share, tensor by tensor, in the updates' dtypes."""
    stack = updates.stack
    # numpy's product is in the machine's byte order, and slow for float16.
    native = stack is not None and stack.dtype.isnative and stack.dtype.itemsize >= 4
    if stack is not None and native and updates.center is None:
        return {updates.floats[0]: weights.astype(stack.dtype) @ stack}
    model = updates.leaves[updates.template()]
    terms = [(w, leaves) for w, leaves in zip(weights, updates.leaves, strict=True) if w != 0]
    if updates.center is not None and centre_weight != 0:
        terms.append((centre_weight, updates.center))
    return {
        path: _sum(model[path], [(float(w), leaves[path]) for w, leaves in terms])
        for path in updates.floats
    }


def _sum(model: Tensor, terms: list[tuple[float, Tensor]]) -> Array:
    from scipy.linalg import blas  # here, since it takes longer to import than all the rest

    wide = any(tensor.wide for _, tensor in terms)
    dtype, axpy = (np.float64, blas.daxpy) if wide else (np.float32, blas.saxpy)
    out: Array = model.empty()
    spare = np.empty(min(model.size, _CHUNK), dtype)
    total = np.empty_like(spare)
    for start in range(0, model.size, _CHUNK):
        stop = min(start + _CHUNK, model.size)
        piece = total[: stop - start]
        piece[:] = 0
        for weight, tensor in terms:
            axpy(tensor.piece(start, stop, spare), piece, a=weight)
        model.store(piece, out, start)
    return out


def reduce_coordinates(updates: Updates, rule: TrimmedMean) -> tuple[Storage, Vector, Vector]:
    """Return a coordinate-wise rule's value, each party's share in it and its squared distance."""
    count = len(updates.parties)
    shares, squares = np.zeros(count), np.zeros(count)
    buffer = np.empty(
        (count, max(256, _CHUNK // count)), np.float64 if updates.wide else np.float32
    )
    model = updates.leaves[updates.template()]
    value = {path: model[path].empty() for path in updates.floats}
    for path, out in value.items():
        for start in range(0, out.size, buffer.shape[1]):
            stop = min(start + buffer.shape[1], out.size)
            chunk = buffer[:, : stop - start]
            for row, leaves in zip(chunk, updates.leaves, strict=True):
                leaves[path].read(start, stop, row)
            reduced, share = rule.reduce(chunk)
            model[path].store(reduced, out, start)
            shares += share
            errors = np.subtract(chunk, reduced, dtype=np.float64)
            squares += np.einsum("jk,jk->j", errors, errors)
    return value, shares / updates.size, squares / updates.size


def distance(updates: Updates, value: Mapping[Path, Array], party: int) -> float:
    """Return the mean squared distance per coordinate of a value from a party's update."""
    model = updates.leaves[updates.template()]
    total = 0.0
    for path, out in value.items():
        mine, theirs = replace(model[path], storage=out), updates.leaves[party][path]
        dtype = np.float64 if mine.wide or theirs.wide else np.float32
        difference: Array = np.empty(min(out.size, _LONG_CHUNK), dtype)
        spare = np.empty_like(difference)
        for start in range(0, out.size, _LONG_CHUNK):
            x = mine.piece(start, start + _LONG_CHUNK, difference)
            y = theirs.piece(start, start + _LONG_CHUNK, spare)
            np.subtract(x, y, out=difference[: x.size])
            total += float(np.dot(difference[: x.size], difference[: x.size]))
    return total / updates.size
