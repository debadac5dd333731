"""Centred clipping (Karimireddy et al. 2021): nobody pulls harder than a given radius.

From a centre v, each step is v ← v + mean_j (x_j − v) min(1, ρ/‖x_j − v‖). At the fixed point these
pulls cancel: Huber's estimate of location.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from consilience.arrays import Vector
from consilience.beliefs import NOTHING, Beliefs, Given
from consilience.errors import ConsilienceError
from consilience.estimators.average import about_consensus
from consilience.evidence import Block, Evidence


@dataclass(frozen=True)
class CentredClipping:
    """Steps from the centre, each by the mean of clipped differences (Karimireddy et al. 2021).

    As published, the centre is the last round's result, one step is enough, and ``radius`` has to
    be chosen. Here the radius is a root mean square per coordinate: a norm τ is τ/√K. None takes
    the median distance from where a step begins (the larger of two middle ones), which a minority
    of the parties cannot make large; a few ``steps`` then reach the parties from any centre. The
    weight that the parties lack to one is the centre's.

    >>> import numpy as np
    >>> import consilience as cs
    >>> updates = np.array([[1.0, 2], [1, 3], [2, 2], [2, 3], [90, -90]])
    >>> round(cs.aggregate(updates, cs.CentredClipping()).weights["4"], 1)
    0.0
    """

    radius: float | None = None
    steps: int = 10

    remembers = False
    follows = False

    def __post_init__(self) -> None:
        if self.radius is not None and not self.radius > 0:
            raise ConsilienceError(f"radius is a positive number or None, found {self.radius}")

    def infer(self, evidence: Evidence, given: Given = NOTHING) -> Beliefs:
        """Return the weights after the last step in each block."""
        weights = tuple(self._clipped(block) for block in evidence.blocks)
        return about_consensus(evidence, weights, iterations=self.steps)

    def _clipped(self, block: Block) -> Vector:
        count = len(block.parties)
        weights = np.zeros(count + 1)
        weights[-1] = 1.0  # start at the centre
        for _ in range(self.steps):
            lengths = np.sqrt(np.maximum(block.residuals(weights)[:-1], 0.0))
            radius = np.sort(lengths)[count // 2] if self.radius is None else self.radius
            kept = clipped(lengths, radius)
            weights *= 1 - kept.mean()
            weights[:-1] += kept / count
        return weights[:-1]


def clipped(lengths: Vector, most: float) -> Vector:
    """Return the factors that clip these lengths to ``most``."""
    return np.divide(most, lengths, out=np.ones_like(lengths), where=lengths > most)
