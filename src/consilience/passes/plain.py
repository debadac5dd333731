"""The loops of `_loops.c` in plain numpy, for machines without a compiler.

A row holds one party's numbers in one tensor, uncopied, with the code of its dtype: f for float32,
d for float64, e for float16, b for bfloat16 (which numpy reads as uint16). ``wide`` asks for double
precision.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from consilience.arrays import Array, Matrix, Positions, Vector
from consilience.updates.tensors import LARGEST_OF, from_bfloat16, to_bfloat16

How = tuple[float, float, float, float, float, float, float, float]  # see `descend`

_CHUNK = 1 << 14  # columns at a time, so that the work stays in the cache
_NAMES = {"f": "float32", "e": "float16", "b": "bfloat16"}


def gram(rows: Sequence[Array | None], codes: bytes, about: int, total: Array, wide: bool) -> None:
    """Add the lower triangle of the rows' inner products to ``total``, (P, P).

    The row ``about`` is subtracted from all of them; −1: none is. A row that is None is zero.
    """
    length = next((len(row) for row in rows if row is not None), 0)
    for at in range(0, length, _CHUNK):
        X = np.zeros((len(rows), min(_CHUNK, length - at)), float if wide else np.float32)
        for x, row, code in zip(X, rows, codes.decode(), strict=True):
            if row is not None:
                x[:] = _numbers(row[at : at + _CHUNK], code)
        if about >= 0:
            X -= X[about].copy()
        total += np.tril(X @ X.T)


def combine(
    rows: Sequence[Array],
    codes: bytes,
    weights: Vector,
    out: Array,
    code: bytes,
    squares: Vector | None,
    wide: bool,
) -> bool:
    """Write Σ_j w_j x_j to ``out``, rounded to its dtype; tell whether it is finite everywhere.

    If ``squares`` is given, it has a number for each of the first rows: add to it the row's squared
    distance from the row before, for the first row from the last of them.
    """
    finite, ring = True, 0 if squares is None else len(squares)
    for at in range(0, len(out), _CHUNK):
        place = out[at : at + _CHUNK]
        some = [row[at : at + _CHUNK] for row in rows]
        good = False
        for dtype in [float] if wide else [np.float32, float]:
            y, found = _combined(some, codes, weights, np.zeros(len(place), dtype), ring)
            good = bool(np.isfinite(y).all() and np.isfinite(found).all())
            _store(y, place, code)
            if good:
                break
        finite &= good
        if squares is not None and good:
            squares += found
    return finite


def trim(
    rows: Sequence[Array],
    codes: bytes,
    cut: int,
    out: Array,
    code: bytes,
    every: int,
    shares: Vector,
    squares: Vector,
    wide: bool,
) -> int:
    """Write the mean of each column without its ``cut`` least and ``cut`` greatest to ``out``.

    Add each row's share in the result, and its squared distance from it. Return the number of
    columns these were taken from, or −1 if something is not finite. ``every`` allows the compiled
    loop to skip columns; here all are used.
    """
    finite = True
    for at in range(0, len(out), _CHUNK):
        X = np.array(
            [_numbers(r[at : at + _CHUNK], c) for r, c in zip(rows, codes.decode(), strict=True)],
            float,
        )
        kept = np.sort(X, axis=0)[cut : len(X) - cut]
        with np.errstate(over="ignore", invalid="ignore"):
            y = kept.mean(axis=0)
            finite &= bool(np.isfinite(X).all() and np.isfinite(y).all())
            _store(y, out[at : at + _CHUNK], code)
            inside = (kept[0] <= X) & (kept[-1] >= X)
            shares += inside @ (1.0 / np.maximum(inside.sum(axis=0), 1))
            squares += np.square(X - y).sum(axis=1)
    return len(out) if finite else -1


def descend(
    pairs: tuple[Matrix, Matrix], start: Vector, ends: Matrix, levels: Vector, how: How
) -> tuple[int, float]:
    """Write where a fit from this start ends to ``levels``; `estimators.levels` has the equations.

    The pairs are the distances and how often each two met, both symmetric. Return the number of
    iterations and the objective: infinity if the fit meets one of the known ``ends``, (E, J).
    """
    bar, exact, hardening, tolerance, most, pull, least, same = how
    D, met = pairs
    bar, iterations, levels[:] = max(exact, bar), 0, start
    while iterations < most:
        iterations += 1
        before = levels.copy()
        levels[:] = np.maximum(_improved(D, met, before, start, bar, pull), least)
        if bar == exact and _apart(levels, before) < tolerance:
            break
        if any(_apart(levels, end) < same for end in ends):
            return iterations, np.inf
        bar = max(exact, hardening * bar)
    misfit = np.abs(1 - D / np.add.outer(levels, levels))
    return iterations, float(np.vdot(np.sqrt(np.maximum(misfit, exact)), met))


def _improved(
    D: Matrix, met: Matrix, levels: Vector, start: Vector, bar: float, pull: float
) -> Vector:
    """Return the levels that solve the least squares reweighted at these."""
    from scipy.linalg.lapack import dposv  # here, as its import takes longer than all others

    p = np.add.outer(levels, levels)
    misfit = np.maximum(np.abs(p - D), bar * p)
    V = met / (np.sqrt(p * misfit) * misfit)
    diagonal = V.sum(axis=1)
    right = np.vecdot(V, D) + pull * diagonal * start
    np.fill_diagonal(V, (1 + pull) * diagonal)
    found: Vector = dposv(V, right)[1]
    return found


def _apart(levels: Vector, others: Vector) -> float:
    return float(np.max(np.abs(levels - others) / (levels + others)))


def corroborate(
    rows: Sequence[Array],
    codes: bytes,
    weights: Vector,
    witnesses: bytes,
    headroom: float,
    out: Array,
    code: bytes,
    squares: Vector | None,
    alone: Vector,
    wide: bool,
) -> bool:
    """As `combine`, but no row counts far beyond the witnesses.

    In each column the first rows are clipped to the range from the second least to the second
    greatest of the witnesses, widened on each side by ``headroom`` times its width. ``witnesses``
    has a byte for each of these rows, at least three of them not zero. Add the squares of what was
    clipped to ``alone``.
    """
    finite, parties = True, len(witnesses)
    those = np.flatnonzero(np.frombuffer(witnesses, np.uint8))
    for at in range(0, len(out), _CHUNK):
        X = np.array(
            [_numbers(r[at : at + _CHUNK], c) for r, c in zip(rows, codes.decode(), strict=True)],
            float,
        )
        with np.errstate(over="ignore", invalid="ignore"):
            ends = np.sort(X[those], axis=0)
            least, most = ends[1], ends[-2]
            beyond = headroom * most - headroom * least
            heard = np.vstack([X[:parties].clip(least - beyond, most + beyond), X[parties:]])
            y = weights @ heard
            cut = np.square(X - heard).sum(axis=1)[:parties]
            apart = np.zeros(0)
            if squares is not None:
                ring = X[: len(squares)]
                apart = np.square(ring - np.roll(ring, 1, axis=0)).sum(axis=1)
        _store(y, out[at : at + _CHUNK], code)
        good = bool(np.isfinite(X).all() and np.isfinite(y).all())
        good &= bool(np.isfinite(cut).all() and np.isfinite(apart).all())
        finite &= good
        if good:
            alone += cut
            if squares is not None:
                squares += apart
    return finite


def look(
    rows: Sequence[Array], codes: bytes, places: Positions, out: Matrix, at: int, wide: bool
) -> None:
    """Write each row's numbers at some places to ``out``, (J, N), from column ``at`` on."""
    for line, row, code in zip(out, rows, codes.decode(), strict=True):
        line[at : at + len(places)] = _numbers(row[places], code)


def _numbers(row: Array, code: str) -> Array:
    return from_bfloat16(row) if code == "b" else row


@np.errstate(over="ignore", invalid="ignore")
def _combined(
    rows: Sequence[Array], codes: bytes, weights: Vector, y: Array, ring: int
) -> tuple[Array, Vector]:
    """Add the sum to ``y``; return it, and the squared distances along the ring."""
    X = [_numbers(x, c).astype(y.dtype) for x, c in zip(rows, codes.decode(), strict=True)]
    for x, w in zip(X, weights, strict=True):
        if w != 0:
            y += y.dtype.type(w) * x
    apart = [X[j] - X[(j or ring) - 1] for j in range(ring)]
    return y, np.array([np.square(x).sum(dtype=float) for x in apart])


def _store(y: Array, out: Array, code: bytes) -> None:
    name = _NAMES.get(code.decode())
    if name is not None:
        y = y.clip(-LARGEST_OF[name], LARGEST_OF[name])
    out[:] = to_bfloat16(y) if name == "bfloat16" else y
