"""The geometric median, by the smoothed Weiszfeld algorithm (Pillutla et al. 2019).

It minimises Σ_j α_j ‖x_j − y‖ with α_j the share of samples. Each step is a weighted mean with
weights α_j / max(ν, ‖x_j − y‖); compare IVAR's, which divides by the square.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from consilience.beliefs import NOTHING, Beliefs, Given
from consilience.estimators.average import about_consensus, shares
from consilience.evidence import Block, Evidence, Vector, residuals


@dataclass(frozen=True)
class GeometricMedian:
    """The point with the least mean distance from the updates of its round.

    ``smoothing`` is ν, as a fraction of the root mean square distance from the plain mean.
    """

    smoothing: float = 1e-6
    tolerance: float = 1e-10
    max_iterations: int = 1000

    remembers = False
    follows = False

    def infer(self, evidence: Evidence, given: Given = NOTHING) -> Beliefs:
        """Return the weights of the median in each block."""
        found = [self._median(b, shares(b.parties, given.sample_counts)) for b in evidence.blocks]
        return about_consensus(
            evidence,
            tuple(weights for weights, _ in found),
            iterations=max(len(objective) for _, objective in found),
            converged=all(len(objective) < self.max_iterations for _, objective in found),
            objective=tuple(found[-1][1]),
        )

    def _median(self, block: Block, shares: Vector) -> tuple[Vector, list[float]]:
        distances = block.distances[:-1, :-1]
        weights = shares
        objective: list[float] = []
        least = self.smoothing * np.sqrt(max(float(shares @ residuals(distances, shares)), 0.0))
        if least == 0.0:
            return shares, [0.0]
        for _ in range(self.max_iterations):
            length = np.sqrt(np.maximum(residuals(distances, weights), 0.0))
            objective.append(float(-shares @ _smoothed(length, least)))
            if (
                len(objective) > 1
                and objective[-1] - objective[-2] <= -self.tolerance * objective[-1]
            ):
                break
            pull = shares / np.maximum(length, least)
            weights = pull / pull.sum()
        return weights, objective


def _smoothed(length: Vector, least: float) -> Vector:
    """Return the norm, with its tip rounded off below ``least``: what the iteration descends."""
    rounded: Vector = np.where(length > least, length, length**2 / (2 * least) + least / 2)
    return rounded
