"""Nothing on the word of one: a limit on how far a party counts beyond the others.

A weight applies to a whole update. It cannot stop a party that is like the others in nearly all
coordinates and far away in a few: a backdoor, or sparse poison. Corroboration does. In each
coordinate take the range from the second least to the second greatest witness, which at least two
reach from either side. Nobody counts further beyond it than twice its width. This is a winsorised
weighted mean with headroom: honest parties with similar noise lose nearly nothing.

*Witnesses* are the parties that weigh more than half as much as the typical one (the weighted
median of the weights). So no party, however heavy, is more than one witness, and a group of parties
that move together is one at most.

*Rare knowledge.* A party that alone has seen a class also stands alone. But where data are split
like that, several parties do. So if hardly anybody would lose by corroboration, whoever does lose
must have witnesses. A sample of the coordinates tells which case it is. Worker momentum removes the
noise that widens the range. So where errors hardly change over rounds, two witnesses that stand
alone about equally are enough for "several". (They must be witnesses, since a party that sends
noise stands alone, too. And they must be about equal, since beside a backdoor somebody else may
stand alone a little.)

*Singled out.* Where parties are known to differ only mildly, or by noise, a party that stands alone
much more than the others also gets a smaller weight in all coordinates.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from consilience.arrays import Array, Mask, Positions, Vector
from consilience.passes import loops
from consilience.updates.votes import at_most_half, middle

_HALF = 0.5  # of the typical weight; a witness weighs more
_LEAST = 3  # fewest witnesses: with two, the second least is the greatest
_TINY = 1e-300  # instead of zero as a divisor
_SMALLEST = 1e-30  # least sum of squares whose terms single precision can hold


class Corroboration(NamedTuple):
    """Whether, and how strictly, other parties must support what a party sends.

    - ``always``: even if a party may be the only one to know something, and with three witnesses.
    - ``mild``: parties are known to differ by noise or mildly.
    - ``settled``: their errors are known to be much the same in every round.
    - ``headroom``: how many widths of the witnesses' range a party counts beyond it. With 0, ten
      honest parties lose 4.5 % of efficiency, with 1 0.2 %, with 2 0.04 %. At 1 a class that few
      parties know is clipped as well.
    - ``hardly``: the largest share of its squared difference that would be clipped of a party which
      hardly stands alone. The quantile ``most`` of the witnesses must be below it. On MNIST that
      quantile is 0.002 where corroboration costs nothing, and 0.01 to 0.3 where one party alone
      knows a class.
    - ``enough``: fewest witnesses. With six, 0.9 % of efficiency is lost, with three 34 %.
    - ``singled_out``: a party counts less, where parties differ mildly, from this many times that
      quantile and from the share ``alone`` on. Honest parties reach six times. If more than half of
      all parties stand alone so much, nobody needs a witness.
    - ``peer``: where errors are settled, one witness stands alone like another if it would lose
      this share of what the other loses. On MNIST two owners of a class have 0.25 to 0.9, and the
      party next to a backdoor 0.07 to 0.14.
    """

    always: bool = False
    mild: bool = False
    settled: bool = False
    headroom: float = 2.0
    hardly: float = 0.005
    most: float = 0.75
    enough: int = 7
    singled_out: float = 10.0
    alone: float = 0.02
    peer: float = 0.2


class Witnesses(NamedTuple):
    """What the loops need: a byte for each party, not zero for witnesses; and the headroom."""

    there: bytes
    headroom: float

    def of(self, parties: Positions) -> Witnesses:
        """Return the same for some of the parties, in the given order."""
        return self._replace(there=bytes(self.there[j] for j in parties))


def corroborated(
    sample: Array, weights: Vector, rule: Corroboration, voices: Mask | None = None
) -> tuple[Vector, Witnesses | None]:
    """Return the weights that count and the witnesses, judged by a sample of coordinates, (J, n).

    None if there are too few witnesses, or if parties may be the only ones to know something.
    ``voices`` are the parties that may be witnesses: one of each group, as copies prove nothing.
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
    # If most parties would be clipped, they do not stand alone; if several witnesses would, they
    # know something.
    if np.median(shares) > rule.alone or typical > rule.hardly:
        return weights, None
    if rule.settled and _have_peers(shares[those], rule):
        return weights, None
    if not rule.mild:
        return weights, found
    most = max(rule.singled_out * typical, rule.alone)
    kept = at_most_half(weights * np.minimum(1.0, most / np.maximum(shares, most)))
    kept *= weights.sum() / kept.sum()
    steady = those & witnesses_of(kept)  # whoever is singled out cannot be a witness
    if steady.sum() >= _LEAST:
        found = Witnesses(steady.tobytes(), rule.headroom)
    return kept, found


def _have_peers(shares: Vector, rule: Corroboration) -> bool:
    """Tell whether two witnesses or more stand alone, and the second about as much as the first."""
    second, first = np.partition(shares, -2)[-2:]
    return bool(second > max(rule.alone, rule.peer * first))


def witnesses_of(weights: Vector) -> Mask:
    """Tell which parties weigh more than half as much as the typical one."""
    weights = np.maximum(weights, 0.0)
    found: Mask = weights > _HALF * middle(weights, weights)
    return found


def voices_of(groups: tuple[tuple[str, ...], ...], parties: tuple[str, ...]) -> Mask:
    """Tell which parties are in no group, or are the first present member of theirs."""
    there = set(parties)
    others = {party for group in groups for party in [p for p in group if p in there][1:]}
    return np.array([party not in others for party in parties])


def _shares_alone(sample: Array, weights: Vector, witnesses: Witnesses) -> Vector:
    """Return the share of each party's squared difference that would be clipped."""
    alone, apart = _lost(sample, weights, witnesses)
    if not ((apart > _SMALLEST) & (apart < np.inf)).all():
        alone, apart = _lost(sample.astype(np.float64), weights, witnesses)
    with np.errstate(over="ignore", invalid="ignore"):
        shares: Vector = np.nan_to_num(alone / np.maximum(apart, _TINY), nan=1.0)
    return np.minimum(shares, 1.0)


def _lost(sample: Array, weights: Vector, witnesses: Witnesses) -> tuple[Vector, Vector]:
    """Return the sums of squares of what would be clipped of each party, and of its difference."""
    rows = np.ascontiguousarray(sample)
    value, alone = np.empty_like(rows[0]), np.zeros(len(rows))
    code, wide = rows.dtype.char.encode(), rows.dtype == np.float64
    arguments = (weights, *witnesses, value, code, None, alone, wide)
    with np.errstate(over="ignore", invalid="ignore"):
        loops.current.corroborate(list(rows), code * len(rows), *arguments)
        beside = rows - weights.astype(rows.dtype) @ rows
        return alone, np.vecdot(beside, beside).astype(np.float64)
