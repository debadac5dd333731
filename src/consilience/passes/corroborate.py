"""Nothing on the word of one: how far beyond the others a party is heard in a coordinate.

Weights say how much of an update counts. They cannot stop a party that is like the others in nearly
all coordinates, and far away in a few: a backdoor, or sparse poison. Corroboration does. In each
coordinate take the span that more than one voice reaches from either side. Nobody counts further
beyond it than twice its width. It is a winsorised weighted mean, with room to spare: the honest,
whose noise is alike, lose nearly nothing by it.

*Voices.* A party's voice is its weight, at most the typical one: that with half of all weight on
either side. So no party is more than one voice, and copies, which weigh little, are hardly any.

*Where somebody may be the only one to know.* What a party says of a class that it alone has seen is
its word alone, too. But where that is so, it is so of several parties; where hardly anybody would
lose by corroboration, whoever does is a suspect. A sample of the coordinates tells which it is.

*Suspects.* Where parties are known to differ by noise or mildly, whoever stands alone much more
than the others do counts less in all coordinates, too.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from consilience.arrays import Array, Vector
from consilience.passes import loops
from consilience.updates.votes import middle

_MORE = 1 + 1e-6  # than one voice: what rounding leaves is not a second one
_MOST_DEPTH = 0.499  # of all voices: what reaches down must not meet what reaches up
_TINY = 1e-300  # in place of a zero to divide by


class Corroboration(NamedTuple):
    """Whether, and how strictly, others must stand beside a party.

    - ``always``: also where a party may be the only one to know something, and however few.
    - ``mild``: parties are known to differ by noise or mildly.
    - ``headroom``: widths of the span that more than one voice reaches, beyond which nobody counts.
      Without any, 4.5 % of efficiency are lost with ten honest parties, 0.2 % with 1, 0.04 % with
      2. At 1 a class that few parties know is cut as well.
    - ``hardly``: the share of its squared difference that is a party's word alone, up to which it
      hardly stands alone; ``most`` of the voices must. On MNIST that quantile is 0.002 where
      corroboration costs nothing, and 0.01 to 0.3 where classes are known to one party alone.
    - ``enough``: typical voices. With six 0.9 % of efficiency are lost, with three 34 %.
    - ``suspect``: times that quantile, and ``alone``, the least share, from which a party counts
      less where parties differ mildly. The honest reach six times.
    """

    always: bool = False
    mild: bool = False
    headroom: float = 2.0
    hardly: float = 0.005
    most: float = 0.75
    enough: float = 7.0
    suspect: float = 10.0
    alone: float = 0.02


class Voices(NamedTuple):
    """What the loops need: the parties' voices, in their order, and how deep one voice reaches."""

    said: Vector  # (J,)
    depth: float
    headroom: float


def corroborated(
    sample: Array, weights: Vector, rule: Corroboration
) -> tuple[Vector, Voices | None]:
    """Return the weights that count, and the voices, going by some coordinates of all: (J, n).

    None where parties are too few to be each other's witnesses, or may be the only ones to know.
    """
    voices = voices_of(weights, rule.headroom)
    if rule.always:
        return weights, voices
    if not float(voices.said.sum()) >= rule.enough * voices.depth > 0:
        return weights, None
    shares = _shares_alone(sample, weights, voices)
    typical = _quantile(shares, voices.said, rule.most)
    if not rule.mild:
        return weights, voices if typical <= rule.hardly else None
    most = max(rule.suspect * typical, rule.alone)
    kept = weights * np.minimum(1.0, most / np.maximum(shares, most))
    kept *= weights.sum() / kept.sum()
    return kept, voices_of(kept, rule.headroom)


def voices_of(weights: Vector, headroom: float) -> Voices:
    """Return the voices of parties that weigh this much."""
    weights = np.maximum(weights, 0.0)
    typical = middle(weights, weights)
    said = np.minimum(weights, typical)
    return Voices(said, min(_MORE * typical, _MOST_DEPTH * float(said.sum())), headroom)


def _shares_alone(sample: Array, weights: Vector, voices: Voices) -> Vector:
    """Return the share of each party's squared difference that would be cut off."""
    rows = np.ascontiguousarray(sample, np.float64)
    value, alone = np.empty(rows.shape[1]), np.zeros(len(rows))
    codes = b"d" * len(rows)
    with np.errstate(over="ignore", invalid="ignore"):
        loops.current.corroborate(
            list(rows), codes, weights, *voices, value, b"d", None, alone, True
        )
        apart = np.square(rows - weights @ rows).sum(axis=1)
        shares: Vector = np.nan_to_num(alone / np.maximum(apart, _TINY), nan=1.0)
    return np.minimum(shares, 1.0)


def _quantile(values: Vector, weights: Vector, share: float) -> float:
    order = np.argsort(values, kind="stable")
    w = weights[order]
    return float(np.interp(share, (np.cumsum(w) - 0.5 * w) / w.sum(), values[order]))
