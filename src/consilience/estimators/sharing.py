"""How much of a voice each two parties share: what levels do not explain of the distances.

κ_jl = 1 − D_jl/(s_j + s_l) is correlation. It counts to the power m = ρ(ρ + 1)/2, and only as far
as chance does not explain it.
"""

from __future__ import annotations

import numpy as np

from consilience.arrays import Matrix, Vector
from consilience.estimators.weighing import Ranked, votes
from consilience.updates.votes import at_most_a_third

_TINY = 1e-300  # instead of zero as a divisor
_LOWEST = 0.5  # of the median level: where a quiet minority needs more to move the typical one
_TURNS = 3  # iterations: who is typical depends on the votes, and a little the other way round


def common_level(
    distances: Matrix,
    often: Matrix,
    levels: Vector,
    expected: Matrix,
    slack: float,
    *,
    heeds: tuple[Vector, ...],
    nearest: Matrix,
    quietest_pair: float | Matrix,
    vote_power: float,
) -> tuple[float, Matrix]:
    """Return the typical level t, and how much of a voice each two parties share: κ^m, (J, J).

    With slack, no pair is assumed quieter than typical: nearness is then taken for correlation.
    ``often`` is the share of a party's coordinates in which it met the other. ``heeds`` are how
    much each level counts in t (see `typical_level`); they grow with what was seen of a party, so
    that abandoned ids have no more say than parties that stay. ``nearest`` is where correlation
    begins, as a share of the ``expected`` distance: see `chance`.
    """
    doubt = slack * (slack + 1) / 2  # m: honest parties with similar data correlate, too
    ranked, strangers = Ranked.of(levels), often == 0
    typical = typical_level(ranked, heeds)
    for _ in range(_TURNS):
        shared = np.maximum(expected, quietest_pair * (1 - slack**-2) * typical)
        np.divide(distances, shared, out=shared)
        shared /= nearest
        np.subtract(1, shared, out=shared)
        np.clip(shared, 0, 1, out=shared)
        shared **= doubt
        shared[strangers] = 0.0
        heard = votes(often * shared, vote_power)
        before, typical = typical, typical_level(ranked, heeds, heard)
        if typical == before or slack == 1:  # another turn would change nothing
            break
    return typical, shared


def typical_level(ranked: Ranked, heeds: tuple[Vector, ...], heard: Vector | float = 1.0) -> float:
    """Return t, the weighted median of the levels, in which quiet parties count more.

    If errors are known to last, there are three heeds. A quiet minority may then move t to half of
    the median level, and further only if it does so with less heed: the loud may not err by noise,
    but by their data.
    """

    def median(heed: Vector) -> float:
        return ranked.typical(at_most_a_third(heard * heed))

    quiet, *others = heeds
    found = median(quiet)
    if not others:
        return found
    equal, less = others
    lowest = _LOWEST * median(equal)
    return found if found >= lowest else max(found, min(lowest, median(less)))


def agreement(count: float, parties: int) -> float:
    """Return how much it means that two parties send the same, from 0 to 1.

    If a coordinate has two values, as a rating may have, two strangers agree in n coordinates with
    a probability of 2⁻ⁿ, and there are about J² pairs.
    """
    return float(max(0.0, 1 - parties**2 * 2.0 ** -min(count, 1000.0)))


def chance(counts: Matrix, rarely: float, nearest: float) -> Matrix:
    """Return the correlation that two independent parties rarely seem to have in n coordinates.

    D_jl/(s_j + s_l) is then χ²/n; by Wilson and Hilferty its cube root is nearly normal, with mean
    1 − 2/9n and variance 2/9n. What is shared by chance adds up over peers, so the bar rises with
    their number.
    """
    variance = 2 / (9 * np.maximum(counts, _TINY))
    near = np.maximum(1 - variance - rarely * np.sqrt(variance), nearest)
    found: Matrix = 1 - near * near * near  # a power would take ten times as long
    return found
