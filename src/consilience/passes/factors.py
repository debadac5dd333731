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
# Of the largest eigenvalue of LᵀL: what is less is rounding, a length of 10⁻⁷ of the largest.
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

    With LᵀL = V Λ Vᵀ the columns of L V Λ^-½ are orthonormal, as Q of a QR decomposition, and so
    for R; the singular values of LR are those of the small matrix between the two. LᵀL costs a
    tenth of the time of a QR decomposition. What squaring loses is below 10⁻⁷ of the factors.
    """
    rows = np.linalg.norm(stack.right, axis=1)
    row = float(np.median(rows)) or 1.0
    even = _balanced(stack, rows)
    left, of_left, from_left = _orthogonal(even.left.T @ even.left)
    right, of_right, from_right = _orthogonal(even.right @ even.right.T)
    if not (left.size and right.size):  # all is zero
        return Cut(padded(Factors(stack.left[:, :0], stack.right[:0]), rank, stack.right), 0.0)
    u, values, v = np.linalg.svd((of_left * left).T @ (of_right * right), full_matrices=False)
    found = Factors(
        even.left @ (from_left @ (u[:, :rank] * (values[:rank] / row))),
        (row * v[:rank] @ from_right.T) @ even.right,
    )
    return Cut(padded(found, rank, stack.right), float(np.square(values[rank:]).sum()))


def padded(factors: Factors, rank: int, rows: Matrix) -> Factors:
    """Return the same product with factors of a larger rank. The new columns of L are zero, the new
    rows of R are some of these: of zeros in both, training would never make anything else."""
    more = rank - factors.right.shape[0]
    if more <= 0:
        return factors
    left = np.hstack([factors.left, np.zeros((len(factors.left), more))])
    return Factors(left, np.vstack([factors.right, rows[np.arange(more) % len(rows)]]))


def _balanced(stack: Factors, rows: Array) -> Factors:
    """Return the same product, each column of L as long as its row of R: the lengths say nothing,
    and a party could drown the others' columns with its own."""
    columns = np.linalg.norm(stack.left, axis=0)
    there = (columns > 0) & (rows > 0)
    by = np.ones_like(rows)
    by[there] = np.sqrt(rows[there] / columns[there])
    return Factors(stack.left * by, stack.right / by[:, None])


def _orthogonal(gram: Matrix) -> tuple[Array, Matrix, Matrix]:
    """Return √Λ and V, and V Λ^-½, of the eigenvalues that are more than rounding."""
    values, vectors = np.linalg.eigh(gram)
    there = values > _NOTHING * max(float(values[-1]), 0.0)
    lengths, vectors = np.sqrt(values[there]), vectors[:, there]
    return lengths, vectors, vectors / lengths


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
