"""Persistence: noise or data? Fresh noise fades in an average over rounds, data do not.

For N equal rounds of fresh noise with mean square q, an average keeps q/N. What it keeps beyond
that lasts, so the share of a party's error that lasts is

    λ_j = (q̄_j − q_j/N_j) / (1 − 1/N_j) / q_j,     q̄_j the mean square of its average (its trail)

A party seen in too few rounds is assumed to err always in the same way: λ = 1. So newcomers cannot
make the others seem noisy. (Momentum makes noise last for a while, and so increases λ.)

- *Slack.* If most parties' errors fade, parties differ by noise, and levels can be trusted; if they
  last, parties differ by data. The misfit of the levels cannot tell these apart: it assumes that
  coordinates are independent, while the errors of real gradients live in few directions. An
  adversary can make its own error fade or last, so neither all parties nor half of them decide.
- *Trust.* If parties differ by noise, one that errs the same way round after round stands out by
  the length of its trail, even if no two share it.
"""

from __future__ import annotations

import numpy as np

from consilience.arrays import Vector
from consilience.beliefs import Lasting
from consilience.estimators.certainty import largest_by_chance
from consilience.estimators.choices import Choices
from consilience.estimators.levels import of_peers
from consilience.updates.votes import middle

_TINY = 1e-300  # instead of zero as a divisor
_MOST = 0.99  # of an error lasts; more, and the bar on what nobody shares would be infinite
_LEAST_FRESH = 0.25  # a share of the typical error; less, and the bar on trails would be no bar


def lasting_squares(seen: Lasting) -> Vector:
    """Return the mean square of the lasting part of each party's error, λq; at least zero."""
    rounds = np.maximum(seen.rounds, 1.0)
    fresh = np.where(rounds > 1, 1 - 1 / rounds, np.inf)  # from one round, nothing is known to last
    found: Vector = np.maximum(seen.left - seen.squares / rounds, 0.0) / fresh
    return np.minimum(found, seen.squares)


def lasting_lengths(seen: Lasting, weights: Vector) -> Vector:
    """Return the length of the lasting part of each party's error, times the typical trail's."""
    typical = middle(seen.left, weights)
    found: Vector = np.sqrt(lasting_squares(seen) / (typical or np.inf))
    return found


def lasting_shares(seen: Lasting, enough_rounds: float) -> Vector:
    """Return λ; one for parties about which too little is known."""
    shares = lasting_squares(seen) / np.maximum(seen.squares, _TINY)
    return np.where((seen.rounds >= enough_rounds) & (seen.squares > 0), shares, 1.0)


def typical_lasting(seen: Lasting, enough_rounds: float, weights: Vector) -> float:
    """Return the weighted median of λ of the parties known for long enough, so that adversaries of
    little weight, whose errors may fade, do not matter; zero if half of the weight is not known."""
    known = seen.rounds >= enough_rounds
    if 2 * weights[known].sum() <= weights.sum():
        return 0.0
    return middle(lasting_shares(seen, enough_rounds)[known], weights[known])


def pairs_lasting(seen: Lasting, enough_rounds: float, weights: Vector) -> float:
    """Return the same from distances between parties: a weighted median over parties of a median
    over their peers; zero if nothing is known.

    Adversaries can displace the median about which errors are taken, anew in each round: then the
    errors of all seem to fade. Distances between two honest parties do not depend on it.
    """
    known = weights * (seen.rounds >= enough_rounds)
    if seen.apart is None or 2 * known.sum() <= weights.sum():
        return 0.0
    fresh = 0.5 / np.maximum(seen.rounds, 1.0)
    fresh = np.minimum(fresh[:, None] + fresh, _MOST)  # what noise leaves of a squared distance
    left, met = seen.block.distances[:-1, :-1], seen.apart > 0
    ratios = np.minimum(left, seen.apart) / np.where(met, seen.apart, 1.0)
    shares = np.clip((ratios - fresh) / (1 - fresh), 0.0, 1.0)
    heard = np.where(met, known, 0.0)
    np.fill_diagonal(heard, 0.0)
    there = (known > 0) & heard.any(axis=1)
    if not there.any():
        return 0.0
    return middle(of_peers(shares[there], heard[there], 0.5), known[there])


def now_lasting(seen: Lasting, enough_rounds: float, weights: Vector) -> float:
    """Return λ̃, the typical λ of this round: the larger of the two ways to tell it. For newcomers
    λ is one."""
    about_median = middle(lasting_shares(seen, enough_rounds), weights)
    return max(about_median, pairs_lasting(seen, enough_rounds, weights))


def lasts_of(seen: Lasting, enough_rounds: float, weights: Vector) -> float:
    """Return λ̃ for a memory, which must not learn it from newcomers."""
    about_median = typical_lasting(seen, enough_rounds, weights)
    return max(about_median, pairs_lasting(seen, enough_rounds, weights))


def most_lasting(seen: Lasting, lasts: float) -> float:
    """Return Λ, the largest λ̃ of all rounds, this one's included, and less than one. Late in
    training the noise of small batches outgrows what lasts, and λ falls, while data differ as
    before."""
    return min(max(seen.lasted, lasts), _MOST)


def known_to_last(seen: Lasting, how: Choices) -> float:
    """Return how far the errors of most parties are known to last: from 0, where they fade or half
    of the parties are newcomers, to 1."""
    known = seen.rounds >= how.enough_rounds
    if 2 * known.sum() <= len(known):
        return 0.0
    shares = lasting_shares(seen, how.enough_rounds)[known]
    return min(1.0, float(np.quantile(shares, how.fading)) / how.lasting)


def slack_from(shares: Vector, fading: float, lasting: float, most_slack: float) -> float:
    """Return ρ: from 1 if the errors of most parties (``fading``) fade, to the most if the share
    ``lasting`` of them lasts."""
    typical = float(np.quantile(shares, fading)) if shares.size else 1.0
    return 1 + (most_slack - 1) * min(1.0, typical / lasting)


def kept_of(
    seen: Lasting, enough_rounds: float, outlasting: float, lasts: float, weights: Vector
) -> Vector:
    """Return the share of its trust that each party keeps, if ``lasts`` is λ̃: less if the lasting
    part of its error is large beside the typical trail, which includes what chance leaves.
    Newcomers keep all of it.

    The bar is ``outlasting`` typical trails where errors are fresh noise. The more of them lasts,
    the more honest parties differ in their trails, and the higher the bar. In few coordinates it is
    no lower than what chance makes of equal parties. Beyond it, trust falls with the square: what a
    party adds to the consensus must fall as its error grows, and faster than training under a
    lasting bias makes errors grow. What is typical goes by weight, or copies near the middle would
    lower the bar for everybody else.
    """
    bar = outlasting / max(1 - lasts, _LEAST_FRESH)
    chance = largest_by_chance(np.full(len(seen.left), seen.block.count))
    most = max(bar, float(chance.max())) * middle(seen.left, weights)
    own = np.where(seen.rounds >= enough_rounds, lasting_squares(seen), 0.0)
    kept: Vector = np.where(own > most, most / np.maximum(own, max(most, _TINY)), 1.0) ** 2
    return kept
