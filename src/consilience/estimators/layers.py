"""In which tensors a party differs from the others, for people.

The distances in one tensor are read like those in all: with D_jl = s_j + s_l, the median of a
party's distances is s_j + s, where s is the typical level.
"""

from __future__ import annotations

import numpy as np

from consilience.arrays import Vector
from consilience.evidence import Block, Layers
from consilience.text import shown

_FAR = 2.0  # times the typical level, below which the tensors of a party are not looked at
_REMARKABLE = 3.0  # times typical, as for a party's noise
_ELSEWHERE = 0.5  # share of the largest, below which a tensor is not named
_NAMED = 3  # tensors, before the rest are counted
_CHANCE = 3.0  # standard deviations
_TINY = 1e-300  # instead of zero as a divisor


def stands_out(block: Block) -> bool:
    """Tell whether any party is far enough from the others to look at single tensors."""
    return bool(2 * block.typical_distances.max() >= (1 + _FAR) * block.typical)


def where(layers: Layers | None, party: str) -> str | None:
    """Return in words in which tensors a party's noise is, unless it is alike in all."""
    if layers is None or party not in layers.parties or len(layers.parties) < 3:
        return None
    level, typical = _levels(layers, layers.parties.index(party))
    times = _ratio(level, typical)
    least = times / (1 + _CHANCE * np.sqrt(2 / layers.counts))  # a smaller excess may be chance
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
    """Return lengths relative to the typical ones."""
    found: Vector = np.sqrt(level) / np.sqrt(np.maximum(typical, _TINY))  # a ratio may overflow
    return found
