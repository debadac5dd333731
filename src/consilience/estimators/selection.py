"""Krum and Multi-Krum (Blanchard et al. 2017): believe the parties closest to their neighbours.

A party's score is the sum of its squared distances to its J − f − 2 nearest peers, where f is the
number of adversaries the caller expects. Krum takes the party with the least score, Multi-Krum
the mean of the m best.
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
class Krum:
    """The mean of the ``selected`` parties with the least scores; one of them is Krum.

    ``adversaries`` is f; None takes the most that Krum tolerates, the largest with 2f + 2 < J.
    ``selected=None`` is Multi-Krum's J − f; with fewer than five parties f is zero, and Multi-Krum
    is the mean. Equal scores go to the earlier party.
    """

    adversaries: int | None = None
    selected: int | None = 1

    remembers = False
    follows = False

    def infer(self, evidence: Evidence, given: Given = NOTHING) -> Beliefs:
        """Return equal weights for the selected of each block, zero for the others."""
        return about_consensus(evidence, tuple(self._select(block) for block in evidence.blocks))

    def _select(self, block: Block) -> Vector:
        count = len(block.parties)
        most = max(0, (count - 3) // 2)
        f = most if self.adversaries is None else self.adversaries
        if not 0 <= f <= most:
            raise ConsilienceError(
                f"Krum with {count} parties tolerates 0 to {most} adversaries, asked for {f}"
            )
        chosen = min(count - f if self.selected is None else self.selected, count)
        best = np.argsort(scores(block, f), kind="stable")[:chosen]
        weights = np.zeros(count)
        weights[best] = 1.0 / chosen
        return weights


def scores(block: Block, adversaries: int) -> Vector:
    """Return each party's sum of squared distances to its nearest peers."""
    count = len(block.parties)
    nearest = max(1, count - adversaries - 2)
    ordered = np.sort(block.distances[:-1, :-1], axis=1)
    scored: Vector = ordered[:, 1 : nearest + 1].sum(axis=1)  # column 0 is the party itself
    return scored
