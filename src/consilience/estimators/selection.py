"""Rules that select some parties: the caller expects f adversaries.

Krum and Multi-Krum (Blanchard et al. 2017) believe the parties closest to their neighbours. A
party's score is the sum of its squared distances to its J − f − 2 nearest peers. Krum takes the
party with the least score, Multi-Krum the mean of the m best. Minimum-diameter averaging (El Mhamdi
et al. 2020) takes the mean of those J − f parties of whom the two farthest apart are closest.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from math import comb

import numpy as np

from consilience.arrays import Positions, Vector
from consilience.errors import ConsilienceError
from consilience.estimators.average import BlockByBlock
from consilience.evidence import Block

ROUNDING = 1e-9  # relative difference between squared distances that counts
_MOST_LOOKS = 20_000_000  # distances read at most: less than a second


@dataclass(frozen=True)
class Krum(BlockByBlock):
    """The mean of the ``selected`` parties with the least scores; with one of them it is Krum.

    A party's score is the sum of its squared distances from its J − f − 2 nearest peers.
    ``adversaries`` is f; None takes the most that Krum tolerates, the largest with 2f + 2 < J.
    ``selected=None`` is Multi-Krum's J − f; with fewer than five parties f is zero, and Multi-Krum
    is the mean. Of equal scores the earlier party's counts as less.

    >>> import numpy as np
    >>> import consilience as cs
    >>> updates = np.array([[1.0, 2], [1, 3], [2, 2], [2, 3], [90, -90]])
    >>> cs.aggregate(updates, cs.Krum(adversaries=1)).weights["0"]
    1.0
    """

    adversaries: int | None = None
    selected: int | None = 1

    def weigh(self, block: Block) -> Vector:
        """Return equal weights for the selected, zero for the others."""
        count = len(block.parties)
        f = expected("Krum", self.adversaries, count, (count - 3) // 2)
        chosen = min(count - f if self.selected is None else self.selected, count)
        return mean_of(np.argsort(scores(block, f), kind="stable")[:chosen], count)


@dataclass(frozen=True)
class MDA(BlockByBlock):
    """Minimum-diameter averaging: the mean of the J − f parties with the least diameter.

    ``adversaries`` is f; None takes the most that are fewer than half. Every choice of J − f
    parties is tried, and the first of equal ones is taken. So there must be few choices: 20
    parties, or more if f is small.

    >>> import numpy as np
    >>> import consilience as cs
    >>> updates = np.array([[1.0, 2], [1, 3], [2, 2], [2, 3], [90, -90]])
    >>> cs.aggregate(updates, cs.MDA(adversaries=1)).value.tolist()
    [1.5, 2.5]
    """

    adversaries: int | None = None

    def weigh(self, block: Block) -> Vector:
        """Return equal weights for the selected, zero for the others."""
        count = len(block.parties)
        f = expected("MDA", self.adversaries, count)
        if comb(count, f) * comb(count - f, 2) > _MOST_LOOKS:
            raise ConsilienceError(
                f"MDA tries every way to leave {f} of {count} parties out, and these are too many: "
                "expect fewer adversaries, or choose another method"
            )
        subsets = np.array(list(combinations(range(count), count - f)))
        squares = np.zeros(len(subsets))
        for one, other in combinations(subsets.T, 2):
            np.maximum(squares, block.distances[one, other], out=squares)
        least = np.argmax(squares <= (1 + ROUNDING) * squares.min())
        return mean_of(subsets[least], count)


def expected(rule: str, adversaries: int | None, parties: int, most: int | None = None) -> int:
    """Return how many adversaries a rule expects: the caller's number, or the most it tolerates, by
    default fewer than half."""
    most = max(0, (parties - 1) // 2 if most is None else most)
    f = most if adversaries is None else adversaries
    if not 0 <= f <= most:
        raise ConsilienceError(
            f"{rule} with {parties} parties tolerates 0 to {most} adversaries, asked for {f}"
        )
    return f


def mean_of(selected: Positions, parties: int) -> Vector:
    """Return the weights of the mean over the selected parties."""
    weights = np.zeros(parties)
    weights[selected] = 1.0 / len(selected)
    return weights


def scores(block: Block, adversaries: int) -> Vector:
    """Return each party's sum of squared distances to its nearest peers."""
    count = len(block.parties)
    nearest = max(1, count - adversaries - 2)
    ordered = np.sort(block.distances[:-1, :-1], axis=1)
    scored: Vector = ordered[:, 1 : nearest + 1].sum(axis=1)  # column 0 is the party itself
    return scored
