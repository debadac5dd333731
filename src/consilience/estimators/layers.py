"""Where in an update a party's difference sits: in which tensors, for people.

For one tensor the distances between the parties say the same as for all of them: with
D_jl = s_j + s_l, half of a typical party's distances are s_j + s, s the typical level.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from consilience.arrays import Array, Vector
from consilience.text import shown

_REMARKABLE = 3.0  # times typical, as for a party's noise
_ELSEWHERE = 0.5  # of the largest: what is less is elsewhere
_NAMED = 3  # tensors, before the rest are counted
_CHANCE = 3.0  # standard deviations
_TINY = 1e-300  # in place of a zero to divide by


class Layers(NamedTuple):
    """The distances of a round, tensor by tensor."""

    names: tuple[str, ...]
    parties: tuple[str, ...]
    squares: Array  # (T, J, J): squared distances, summed over the coordinates seen
    counts: Vector  # (T,): how many these are

    def where(self, party: str) -> str | None:
        """Return in words where a party's noise is, if that is not everywhere alike."""
        if party not in self.parties or len(self.parties) < 3:
            return None
        apart, typical = self._levels(self.parties.index(party))
        times = _ratio(apart, typical)
        sure = times >= _REMARKABLE * (1 + _CHANCE * np.sqrt(2 / self.counts))
        there = sure & (times >= _ELSEWHERE * times[sure].max(initial=0.0))
        if not there.any():
            return None
        elsewhere = float(_ratio(apart[~there].sum(), typical[~there].sum()))
        if there.all() or elsewhere > _ELSEWHERE * times[there].min():
            return None
        order = sorted(np.flatnonzero(there), key=lambda t: -times[t])
        said = ", ".join(f"{times[t]:.3g}× in {shown(self.names[t])}" for t in order[:_NAMED])
        more = f" and {len(order) - _NAMED} more" if len(order) > _NAMED else ""
        return f"{said}{more}, {elsewhere:.2g}× elsewhere"

    def _levels(self, party: int) -> tuple[Vector, Vector]:
        """Return a party's level in each tensor, and the typical one, as sums over coordinates."""
        others = ~np.eye(len(self.parties), dtype=bool)
        distances = self.squares[:, others].reshape(len(self.names), len(self.parties), -1)
        each = np.median(distances, axis=2)  # (T, J)
        typical = 0.5 * np.median(each, axis=1)
        return np.maximum(each[:, party] - typical, 0.0), typical


def _ratio(level: Vector, typical: Vector) -> Vector:
    found: Vector = np.sqrt(level / np.maximum(typical, _TINY))
    return found
