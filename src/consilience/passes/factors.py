"""The algebra of low-rank updates ΔW = L·R, from small products of their factors alone.

The inner product of two of them is a sum over an r×r' matrix, whatever the size of ΔW:

    ⟨L_i R_i, L_j R_j⟩ = Σ (L_iᵀ L_j) ∘ (R_i R_jᵀ)

and their sum is a product of stacked factors, [L_1 L_2 …]·[R_1; R_2; …]. Everything is float64.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from consilience.arrays import Array, Matrix

_TOGETHER = 1024  # ranks in all of the parties whose factors are multiplied at once
# Of the largest eigenvalue of RRᵀ: what is less is rounding, a length of 10⁻⁷ of the largest.
_NOTHING = 1e-14


class Factors(NamedTuple):
    """L (out, r) and R (r, in)."""

    left: Matrix
    right: Matrix


class Cut(NamedTuple):
    """A product, and the squared length of what was cut away to have it."""

    factors: Factors
    lost: float


Load = Callable[[Sequence[int]], Factors]  # the stacked factors of some of the points


def inner_products(ranks: Sequence[int], load: Load) -> tuple[Matrix, Array]:
    """Return the inner products of low-rank matrices, (J, J), and for each the largest that its
    factors could have made of their lengths: ‖L‖²‖R‖²."""
    size = len(ranks)
    gram, reach = np.zeros((size, size)), np.zeros(size)
    groups = _groups(ranks)
    for n, mine in enumerate(groups):
        here = load(mine)
        for theirs in groups[: n + 1]:
            there = here if theirs is mine else load(theirs)
            left, right = here.left.T @ there.left, here.right @ there.right.T
            block = _summed(left * right, [ranks[j] for j in mine], [ranks[j] for j in theirs])
            gram[np.ix_(mine, theirs)] = block
            gram[np.ix_(theirs, mine)] = block.T
            if theirs is mine:
                starts = _starts([ranks[j] for j in mine])
                lengths = (np.add.reduceat(np.diag(part), starts) for part in (left, right))
                reach[mine] = np.prod(list(lengths), axis=0)
    return gram, reach


def cut(stack: Factors, rank: int) -> Cut:
    """Return the nearest product of lower rank; the rows of its R are as long as the stack's.

    With RRᵀ = V Λ Vᵀ and F = V Λ^½ the rows of Q = Λ^-½ Vᵀ R are orthonormal, as those of a QR
    decomposition, which takes ten times as long. Then LR = (LF) Q has the singular values of LF,
    whose squares are the eigenvalues of Fᵀ LᵀL F, a small matrix, and W, their eigenvectors, say
    what to keep: (LF) W · Wᵀ Q. What squaring loses of R is below 10⁻⁷ of its rows.
    """
    left, right = stack.left.T @ stack.left, stack.right @ stack.right.T
    columns, rows = (np.sqrt(np.diag(gram)) for gram in (left, right))
    by = np.sqrt(np.divide(columns, rows, out=np.ones_like(rows), where=(columns > 0) & (rows > 0)))
    values, vectors = np.linalg.eigh(right * np.outer(by, by))
    there = values > _NOTHING * max(float(values[-1]), 0.0)
    lengths, vectors = np.sqrt(values[there]), vectors[:, there]
    forth = vectors * lengths / by[:, None]  # F, for R as it is
    squares, kept = np.linalg.eigh(forth.T @ left @ forth)
    kept = kept[:, ::-1][:, :rank]
    row = float(np.median(rows)) or 1.0
    found = Factors(
        stack.left @ (forth @ kept) / row,
        (kept.T @ (vectors / lengths * by[:, None]).T * row) @ stack.right,
    )
    lost = float(np.maximum(squares[: max(0, len(squares) - rank)], 0.0).sum())
    return Cut(padded(found, rank, stack.right), lost)


def padded(factors: Factors, rank: int, rows: Matrix) -> Factors:
    """Return the same product with factors of a larger rank. The new columns of L are zero, the new
    rows of R are some of these: of zeros in both, training would never make anything else."""
    more = rank - factors.right.shape[0]
    if more <= 0:
        return factors
    left = np.hstack([factors.left, np.zeros((len(factors.left), more))])
    return Factors(left, np.vstack([factors.right, rows[np.arange(more) % len(rows)]]))


def _groups(ranks: Sequence[int]) -> list[list[int]]:
    """Return the points in groups of not too many ranks together."""
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
    """Return the sums over blocks of so many rows and columns."""
    summed: Matrix = np.add.reduceat(
        np.add.reduceat(products, _starts(rows), axis=0), _starts(columns), axis=1
    )
    return summed


def _starts(sizes: Sequence[int]) -> Array:
    starts: Array = np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.intp)
    return starts
