"""The algebra of low-rank updates ΔW = L·R, from small products of their factors alone.

The inner product of two is a sum over an r×r' matrix, whatever the size of ΔW:

    ⟨L_i R_i, L_j R_j⟩ = Σ (L_iᵀ L_j) ∘ (R_i R_jᵀ)

Their sum is a product of stacked factors, [L_1 L_2 …]·[R_1; R_2; …], whose singular values follow
from the same small products. These are formed in float64, one tile of the factors at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from consilience.arrays import Array, Matrix, Vector

_TOGETHER = 1024  # total rank of the points whose factors are multiplied at once
_TILE = 1 << 16  # numbers converted at once: in float64 they fit into a core's own cache
# Pivots below this share of RRᵀ's largest diagonal entry are rounding: 10⁻⁷ of the largest length.
_NOTHING = 1e-14
# Sums are formed in single precision if their terms are at most this many times as long,
_CALM = 8.0
_LARGE = 1e9  # and rows have lengths within this factor of one: its range is 10^±38


class Factors(NamedTuple):
    """L (out, r) and R (r, in)."""

    left: Array
    right: Array


class Stack(NamedTuple):
    """The factors of several points in one matrix, and the multiplier of each rank-one term."""

    left: Array  # (out, Σr)
    right: Array  # (Σr, in)
    by: Vector  # (Σr,)


class Grams(NamedTuple):
    """The Gram matrices LᵀL and RRᵀ of stacked factors, (Σr, Σr)."""

    left: Matrix
    right: Matrix

    def of(self, terms: Array) -> Grams:
        """Return those of some rank-one terms, by position."""
        return Grams(*(gram[np.ix_(terms, terms)] for gram in self))


class Cut(NamedTuple):
    """A product, and the squared length of what was cut off."""

    factors: Factors
    lost: float


class Inner(NamedTuple):
    """The inner products of low-rank matrices, (J, J); for each matrix the bound ‖L‖²‖R‖² on its
    squared length; and the Gram matrices, unless there are several groups."""

    products: Matrix
    reach: Vector
    grams: Grams | None


# Loads the factors of some points into the first or the second room.
Load = Callable[[Sequence[int], int], Stack]


def inner_products(ranks: Sequence[int], load: Load) -> Inner:
    """Return the inner products of low-rank matrices."""
    size = len(ranks)
    products, reach = np.zeros((size, size)), np.zeros(size)
    groups = _groups(ranks)
    grams = None
    for n, mine in enumerate(groups):
        here, sizes = load(mine, 0), [ranks[j] for j in mine]
        for theirs in groups[:n]:
            there = load(theirs, 1)
            left, right = _across(here.left.T, there.left.T), _across(here.right, there.right)
            left *= np.outer(here.by, there.by)
            block = _summed(left * right, sizes, [ranks[j] for j in theirs])
            products[np.ix_(mine, theirs)] = block
            products[np.ix_(theirs, mine)] = block.T
        grams = grams_of(here)
        left = grams.left * np.outer(here.by, here.by)
        products[np.ix_(mine, mine)] = _summed(left * grams.right, sizes, sizes)
        lengths = (np.add.reduceat(np.diag(part), _starts(sizes)) for part in (left, grams.right))
        reach[mine] = np.prod(list(lengths), axis=0)
    return Inner(products, reach, grams if len(groups) == 1 else None)


def grams_of(stack: Stack) -> Grams:
    """Return the Gram matrices of stacked factors."""
    return Grams(_across(stack.left.T), _across(stack.right))


def whole(stack: Stack) -> Factors:
    """Return the stacked factors, in single precision if it can hold them."""
    dtype = np.float32 if _single(stack) else np.float64
    with np.errstate(over="ignore"):
        left: Array = np.multiply(stack.left, stack.by.astype(dtype), dtype=dtype)
    return Factors(left, stack.right.astype(dtype, copy=False))


def cut(stack: Stack, rank: int, grams: Grams) -> Cut:
    """Return the nearest product of lower rank; the rows of its R have the stack's median length.

    Pivoted Cholesky gives RRᵀ = F Fᵀ, so R = F Q, where Q has orthonormal rows. (A QR decomposition
    gives the same, and takes ten times as long.) Then LR = (LF) Q has the singular values of LF.
    Their squares are the eigenvalues of the small matrix Fᵀ LᵀL F. With its leading eigenvectors W
    the nearest product is (LF) W · Wᵀ Q. Squaring R loses less than 10⁻⁷ of its rows' length.
    """
    left, right = grams.left * np.outer(stack.by, stack.by), grams.right
    columns, rows = (np.sqrt(np.diag(gram)) for gram in (left, right))
    there = (columns > 0) & (rows > 0)
    even = np.sqrt(np.divide(columns, rows, out=np.ones_like(rows), where=there))
    forth, back = _halves(right * np.outer(even, even))
    forth, back = forth / even[:, None], back * even  # undo the scaling
    squares, kept = np.linalg.eigh(forth.T @ left @ forth)
    squares, kept = np.maximum(squares[::-1], 0.0), kept[:, ::-1][:, :rank]
    row = float(np.median(rows)) or 1.0
    by_left, by_right = kept.T @ forth.T / row, kept.T @ back * row
    values = np.sqrt(squares[: len(kept.T)])
    terms = [_length(by_left, columns) * row, _length(by_right, rows) / row * values]
    calm = np.max(terms, initial=0.0) <= _CALM * np.max(values, initial=0.0)
    dtype = np.float32 if calm and _single(stack, rows) else np.float64
    found = Factors(
        stack.left.astype(dtype, copy=False) @ (by_left * stack.by).T.astype(dtype),
        by_right.astype(dtype) @ stack.right.astype(dtype, copy=False),
    )
    return Cut(padded(found, rank, stack), float(squares[rank:].sum()))


def padded(factors: Factors, rank: int, stack: Stack) -> Factors:
    """Return the same product with factors of a larger rank. The new columns of L are zero, the new
    rows of R are the stack's: if both were zero, training could never change them."""
    left, right = factors
    more = rank - len(right)
    if more <= 0:
        return factors
    rows = stack.right[np.arange(more) % len(stack.right)]
    return Factors(
        np.hstack([left, np.zeros((len(left), more), left.dtype)]),
        np.vstack([right, rows.astype(right.dtype)]),
    )


