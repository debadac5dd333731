"""Votes: how parties decide on what cannot be averaged."""

from __future__ import annotations

import numpy as np

from consilience.arrays import Array, Vector

_TIE = 1e-9  # share of all votes, or of a number, that is only rounding
_TINY = 1e-300  # instead of zero as a divisor


def at_most_a_third(weights: Vector) -> Vector:
    """Return votes: the weights, none above a third of all votes, so that any two can outvote one.

    Where fewer than three parties have a weight, each votes with its weight.

    >>> at_most_a_third(np.array([5.0, 5.0, 5.0, 1.0])).tolist()
    [5.0, 5.0, 5.0, 1.0]
    >>> at_most_a_third(np.array([1e6, 3.0, 2.0, 1.0])).tolist()
    [3.0, 3.0, 2.0, 1.0]
    """
    positive = np.maximum(weights, 0.0)
    falling = np.sort(positive)[::-1]
    # The largest c with 3c ≤ Σ min(w, c): with one party cut 2c is the rest, with two c is.
    most = min(0.5 * float(falling[1:].sum()), float(falling[2:].sum()))
    return np.minimum(positive, most) if most > 0 else positive


def at_most_half(weights: Vector) -> Vector:
    """Return the weights, none larger than that of all the others together.

    The fit of one party can only be confirmed by the others.
    """
    others = float(np.sort(weights)[:-1].sum())
    return np.minimum(weights, others) if others > 0 else weights


def weighted_median(rows: Array, votes: Vector) -> Array:
    """Return the weighted median of each column, the lower one in a tie; for booleans the majority.

    >>> weighted_median(np.array([[1, True], [7, False], [9, False]]), np.ones(3)).tolist()
    [7, 0]
    """
    first: Array = rows[0]
    if (rows == first).all():
        return first
    order = np.argsort(rows, axis=0, kind="stable")
    below = np.cumsum(votes[order], axis=0)
    place = np.argmax(below >= (0.5 - _TIE) * votes.sum(), axis=0)
    middle = np.take_along_axis(order, place[None], axis=0)
    median: Array = np.take_along_axis(rows, middle, axis=0)[0]
    return median


def middle(values: Vector, weights: Vector) -> float:
    """Return the weighted median of numbers, interpolated between neighbours.

    >>> middle(np.array([1.0, 2.0, 9.0]), np.ones(3))
    2.0
    """
    order = np.argsort(values, kind="stable")
    return between_halves(values[order], weights[order])


def between_halves(ordered: Vector, weights: Vector, logs: bool = False) -> float:
    """Return the weighted median of numbers in ascending order; ``logs`` tells that they are
    logarithms, of which a difference is relative.

    A number stands in the middle of its weight. Equal numbers reach from the middle of a typical
    weight at one end to that at the other, so that their order does not matter.
    """
    after = np.cumsum(weights)
    half = 0.5 * after[-1]
    with np.errstate(invalid="ignore"):  # two infinities
        equal = np.diff(ordered) <= _TIE * (1.0 if logs else np.abs(ordered[1:]))
    if not equal.any():
        return float(np.interp(half, after - 0.5 * weights, ordered))
    first = np.flatnonzero(np.append(True, ~equal))
    last = np.append(first[1:], len(ordered)) - 1
    sums, squares = np.add.reduceat(weights, first), np.add.reduceat(weights**2, first)
    least = 0.5 * squares / np.maximum(sums, _TINY)  # who has little weight changes little
    ends = np.stack([after[first] - weights[first] + least, after[last] - least], axis=1)
    return float(np.interp(half, ends.ravel(), np.repeat(ordered[first], 2)))
