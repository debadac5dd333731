"""Reasons: what is remarkable about a party, in a sentence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from consilience.arrays import Mask, Matrix, Positions, Vector
from consilience.text import shown

TOGETHER = 0.5  # parties that share at least this much of a voice move together
REMARKABLE = 3.0  # times the typical
_NAMED = 5  # parties, before the rest are counted


class Lasts(NamedTuple):
    """What is remarkable about errors that last over rounds."""

    longer: Vector  # (J,): the lasting part, times the typical; zero where it costs little trust
    alone: Mask  # (J,): whether it costs trust that the others' errors do not explain it

    @staticmethod
    def nothing(parties: int) -> Lasts:
        """Nothing is."""
        return Lasts(np.zeros(parties), np.zeros(parties, bool))

    def both(self, other: Lasts) -> Lasts:
        """Return what is so in both."""
        return Lasts(np.minimum(self.longer, other.longer), self.alone & other.alone)


def groups_of(
    parties: Sequence[str], shared: Matrix, together: float
) -> tuple[tuple[str, ...], ...]:
    """Return the sets of parties that move together, the largest first; nobody is in two."""
    found = (tuple(parties[j] for j in group.tolist()) for group in linked(shared, together))
    return tuple(sorted(found, key=lambda group: (-len(group), group)))


def linked(shared: Matrix, together: float) -> list[Positions]:
    """Return the sets of positions that share at least this much of a voice, in any order."""
    near = shared >= together
    near |= near.T
    np.fill_diagonal(near, False)
    found, left = [], near.any(axis=1)  # left: those in no group yet
    while left.any():
        group, new = np.zeros_like(left), np.flatnonzero(left)[:1]
        while new.size:  # those near the latest members, and not yet found
            group[new] = True
            new = np.flatnonzero(near[new].any(axis=0) & ~group)
        left &= ~group
        found.append(np.flatnonzero(group))
    return found


def explain(
    parties: Sequence[str],
    groups: Sequence[Sequence[str]],
    noise: Vector,
    lengths: Vector,
    remarkable: float = REMARKABLE,
    longest: float = REMARKABLE,
    lasting: Lasts | None = None,
) -> dict[str, str]:
    """Return a reason for each party that stands out; ``noise`` and ``lengths``: times typical.

    Noise is mentioned from ``remarkable`` on, a length from ``longest`` on, where it is clipped.
    """
    peers = {party: group for group in groups for party in group}
    errors = lasting or Lasts.nothing(len(parties))
    reasons = {}
    for party, level, length, lasts, alone in zip(parties, noise, lengths, *errors, strict=True):
        said = []
        if party in peers:
            others = [other for other in peers[party] if other != party]
            said.append(f"moves with {listed(others)}: one voice")
        if level >= remarkable:
            said.append(f"noise {level:.3g}× the typical")
        if lasts > 0:
            said.append(f"lasting error {lasts:.3g}× the typical")
        if alone:
            said.append("lasting error that the others do not explain")
        if length > longest:
            said.append(f"{length:.3g}× the typical length: clipped")
        if said:
            reasons[party] = "; ".join(said)
    return reasons


def listed(parties: Sequence[str]) -> str:
    """Return the names of a few parties, and how many more there are."""
    more = len(parties) - _NAMED
    return ", ".join(map(shown, parties[:_NAMED])) + (f" and {more} more" if more > 0 else "")
