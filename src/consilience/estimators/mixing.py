"""Updates prepared before a method sees them: mixed with their neighbours, or clipped.

Either way each update becomes a weighted mean z_j = Σ_l A_jl x_l of the updates and the centre. The
distances between the z_j follow from those between the x_j, a method infers weights w of the z_j
from them, and Aᵀw are the weights of the x_j.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field

import numpy as np

from consilience.arrays import Matrix
from consilience.beliefs import NOTHING, Beliefs, Estimator, Given
from consilience.errors import ConsilienceError
from consilience.estimators.average import about_consensus
from consilience.estimators.clipping import clipped
from consilience.estimators.medians import GeometricMedian
from consilience.estimators.selection import ROUNDING, expected
from consilience.evidence import Block, Evidence


@dataclass(frozen=True)
class _Prepared(ABC):
    """A method that sees means of the updates instead of the updates."""

    method: Estimator
    adversaries: int | None = None

    remembers = False
    follows = False

    def __post_init__(self) -> None:
        if not hasattr(self.method, "infer"):
            raise ConsilienceError(
                f"{type(self).__name__} comes before a method that needs distances alone, such as "
                f"GeometricMedian(), found {self.method!r}"
            )

    def infer(self, evidence: Evidence, given: Given = NOTHING) -> Beliefs:
        """Return the weights of the updates, from the method's weights of their means."""
        means = [self._means(block) for block in evidence.blocks]
        mixed = (block.mixed(rows) for block, rows in zip(evidence.blocks, means, strict=True))
        found = self.method.infer(Evidence(tuple(mixed)), Given(given.sample_counts))
        pulled = zip(found.weights, means, strict=True)
        return about_consensus(
            evidence,
            tuple(w @ rows[:-1, :-1] for w, rows in pulled),
            iterations=found.iterations,
            converged=found.converged,
            objective=found.objective,
        )

    @abstractmethod
    def _means(self, block: Block) -> Matrix:
        """Return A; its last row keeps the centre."""


@dataclass(frozen=True)
class NNM(_Prepared):
    """Nearest-neighbour mixing (Allouah et al. 2023), before another method.

    Each update is replaced by the mean of the J − f nearest to it, itself among them.
    ``adversaries`` is f; None takes the most that are fewer than half. Updates equally far away
    share the remaining places, so that rounding does not choose: clipped updates are all equally
    far from one at the centre.

    >>> import numpy as np
    >>> import consilience as cs
    >>> updates = np.array([[1.0, 2], [1, 3], [2, 2], [2, 3], [90, -90]])
    >>> cs.aggregate(updates, cs.NNM(cs.GeometricMedian(), adversaries=1)).value.round(2).tolist()
    [1.5, 2.5]
    """

    method: Estimator = field(default_factory=GeometricMedian)

    def _means(self, block: Block) -> Matrix:
        count = len(block.parties)
        near = count - expected("NNM", self.adversaries, count)
        distances = block.distances[:-1, :-1]
        farthest = np.sort(distances, axis=1)[:, near - 1 : near]
        inside = distances < (1 - ROUNDING) * farthest
        last = ~inside & (distances <= (1 + ROUNDING) * farthest)
        places = near - inside.sum(axis=1, keepdims=True)
        means = np.eye(count + 1)
        means[:-1, :-1] = (inside + last * places / last.sum(axis=1, keepdims=True)) / near
        return means


@dataclass(frozen=True)
class ARC(_Prepared):
    """Adaptive robust clipping (Allouah et al. 2025), before another method.

    The ⌊2f(J − f)/J⌋ longest updates are clipped to the length of the next. Lengths are measured
    from the centre, which is zero for gradients and differences. The weight that the parties lack
    to one is the centre's. ``adversaries`` is f; None takes the most that are fewer than half.

    >>> import numpy as np
    >>> import consilience as cs
    >>> updates = np.array([[1.0, 2], [1, 3], [2, 2], [2, 3], [90, -90]])
    >>> round(cs.aggregate(updates, cs.ARC(cs.NNM(cs.Mean(), 1), 1)).weights["4"], 2) < 0.1
    True
    """

    method: Estimator = field(default_factory=NNM)

    def _means(self, block: Block) -> Matrix:
        count = len(block.parties)
        f = expected("ARC", self.adversaries, count)
        lengths = np.sqrt(block.distances[:-1, -1])
        most = np.sort(lengths)[count - 1 - 2 * f * (count - f) // count]
        kept = clipped(lengths, most)
        means = np.diag(np.append(kept, 1.0))
        means[:-1, -1] = 1 - kept
        return means
