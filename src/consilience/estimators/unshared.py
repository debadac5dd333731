"""Unshared errors: lasting errors of a party that the errors of the others do not explain.

Where honest parties differ by their data, what lasts of their errors is made of a few things: each
class pulls its own way, and a party's error is a mixture by its shares of the classes. With enough
parties, the others' averages over rounds then explain most of each party's. They do not explain
what an adversary makes up. Noise of its own, by which it hides that it colludes, is made up too.

Party j's average is compared with the nearest point Σ a_l x_l of the others' averages with Σ a_l =
1; some a_l may be negative. The squared distance u_j follows from the distances D alone, as the
error of a prediction by kriging:

    B = [[D/2, 1], [1ᵀ, 0]],   u_j = −1/(B⁻¹)_jj

By chance, J − 1 others explain J − 2 of n coordinates: u_j is divided by 1 − (J − 2)/n.

Where data differ more, somebody may be the only owner of a class, and nobody explains it either.
How far that may be so shows in Λ, the largest typical share of an error that lasted in any round
(see `persistence.most_lasting`). The larger it is, the more a party may have for itself: the bar is
the field `unshared` over (1 − Λ)⁴.
"""

from __future__ import annotations

import numpy as np

from consilience.arrays import Matrix, Vector
from consilience.beliefs import Lasting
from consilience.estimators.certainty import largest_by_chance
from consilience.estimators.persistence import lasting_squares
from consilience.updates.votes import middle

_FEWEST = 5  # parties known for long enough: fewer explain nothing
_FAR = 100.0  # times the typical square of an average: whoever is so far off explains nobody
_LASTS = 0.5  # of the typical trail; where it is mostly noise, nobody explains anybody
_ALONE = 0.5  # of what lasts of the typical error; where nobody shares more, nobody has to
_LEAST = 0.01  # of the coordinates: others explain no more of them by chance
_APART = 1e-6  # of the typical distance: copies are as far apart as this, so that B has an inverse
_TINY = 1e-300  # instead of zero as a divisor


def kept_unshared(seen: Lasting, enough_rounds: float, most: float, weights: Vector) -> Vector:
    """Return the share of its trust that each party keeps.

    It is less if the unshared part of its lasting error is above the bar: the typical lasting
    square, times ``most``, times one, or times what chance makes of equal parties, whichever is
    largest. Beyond the bar, trust falls with the fourth power. Newcomers keep all of it.
    """
    kept, own, left = np.ones(len(seen.left)), lasting_squares(seen), seen.left
    known = np.flatnonzero((seen.rounds >= enough_rounds) & (left <= _FAR * middle(left, weights)))
    if len(known) < _FEWEST:
        return kept
    own, left, weights = own[known], left[known], weights[known]
    if middle(own / np.maximum(left, _TINY), weights) < _LASTS:
        return kept
    noise = np.maximum(left - own, 0.0)  # what chance leaves in an average
    alone = unexplained(seen.block.distances[np.ix_(known, known)])
    alone /= max(1 - (len(known) - 2) / seen.block.count, _LEAST)
    alone = np.clip(alone - noise, 0.0, own)
    if middle(alone / np.maximum(own, _TINY), weights) > _ALONE:
        return kept
    chance = largest_by_chance(np.full(len(known), max(seen.block.count - len(known) + 2, 1.0)))
    bar = max(1.0, most, float(chance.max())) * middle(own, weights)
    kept[known] = np.where(alone > bar, bar / np.maximum(alone, max(bar, _TINY)), 1.0) ** 4
    return kept


def unexplained(distances: Matrix) -> Vector:
    """Return the squared distance of each point from the nearest mixture of the others, u."""
    count = len(distances)
    scale = float(distances.mean()) or 1.0  # no entry is then large, whatever most distances are
    bordered = np.ones((count + 1, count + 1))
    bordered[:count, :count] = 0.5 * distances / scale + _APART
    np.fill_diagonal(bordered, 0.0)
    inverse = np.linalg.pinv(bordered, hermitian=True)  # of any distances, while inv may fail
    found: Vector = scale / np.maximum(-inverse.diagonal()[:count], _APART)
    return found
