"""From levels to weights: one vote for each voice, reduced by trust, and nobody too loud.

`pairwise` reads levels and shared voices from the distances; here is what follows from them, a
function for each bound on a party's weight.
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median_low
from typing import NamedTuple

import numpy as np

from consilience.arrays import Mask, Matrix, Positions, Vector
from consilience.beliefs import Past
from consilience.evidence import Block, Evidence, residuals
from consilience.updates.votes import at_most_a_third, at_most_half, between_halves

# Guards against rounding and endless loops, not parameters of the method.
_TINY = 1e-300  # instead of zero as a divisor
_LEAST = 1e-100  # of relative levels: zero has no logarithm
_SHORTEST = 0.5  # of the noise of the closest two: shorter lengths are not compared
_MOST_TURNS, _STEADY = 20, 1e-6  # iterations of the bound on pulls, and the change that ends them
_HALF = 0.5  # of the heaviest: who weighs as much is trusted, too
_RARELY = 3  # standard deviations: beyond them it is not chance


def votes(shared: Matrix, power: float) -> Vector:
    """Return each party's vote: (1 + Σ_l κ_jl^m) to minus this power."""
    size: Vector = 1 + shared.sum(axis=1)
    return size**-power


def heaviest(weights: Vector) -> Mask:
    """Tell which parties weigh at least half as much as the heaviest."""
    found: Mask = weights >= _HALF * weights.max(initial=0.0)
    return found


def with_past(relative: Vector, evidence: Evidence, past: Past | None) -> Vector:
    """Return relative levels combined with those of rounds that are no longer evidence.

    It is a geometric mean, weighted by what both are worth. But a quiet past is no licence: it
    explains no more of a loud present than chance does, three standard deviations.
    """
    if past is None:
        return relative
    before, worth = past.of(evidence.parties)
    share = worth / (worth + evidence.worth)
    both = relative ** (1 - share) * before**share
    least = relative / (1 + _RARELY * np.sqrt(2 / evidence.worth))
    together: Vector = np.maximum(both, least)
    return together


def trust(relative: Vector, slack: float, loudest: float, most: float = 1.0) -> Vector:
    """Return how much of its vote a party keeps, given its level relative to the typical one; a
    quieter one gets more than its vote, up to ``most``."""
    length = np.sqrt(np.maximum(relative, _TINY))
    full = min(loudest, slack)
    kept = np.minimum(1.0, np.minimum(full / length, full * slack / length**2))
    more: Vector = np.where(length < 1, np.minimum(most, length**-2), kept)
    return more


def shorth(values: Vector) -> float:
    """Return the width of the shortest interval that holds more than half of the values."""
    ordered, more = np.sort(values), len(values) // 2
    return float((ordered[more:] - ordered[: len(values) - more]).min())


def claims(
    parties: tuple[str, ...], sample_counts: Mapping[str, float] | None, most: float
) -> Vector:
    """Return a party's samples relative to the typical party's, from 1/most to most: how much more
    than its vote it gets. The value of more samples also shows in the noise level.
    """
    if not sample_counts:
        return np.ones(len(parties))
    typical = median_low(sample_counts.values())
    said = np.array([sample_counts.get(party, typical) for party in parties])
    with np.errstate(over="ignore"):  # a claim may be as large as a float can be
        return np.clip(said / typical, 1 / most, most)


def fewness(relative: Vector, samples: Vector, heed: Vector) -> Vector:
    """Return each party's samples relative to those that a typical level takes, one at most.

    The level of a mean of n samples is σ²/n. Relative to the typical level, σ² is taken to be the
    median of the parties' values, weighted by ``heed``.
    """
    if (samples == 1).all():
        return samples
    each = typical_of(np.maximum(relative * samples, _LEAST), at_most_a_third(heed))
    return np.minimum(1.0, samples / each)


def bounded(weights: Vector, now: Block, longest: float, samples: Vector) -> tuple[Vector, Vector]:
    """Bound each party's pull in this round; return also the lengths.

    Levels are averages over rounds, and a party may have been quiet until now. No residual counts
    for more than ``longest`` typical ones, or than few samples explain. A heavy party is close to a
    consensus of its own making, so no party has more than a third of the weight in what is typical.
    """
    distances = now.distances[:-1, :-1]
    # All copies but one are at no distance from their mean: no length to compare others with.
    least = _SHORTEST * np.sqrt(now.least_distance / 2) if now.least_distance < np.inf else 1.0
    # First about the middle of most parties: a far one with much weight would be left behind only
    # in small steps.
    lengths = np.sqrt(now.typical_distances / (now.typical or 1.0))
    kept = np.minimum(1.0, longest / np.maximum(lengths, 1.0))
    for _ in range(_MOST_TURNS):
        w = at_most_half(weights * kept)
        lengths = np.sqrt(np.maximum(residuals(distances, w / w.sum()), 0.0))
        typical = typical_of(np.maximum(lengths, least), at_most_a_third(w))
        lengths /= typical
        lengths *= np.sqrt(fewness(lengths**2, samples, w))
        before, kept = kept, np.minimum(1.0, longest / np.maximum(lengths, 1.0))
        if np.abs(kept - before).max() < _STEADY:
            break
    return weights * kept, lengths


def typical_of(values: Vector, weights: Vector) -> float:
    """Return the weighted median of positive values, in logarithms."""
    return Ranked.of(values).typical(weights)


class Ranked(NamedTuple):
    """Positive values in ascending order, for their medians by several weights."""

    order: Positions
    logs: Vector

    @classmethod
    def of(cls, values: Vector) -> Ranked:
        """Sort the values."""
        order = np.argsort(values, kind="stable")
        return cls(order, np.log(values[order]))

    def typical(self, weights: Vector) -> float:
        """Return their weighted median, in logarithms: see `middle`."""
        return float(np.exp(between_halves(self.logs, weights[self.order], logs=True)))
