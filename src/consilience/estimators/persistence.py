"""Persistence: noise or data? Fresh noise fades in an average over rounds, data do not.

Of N equal rounds of fresh noise with mean square q, an average keeps q/N. What it keeps beyond that
lasts, so the share of a party's error that lasts is

    λ_j = (q̄_j − q_j/N_j) / (1 − 1/N_j) / q_j,     q̄_j the mean square of its average (its trail)

A party that was seen in too few rounds is taken to err the same way always: λ = 1. So nobody's
newcomers make the others seem noisy. (Momentum makes noise last for a while, and λ with it.)

- *Slack.* Where most parties' errors fade, parties differ by noise, and levels can be believed;
  where they last, parties differ by data. The misfit of the levels cannot tell the two apart: its
  yardstick takes each coordinate for a draw of its own, while the errors of real gradients live in
  few directions. An adversary can make its own error fade or last, hence not all and not half.
- *Trust.* In a world of noise, somebody who errs the same way round after round stands out by how
  long its trail is, even if no two share it.
"""

from __future__ import annotations

import numpy as np

from consilience.arrays import Vector
from consilience.beliefs import Lasting

_TINY = 1e-300  # in place of a zero to divide by


def lasting_squares(seen: Lasting) -> Vector:
    """Return the mean square of what lasts of each party's error: λq. Not below zero."""
    rounds = np.maximum(seen.rounds, 1.0)
    fresh = np.where(rounds > 1, 1 - 1 / rounds, np.inf)  # of one round, nothing is known to last
    found: Vector = np.maximum(seen.left - seen.squares / rounds, 0.0) / fresh
    return np.minimum(found, seen.squares)


def lasting_shares(seen: Lasting, enough_rounds: float) -> Vector:
    """Return λ, one for parties of whom too little is known."""
    shares = lasting_squares(seen) / np.maximum(seen.squares, _TINY)
    return np.where((seen.rounds >= enough_rounds) & (seen.squares > 0), shares, 1.0)


def slack_from(shares: Vector, fading: float, lasting: float, most_slack: float) -> float:
    """Return ρ: from 1 where the errors of most parties (``fading``) fade, to the most where the
    share ``lasting`` of them lasts."""
    typical = float(np.quantile(shares, fading)) if shares.size else 1.0
    return 1 + (most_slack - 1) * min(1.0, typical / lasting)


def kept_of(seen: Lasting, enough_rounds: float, outlasting: float) -> Vector:
    """Return how much of its trust each party keeps: less where what lasts of its error is more
    than so many typical trails. Those have what chance leaves in them, and newcomers all of it.

    Where all errors last, trails differ as much as levels do; the bar is then twice as high.
    """
    lasts = float(np.median(lasting_shares(seen, enough_rounds)))
    typical = (1 + lasts) * float(np.median(seen.left))
    own = np.where(seen.rounds >= enough_rounds, lasting_squares(seen), 0.0)
    most = outlasting * typical
    kept: Vector = np.where(own > most, most / np.maximum(own, max(most, _TINY)), 1.0)
    return kept
