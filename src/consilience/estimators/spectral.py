"""Rules that look for adversaries along the direction in which the parties differ most.

There are as many directions as coordinates, but J updates differ in at most J − 1 of them: with
residual products R = (X − ȳ)(X − ȳ)ᵀ about a weighted mean, the largest eigenvalue of the weighted
covariance is that of √c_j R_jl √c_l, and its eigenvector u gives each party's component along the
direction, R(√c u), up to a common factor.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from consilience.arrays import Vector
from consilience.estimators.average import BlockByBlock
from consilience.estimators.selection import ROUNDING, expected, mean_of
from consilience.evidence import Block, residual_products


@dataclass(frozen=True)
class DnC(BlockByBlock):
    """Divide and conquer (Shejwalkar and Houmansadr 2021).

    The mean without the f parties that are farthest from the overall mean along the direction of
    most variance. ``adversaries`` is f; None takes the most that are fewer than half. As published,
    the direction is computed in a few random subsets of the coordinates, and a party excluded in
    one of them is excluded. Here it is computed once, in all coordinates of the evidence.
    Adversaries in several directions may escape.

    >>> import numpy as np
    >>> import consilience as cs
    >>> updates = np.array([[1.0, 2], [1, 3], [2, 2], [2, 3], [90, -90]])
    >>> cs.aggregate(updates, cs.DnC(adversaries=1)).value.tolist()
    [1.5, 2.5]
    """

    adversaries: int | None = None

    def weigh(self, block: Block) -> Vector:
        """Return equal weights for the selected, zero for the others."""
        count = len(block.parties)
        f = expected("DnC", self.adversaries, count)
        _, squares = _principal(block, np.ones(count))
        return mean_of(np.argsort(squares, kind="stable")[: count - f], count)


@dataclass(frozen=True)
class CAF(BlockByBlock):
    """The covariance-bound agnostic filter (Allouah et al. 2025).

    In each step the weights of outlying parties shrink: a party loses the share of its weight that
    its squared distance from the mean, along the direction of most variance, has in the largest
    such square. So in each step somebody loses all, and the steps end when the parties have lost
    the weight of 2f of them. Of the means on the way, the one with the smallest largest variance is
    taken. ``adversaries`` is f; None takes the most that are fewer than half.

    >>> import numpy as np
    >>> import consilience as cs
    >>> updates = np.array([[1.0, 2], [1, 3], [2, 2], [2, 3], [90, -90]])
    >>> round(cs.aggregate(updates, cs.CAF(adversaries=1)).weights["4"], 2)
    0.0
    """

    adversaries: int | None = None

    def weigh(self, block: Block) -> Vector:
        """Return the remaining weights, as shares."""
        count = len(block.parties)
        f = expected("CAF", self.adversaries, count)
        left = best = np.ones(count)
        least = np.inf
        while left.sum() > count - 2 * f:
            variance, squares = _principal(block, left)
            if variance < least:
                least, best = variance, left
            if not squares.any():  # all that are left are equal
                break
            left = left * (1 - squares / squares.max())
            left[left < ROUNDING] = 0.0  # rounding, between two equally far
        weights: Vector = best / best.sum()
        return weights


def _principal(block: Block, weights: Vector) -> tuple[float, Vector]:
    """Return the largest variance about the weighted mean along any direction, and along it the
    square of each party with a weight, up to a common factor."""
    shares = weights / weights.sum()
    products = residual_products(block.gram, np.append(shares, 0.0))
    heard = np.flatnonzero(shares)
    among, root = products[np.ix_(heard, heard)], np.sqrt(shares[heard])
    variances, directions = np.linalg.eigh(among * np.outer(root, root))
    squares = np.zeros_like(weights)
    squares[heard] = (among @ (root * directions[:, -1])) ** 2
    return float(variances[-1]), squares
