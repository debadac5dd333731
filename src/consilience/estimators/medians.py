"""The geometric median, by the smoothed Weiszfeld algorithm (Pillutla et al. 2019).

It minimises Σ_j α_j ‖x_j − y‖ with α_j the share of samples. Each step is a weighted mean with
weights α_j / max(ν, ‖x_j − y‖); compare IVAR's, which divides by the square.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from consilience.arrays import Vector
from consilience.beliefs import NOTHING, Beliefs, Given
from consilience.estimators.average import about_consensus, shares
from consilience.evidence import Block, Evidence


@dataclass(frozen=True)
class GeometricMedian:
    """The point with the least mean distance from the updates of its round.

    ``smoothing`` is ν, and ``tolerance`` the step at which the iteration stops, both as a fraction
    of the median distance between parties, which a minority of the parties cannot set. Sample
    counts are shares of the weight: whoever claims half of all samples is the median, so pass only
    verified counts.

    >>> import numpy as np
    >>> import consilience as cs
    >>> updates = np.array([[1.0, 2], [1, 3], [2, 2], [2, 3], [90, -90]])
    >>> cs.aggregate(updates, cs.GeometricMedian()).value.round(1).tolist()
    [1.8, 2.2]
    """

    smoothing: float = 1e-6
    tolerance: float = 1e-8
    max_iterations: int = 1000

    remembers = False
    follows = False

    def infer(self, evidence: Evidence, given: Given = NOTHING) -> Beliefs:
        """Return the weights of the median in each block."""
        found = [self._median(b, shares(b.parties, given.sample_counts)) for b in evidence.blocks]
        return about_consensus(
            evidence,
            tuple(weights for weights, _, _ in found),
            iterations=max(len(objective) for _, objective, _ in found),
            converged=all(converged for _, _, converged in found),
            objective=tuple(found[-1][1]),
        )

    def _median(self, block: Block, shares: Vector) -> tuple[Vector, list[float], bool]:
        agreed = block.typical_distances == 0
        if shares[agreed].sum() >= 0.5:  # they send the same vector, and outweigh all others
            return _normalised(np.where(agreed, shares, 0.0)), [0.0], True
        scale = np.sqrt(block.typical)
        least = self.smoothing * scale
        weights = _normalised(shares * block.central_weights)
        objective: list[float] = []
        for _ in range(self.max_iterations):
            length = _lengths(block, weights)
            objective.append(float(-shares @ _smoothed(length, least)))
            previous, weights = weights, _normalised(shares / np.maximum(length, least))
            if block.moved(weights - previous) <= self.tolerance * scale:
                return weights, objective, True
        return weights, objective, False


def _lengths(block: Block, weights: Vector) -> Vector:
    """Return each party's distance from the weighted mean of all."""
    squares = block.residuals(np.append(weights, 0.0))[:-1]
    return np.sqrt(np.maximum(squares, 0.0))


def _normalised(pull: Vector) -> Vector:
    weights: Vector = pull / pull.sum()
    return weights


def _smoothed(length: Vector, least: float) -> Vector:
    """Return the norm, smoothed below ``least``: the iteration decreases its sum."""
    rounded: Vector = np.where(length > least, length, length**2 / (2 * least) + least / 2)
    return rounded