def _halves(gram: Matrix) -> tuple[Matrix, Matrix]:
    """Return F with F Fᵀ = RRᵀ, and G with Q = G R, which uses only independent rows of R."""
    from scipy.linalg.lapack import dpstrf, dtrtri  # slow to import

    lower, order, rank, _ = dpstrf(gram, tol=_NOTHING * float(np.diag(gram).max()), lower=1)
    order, lower = order - 1, np.tril(lower)[:, :rank]
    forth, back = np.zeros((len(gram), rank)), np.zeros((rank, len(gram)))
    forth[order] = lower
    back[:, order[:rank]] = dtrtri(lower[:rank], lower=1)[0]
    return forth, back


def _length(by: Matrix, lengths: Vector) -> Vector:
    """Return how long sums of rows would be if the rows were orthogonal."""
    found: Vector = np.sqrt(np.square(by) @ np.square(lengths))
    return found


def _single(stack: Stack, rows: Vector | None = None) -> bool:
    """Tell whether single precision can hold the factors, their multipliers and their sums."""
    held: bool = np.result_type(stack.left, stack.right).itemsize <= 4
    return held and _within(stack.by, _LARGE**2) and (rows is None or _within(rows, _LARGE))


def _within(sizes: Vector, bound: float) -> bool:
    there = np.abs(sizes[sizes != 0])
    return bool(((there < bound) & (there > 1 / bound)).all())


def _across(one: Array, other: Array | None = None) -> Matrix:
    """Return the products of the rows of one matrix with each other, or with those of another."""
    found = np.zeros((len(one), len(one if other is None else other)))
    step = max(1, _TILE // max(found.shape))
    for start in range(0, one.shape[1], step):
        span = slice(start, start + step)
        mine = one[:, span].astype(np.float64, copy=False)
        theirs = mine if other is None else other[:, span].astype(np.float64, copy=False)
        found += mine @ theirs.T  # with itself, BLAS forms one half
    return found


def _groups(ranks: Sequence[int]) -> list[list[int]]:
    """Return the points in groups of limited total rank."""
    groups: list[list[int]] = []
    room = 0
    for j, rank in enumerate(ranks):
        if not groups or rank > room:
            groups.append([])
            room = _TOGETHER
        groups[-1].append(j)
        room -= rank
    return groups


def _summed(products: Matrix, rows: Sequence[int], columns: Sequence[int]) -> Matrix:
    """Return the sums over blocks with these numbers of rows and columns."""
    summed: Matrix = np.add.reduceat(
        np.add.reduceat(products, _starts(rows), axis=0), _starts(columns), axis=1
    )
    return summed


def _starts(sizes: Sequence[int]) -> Array:
    starts: Array = np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.intp)
    return starts
