"""What a round counts for in a memory: not much more than another round, nor a party in it.

A memory averages squared distances over rounds (see `evidence`). One round could hide what all
others told: if it was read in full beside sampled ones, if somebody sent something huge, or if it
is from before the noise of all fell, as it does with a smaller learning rate. So

- a round has no more coordinates than a sample has,
- nobody is further from the others than `LONGEST` typical lengths, as in trails,
- older rounds that were much louder than the latest are scaled down to it. None is scaled up: what
  was quiet then is soon outweighed anyway.
"""

from __future__ import annotations

import numpy as np

from consilience.evidence import Block, Evidence
from consilience.passes.sampling import most_read
from consilience.trails import LONGEST

_MUCH = 10.0  # times, as a variance: that of gradients differs several-fold from round to round
_ENOUGH = 5  # fewest parties of both rounds: of fewer, two could decide


def as_sampled(now: Evidence) -> Evidence:
    """Return the evidence of a round with no more coordinates than a sample has."""
    counts = [min(block.count, float(most_read(len(block.parties)))) for block in now.blocks]
    return Evidence(
        tuple(Block(b.parties, b.distances, n) for b, n in zip(now.blocks, counts, strict=True))
    )


def moderated(now: Evidence) -> Evidence:
    """Return the evidence of a round with nobody further away than `LONGEST` typical lengths."""
    return Evidence(tuple(_moderated(block) for block in now.blocks))


def _moderated(block: Block) -> Block:
    most = LONGEST**2 * block.typical
    far = block.typical_distances > most
    if most == 0 or not far.any():
        return block
    by = np.ones(len(far) + 1)  # with the centre, which stays where it is
    by[:-1][far] = most / block.typical_distances[far]
    return Block(block.parties, block.distances * np.minimum(by[:, None], by), block.count)


def on_scale_of(now: Evidence, past: Evidence) -> Evidence:
    """Return the evidence of earlier rounds, with none much louder than this one."""
    return Evidence(tuple(_no_louder(block, now.blocks[-1]) for block in past.blocks))


def _no_louder(then: Block, now: Block) -> Block:
    both = frozenset(then.parties) & frozenset(now.parties)
    if len(both) < _ENOUGH:
        return then
    before, here = _loudness(then.among(both)), _loudness(now.among(both))
    if here == 0 or before <= _MUCH * here:
        return then
    return Block(then.parties, then.distances * (here / before), then.count)


def _loudness(block: Block) -> float:
    """Return the median over parties of the median distance, which a minority cannot set."""
    return float(np.sort(block.typical_distances)[(len(block.parties) - 1) // 2])
