"""Nothing on the word of one: how far beyond the others a party is heard in a coordinate.

Weights say how much of an update counts. They cannot stop a party that is like the others in nearly
all coordinates, and far away in a few: a backdoor, or sparse poison. Corroboration does. In each
coordinate take the span that two witnesses reach from either side, from the second least to the
second greatest. Nobody counts further beyond it than twice its width. It is a winsorised weighted
mean, with room to spare: the honest, whose noise is alike, lose nearly nothing by it.

*Witnesses* are the parties that weigh more than half as much as the typical one: that with half of
all weight on either side. So no party, however heavy, is more than one witness, and those who move
together are one at most.

*Where somebody may be the only one to know.* What a party says of a class that it alone has seen is
its word alone, too. But where that is so, it is so of several parties; where hardly anybody would
lose by corroboration, whoever does is a suspect. A sample of the coordinates tells which it is.
Where errors hardly change over rounds, as with worker momentum, there is no noise that widens the
span, and two such parties are several.

*Suspects.* Where, besides, parties are known to differ by noise or mildly, whoever stands alone
much more than the others do counts less in all coordinates, too.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from consilience.arrays import Array, Mask, Positions, Vector
from consilience.passes import loops
from consilience.updates.votes import at_most_half, middle

_HALF = 0.5  # of the typical weight: who weighs no more is no witness
_LEAST = 3  # witnesses: of two, the second least is the greatest
_TINY = 1e-300  # in place of a zero to divide by
_SMALLEST = 1e-30  # sum of squares whose parts single precision still knows


class Corroboration(NamedTuple):
    """Whether, and how strictly, others must stand beside a party.

    - ``always``: also where a party may be the only one to know something, and however few.
    - ``mild``: parties are known to differ by noise or mildly.
    - ``settled``: their errors are known to be much the same in every round.
    - ``headroom``: widths of the span that two witnesses reach, beyond which nobody counts.
      Without any, 4.5 % of efficiency are lost with ten honest parties, 0.2 % with 1, 0.04 % with
      2. At 1 a class that few parties know is cut as well.
    - ``hardly``: the share of its squared difference that is a party's word alone, up to which it
      hardly stands alone; ``most`` of the witnesses must. On MNIST that quantile is 0.002 where
      corroboration costs nothing, and 0.01 to 0.3 where classes are known to one party alone.
    - ``enough``: witnesses. With six 0.9 % of efficiency are lost, with three 34 %.
    - ``suspect``: times that quantile, and ``alone``, the least share, from which a party counts
      less where parties differ mildly. The honest reach six times. Where more than half of all
      parties stand alone so much, nobody is asked for a witness.
    """

    always: bool = False
    mild: bool = False
    settled: bool = False
    headroom: float = 2.0
    hardly: float = 0.005
    most: float = 0.75
    enough: int = 7
    suspect: float = 10.0
    alone: float = 0.02


class Witnesses(NamedTuple):
    """What the loops need: who is a witness, a byte for each party, and the room beyond them."""

    there: bytes
    headroom: float

    def of(self, parties: Positions) -> Witnesses:
        """Return the same for some of the parties, in another order."""
        return self._replace(there=bytes(self.there[j] for j in parties))


def corroborated(
    sample: Array, weights: Vector, rule: Corroboration, voices: Mask | None = None
) -> tuple[Vector, Witnesses | None]:
    """Return the weights that count, and the witnesses, going by some coordinates of all: (J, n).

    None where there are too few of them, or where parties may be the only ones to know something.
    ``voices`` are the parties that may be witnesses: one of each group, as copies bear none out.
    """
    those = witnesses_of(weights)
    if voices is not None:
        those &= voices
    found = Witnesses(those.tobytes(), rule.headroom)
    if those.sum() < (_LEAST if rule.always else rule.enough):
        return weights, None
    if rule.always:
        return weights, found
    shares = _shares_alone(sample, weights, found)
    typical = float(np.quantile(shares[those], rule.most))
    # Where most parties would be cut off, they are no lone voices; where several witnesses would,
    # they know something.
    if np.median(shares) > rule.alone or typical > rule.hardly:
        return weights, None
    if rule.settled and _second(shares if voices is None else shares[voices]) > rule.alone:
        return weights, None
    if not rule.mild:
        return weights, found
    most = max(rule.suspect * typical, rule.alone)
    kept = at_most_half(weights * np.minimum(1.0, most / np.maximum(shares, most)))
    kept *= weights.sum() / kept.sum()
    steady = those & witnesses_of(kept)  # a suspect is no witness
    if steady.sum() >= _LEAST:
        found = Witnesses(steady.tobytes(), rule.headroom)
    return kept, found


def _second(shares: Vector) -> float:
    """Return the second greatest, or none."""
    return float(np.partition(shares, -2)[-2]) if len(shares) > 1 else 0.0


def witnesses_of(weights: Vector) -> Mask:
    """Tell which parties weigh more than half of what the typical one does."""
    weights = np.maximum(weights, 0.0)
    found: Mask = weights > _HALF * middle(weights, weights)
    return found


def voices_of(groups: tuple[tuple[str, ...], ...], parties: tuple[str, ...]) -> Mask:
    """Tell which of the parties are in no group, or the first of theirs that is there."""
    there = set(parties)
    others = {party for group in groups for party in [p for p in group if p in there][1:]}
    return np.array([party not in others for party in parties])


def _shares_alone(sample: Array, weights: Vector, witnesses: Witnesses) -> Vector:
    """Return the share of each party's squared difference that would be cut off."""
    alone, apart = _lost(sample, weights, witnesses)
    if not ((apart > _SMALLEST) & (apart < np.inf)).all():
        alone, apart = _lost(sample.astype(np.float64), weights, witnesses)
    with np.errstate(over="ignore", invalid="ignore"):
        shares: Vector = np.nan_to_num(alone / np.maximum(apart, _TINY), nan=1.0)
    return np.minimum(shares, 1.0)


def _lost(sample: Array, weights: Vector, witnesses: Witnesses) -> tuple[Vector, Vector]:
    """Return each party's squares of what would be cut off, and of its difference from the sum."""
    rows = np.ascontiguousarray(sample)
    value, alone = np.empty_like(rows[0]), np.zeros(len(rows))
    code, wide = rows.dtype.char.encode(), rows.dtype == np.float64
    arguments = (weights, *witnesses, value, code, None, alone, wide)
    with np.errstate(over="ignore", invalid="ignore"):
        loops.current.corroborate(list(rows), code * len(rows), *arguments)
        beside = rows - weights.astype(rows.dtype) @ rows
        return alone, np.vecdot(beside, beside).astype(np.float64)
