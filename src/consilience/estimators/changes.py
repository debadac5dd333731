"""Noise that changes over rounds in which not everybody took part.

A level is an average over all of a party's rounds, but a distance only over the rounds in which two
parties met. A party that joins after noise has fallen, as that of gradients does, met the others
when they were quiet. Given their levels, it is near to all of them, and seems to move with them.

- The noise of *all* may fall. Rounds much louder than the last one, as explained by levels, are
  scaled down to it. None is scaled up: a few parties that are near each other could then make the
  honest parties of a round seem as loud as they like.
- That of *one* may fall. Two parties that were much nearer to most others in the rounds in which
  they met are expected no farther apart than that.
"""

from __future__ import annotations

import numpy as np

from consilience.arrays import Matrix, Positions, Vector
from consilience.evidence import Block, Evidence

_MUCH = 2.0  # times, as a variance: less may be chance
_ENOUGH = 5  # fewest parties of a round whose typical distance tells something about two of them
_TINY = 1e-300  # instead of zero as a divisor


def on_one_scale(evidence: Evidence, levels: Vector) -> Evidence:
    """Return the evidence with no round louder than the last, if one is much louder."""
    if len(evidence.blocks) == 1:
        return evidence
    loud = np.array(
        [_loudness(*each, levels) for each in zip(evidence.blocks, evidence.members, strict=True)]
    )
    if loud[-1] == 0 or loud.max() <= _MUCH * loud[-1]:  # if most are copies, nothing is known
        return evidence
    by = np.minimum(1.0, loud[-1] / np.maximum(loud, loud[-1]))
    scaled = zip(evidence.blocks, by, strict=True)
    return Evidence(tuple(Block(b.parties, b.distances * f, b.count) for b, f in scaled))


def _loudness(block: Block, members: Positions, levels: Vector) -> float:
    """Return the typical ratio of distance to sum of levels: a median of medians, which a minority
    of the parties cannot set."""
    mine = levels[members]
    ratios = block.distances[:-1, :-1] / np.maximum(mine[:, None] + mine, _TINY)
    half = len(mine) // 2  # the distance from itself is among them
    each = np.sort(np.partition(ratios, half, axis=1)[:, half])
    return float(each[(len(mine) - 1) // 2])


def expected_distances(evidence: Evidence, levels: Vector) -> Matrix:
    """Return the expected distance of each two parties, (J, J): the sum of their levels, or less if
    they met in rounds in which they were much less noisy."""
    sums: Matrix = levels[:, None] + levels
    if len(evidence.blocks) == 1:
        return sums
    total, count = np.zeros_like(sums), np.zeros_like(sums)
    for block, members in zip(evidence.blocks, evidence.members, strict=True):
        at = np.ix_(members, members)
        then = np.maximum(block.typical_distances - 0.5 * block.typical, 0.0)
        # Among few parties, two that move together may be the majority.
        total[at] += block.count * (then[:, None] + then if len(then) >= _ENOUGH else sums[at])
        count[at] += block.count
    there = total / np.maximum(count, _TINY)  # zero for pairs that never met, and among copies
    found: Matrix = np.where((there > 0) & (_MUCH * there < sums), there, sums)
    return found
