"""Noise that changes from round to round, where not everybody was there in all of them.

A level is that of all of a party's rounds, and a distance that of the rounds in which two parties
met. Who joins after noise has fallen, as that of gradients does, met the others when they were
quiet: next to their levels it is near them all, and would seem to move with them.

- The noise of *all* may fall. Rounds that were much louder than the last one, by what levels
  explain, are made as quiet. None is made louder: a few who are near each other could then make a
  round's honest parties seem as loud as they like.
- That of *one* may. Two parties that were much nearer to most others in the rounds in which they
  met are not expected farther apart than that.
"""

from __future__ import annotations

import numpy as np

from consilience.arrays import Matrix, Positions, Vector
from consilience.evidence import Block, Evidence

_MUCH = 2.0  # times, as a variance: what is less may be chance
_ENOUGH = 5  # parties of a round, for what was typical in it to say something of two of them
_TINY = 1e-300  # in place of a zero to divide by


def on_one_scale(evidence: Evidence, levels: Vector) -> Evidence:
    """Return the evidence with no round louder than the last, if one is much louder."""
    if len(evidence.blocks) == 1:
        return evidence
    loud = np.array(
        [_loudness(*each, levels) for each in zip(evidence.blocks, evidence.members, strict=True)]
    )
    if loud[-1] == 0 or loud.max() <= _MUCH * loud[-1]:  # where most are copies, nothing is known
        return evidence
    by = np.minimum(1.0, loud[-1] / np.maximum(loud, loud[-1]))
    scaled = zip(evidence.blocks, by, strict=True)
    return Evidence(tuple(Block(b.parties, b.distances * f, b.count) for b, f in scaled))


def _loudness(block: Block, members: Positions, levels: Vector) -> float:
    """Return the typical distance over the sum of levels: a median of medians, which less than half
    of the parties cannot set."""
    mine = levels[members]
    ratios = block.distances[:-1, :-1] / np.maximum(mine[:, None] + mine, _TINY)
    half = len(mine) // 2  # of all: the least distance is that from itself
    each = np.sort(np.partition(ratios, half, axis=1)[:, half])
    return float(each[(len(mine) - 1) // 2])


def expected_distances(evidence: Evidence, levels: Vector) -> Matrix:
    """Return how far apart each two parties are expected, (J, J): the sum of their levels, or less
    where they met in rounds in which they were much less noisy."""
    sums: Matrix = levels[:, None] + levels
    if len(evidence.blocks) == 1:
        return sums
    total, count = np.zeros_like(sums), np.zeros_like(sums)
    for block, members in zip(evidence.blocks, evidence.members, strict=True):
        at = np.ix_(members, members)
        then = np.maximum(block.typical_distances - 0.5 * block.typical, 0.0)
        # Of few parties, two that move together may be most.
        total[at] += block.count * (then[:, None] + then if len(then) >= _ENOUGH else sums[at])
        count[at] += block.count
    there = total / np.maximum(count, _TINY)  # zero for who never met, and among copies
    found: Matrix = np.where((there > 0) & (_MUCH * there < sums), there, sums)
    return found
