"""Reasons: what is remarkable about a party, in a sentence for people."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from consilience.evidence import Matrix, Vector
from consilience.text import shown

_TOGETHER = 0.5  # of a voice shared: from here on two parties move together
_REMARKABLE = 3.0  # times the typical
_NAMED = 5  # members of a group, before the rest are counted


def groups_of(parties: Sequence[str], shared: Matrix) -> tuple[tuple[str, ...], ...]:
    """Return the sets of parties that move together, the largest first; nobody in two."""
    from scipy.sparse.csgraph import connected_components  # here, as it is slow to import

    _, label = connected_components(shared >= _TOGETHER, directed=False)
    members = [np.flatnonzero(label == group).tolist() for group in np.unique(label)]
    found = [tuple(parties[j] for j in group) for group in members if len(group) > 1]
    return tuple(sorted(found, key=lambda group: (-len(group), group)))


def explain(
    parties: Sequence[str],
    groups: Sequence[Sequence[str]],
    noise: Vector,
    lengths: Vector,
) -> dict[str, str]:
    """Return a reason for each party that stands out; ``noise`` and ``lengths``: times typical."""
    peers = {party: group for group in groups for party in group}
    reasons = {}
    for party, level, length in zip(parties, noise, lengths, strict=True):
        said = []
        if party in peers:
            said.append(f"moves with {_names(party, peers[party])}: one voice")
        if level >= _REMARKABLE:
            said.append(f"noise {level:.3g}× the typical")
        if length > _REMARKABLE:
            said.append(f"{length:.3g}× the typical length: clipped")
        if said:
            reasons[party] = "; ".join(said)
    return reasons


def _names(party: str, group: Sequence[str]) -> str:
    others = [other for other in group if other != party]
    more = len(others) - _NAMED
    return ", ".join(map(shown, others[:_NAMED])) + (f" and {more} more" if more > 0 else "")
