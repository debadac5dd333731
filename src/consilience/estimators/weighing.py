"""From levels to weights: one voice, one vote, as much as it is trusted, and nobody too loud.

`pairwise` reads levels and shared voices from the distances; what follows from them is here, a
function for each bound on what a party may weigh.
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median_low

import numpy as np

from consilience.arrays import Mask, Matrix, Vector
from consilience.beliefs import Past
from consilience.evidence import Block, Evidence, residuals
from consilience.updates.votes import at_most_a_third, at_most_half, middle

# Guards against rounding and endless loops: no choice of method.
_TINY = 1e-300  # in place of a zero to divide by
_SHORTEST = 0.5  # of the noise of the closest two: shorter is no length to compare others with
_MOST_TURNS, _STEADY = 20, 1e-6  # of the bound on pulls, and the change that ends it
_HALF = 0.5  # of the heaviest: who weighs as much is believed, too
_RARELY = 3  # standard deviations: what chance does not do


def votes(shared: Matrix, power: float) -> Vector:
    """Return each party's vote: (1 + Σ_l κ_jl^m) to minus this power."""
    size: Vector = 1 + shared.sum(axis=1)
    return size**-power


def heaviest(weights: Vector) -> Mask:
    """Tell which parties weigh at least half of what the heaviest does."""
    found: Mask = weights >= _HALF * weights.max()
    return found


def with_past(relative: Vector, evidence: Evidence, past: Past | None) -> Vector:
    """Return relative levels together with what rounds said that are no longer evidence.

    The geometric mean by what both are worth; but a quiet past is no licence: it explains no more
    of a loud present than chance does, three standard deviations.
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
    quieter one has more than its vote, up to ``most``."""
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
    """Return a party's samples over those of the typical one, from 1/most to most: how much more
    than its vote it gets. What more samples are worth shows in the noise level anyway.
    """
    if not sample_counts:
        return np.ones(len(parties))
    typical = median_low(sample_counts.values())
    said = np.array([sample_counts.get(party, typical) for party in parties])
    with np.errstate(over="ignore"):  # a claim may be as large as a number can be
        return np.clip(said / typical, 1 / most, most)


def fewness(relative: Vector, samples: Vector, heed: Vector) -> Vector:
    """Return what share of the samples that a typical level takes each party has, one at most.

    The level of a mean of n samples is σ²/n: what σ² is, relative to the typical level, is the
    median of what the parties say of it, each as far as it is heeded.
    """
    if (samples == 1).all():
        return samples
    each = typical_of(relative * samples, at_most_a_third(heed))
    return np.minimum(1.0, samples / each)


def bounded(weights: Vector, now: Block, longest: float, samples: Vector) -> tuple[Vector, Vector]:
    """Bound what each party's pull comes to in this very round; return also the lengths.

    Levels remember; a party may have been quiet until now. No residual counts for more than
    ``longest`` typical ones, or than few samples explain. A heavy party is close to a consensus of
    its own making, so no party has more than a third of the say in what is typical: nobody is the
    measure of all the others.
    """
    distances = now.distances[:-1, :-1]
    # Of copies all but one are at no distance from their mean: no length to compare others with.
    least = _SHORTEST * np.sqrt(now.least_distance / 2) if now.least_distance < np.inf else 1.0
    # To begin with, about the middle of most parties: a far one that weighs much would be left
    # behind in small steps only.
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
    """Return the weighted median of positive values, on the scale of their logarithms."""
    return float(np.exp(middle(np.log(values), weights)))
