"""Where in an update a party's difference sits: in which tensors, for people.

For one tensor the distances between the parties say the same as for all of them: with
D_jl = s_j + s_l, half of a typical party's distances are s_j + s, s the typical level.
"""

from __future__ import annotations

import numpy as np

from consilience.arrays import Vector
from consilience.evidence import Block, Layers
from consilience.text import shown

_FAR = 2.0  # times the typical level: who is less so is named for nothing that sits in places
_REMARKABLE = 3.0  # times typical, as for a party's noise
_ELSEWHERE = 0.5  # of the largest: what is less is elsewhere
_NAMED = 3  # tensors, before the rest are counted
_CHANCE = 3.0  # standard deviations
_TINY = 1e-300  # in place of a zero to divide by


def stands_out(block: Block) -> bool:
    """Tell whether any party is far enough from the others to ask where."""
    return bool(2 * block.typical_distances.max() >= (1 + _FAR) * block.typical)


def where(layers: Layers | None, party: str) -> str | None:
    """Return in words in which tensors a party's noise is, if it is not everywhere alike."""
    if layers is None or party not in layers.parties or len(layers.parties) < 3:
        return None
    level, typical = _levels(layers, layers.parties.index(party))
    times = _ratio(level, typical)
    least = times / (1 + _CHANCE * np.sqrt(2 / layers.counts))  # the rest may be chance
    there = least >= max(_REMARKABLE, _ELSEWHERE * float(least.max()))
    rest = np.where(there, 0.0, layers.sizes)
    elsewhere = float(_ratio(rest @ level, rest @ typical))
    if not there.any() or there.all() or elsewhere > _ELSEWHERE * least[there].min():
        return None
    order = sorted(np.flatnonzero(there), key=lambda t: -times[t])
    said = ", ".join(f"{times[t]:.3g}× in {shown(layers.names[t])}" for t in order[:_NAMED])
    more = f" and {len(order) - _NAMED} more" if len(order) > _NAMED else ""
    return f"{said}{more}, {elsewhere:.2g}× elsewhere"


def _levels(layers: Layers, party: int) -> tuple[Vector, Vector]:
    """Return a party's level in each tensor, and the typical one: (T,)."""
    count = len(layers.parties)
    others = ~np.eye(count, dtype=bool)
    distances = layers.distances[:, others].reshape(len(layers.names), count, count - 1)
    each = np.median(distances, axis=2)  # (T, J)
    typical = 0.5 * np.median(each, axis=1)
    return np.maximum(each[:, party] - typical, 0.0), typical


def _ratio(level: Vector, typical: Vector) -> Vector:
    """Return lengths, over the typical ones."""
    found: Vector = np.sqrt(level) / np.sqrt(np.maximum(typical, _TINY))  # a ratio may overflow
    return found
