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
Two things tell how far that may be so: s̃, the typical share of what lasts that nobody shares, and
λ̃, the typical share of an error that lasts. The larger they are, the more a party may have for
itself: see `kept_unshared`.
"""

from __future__ import annotations

import numpy as np

from consilience.arrays import Matrix, Vector
from consilience.beliefs import Lasting
from consilience.estimators.persistence import lasting_shares, lasting_squares
from consilience.updates.votes import middle

_FEWEST = 5  # parties known for long enough: fewer explain nothing
_FAR = 100.0  # times the typical square of what lasts: whoever errs so much explains nobody
_LASTS = 0.5  # of the typical trail; where it is mostly noise, nobody explains anybody
_LEAST = 0.01  # at least so much of an error is shared, and fades; so no bar is infinite
_HEARD = 0.15  # of its trust at least: what a party alone knows is then learnt, but later
_APART = 1e-6  # of the typical distance: copies are as far apart as this, so that B has an inverse
_TINY = 1e-300  # instead of zero as a divisor


def kept_unshared(seen: Lasting, enough_rounds: float, most: float, weights: Vector) -> Vector:
    """Return the share of its trust that each party keeps.

    It is less if the unshared part of what lasts of a party's error is larger than max(1,
    ``most``/((1 − s̃)(1 − λ̃))²) typical squares of what lasts. Beyond that bar trust falls with the
    square, but not to nothing: the party may be the only one to know a class. If that were
    forgotten, its error would grow, and its trust fall further. Newcomers keep all of their trust.
    """
    kept, own = np.ones(len(seen.left)), lasting_squares(seen)
    known = np.flatnonzero((seen.rounds >= enough_rounds) & (own <= _FAR * middle(own, weights)))
    if len(known) < _FEWEST:
        return kept
    fading = 1 - middle(lasting_shares(seen, enough_rounds), weights)
    own, left, weights = own[known], seen.left[known], weights[known]
    if middle(own / np.maximum(left, _TINY), weights) < _LASTS:
        return kept
    noise = np.maximum(left - own, 0.0)  # what chance leaves in an average
    alone = unexplained(seen.block.distances[np.ix_(known, known)])
    alone /= max(1 - (len(known) - 2) / seen.block.count, _LEAST)
    alone = np.clip(alone - noise, 0.0, own)
    shared = 1 - middle(alone / np.maximum(own, _TINY), weights)
    typical = middle(own, weights)
    bar = typical * max(1.0, most / (max(shared, _LEAST) * max(fading, _LEAST)) ** 2)
    beyond = np.where(alone > bar, bar / np.maximum(alone, max(bar, _TINY)), 1.0)
    kept[known] = np.maximum(beyond**2, _HEARD)
    return kept


def unexplained(distances: Matrix) -> Vector:
    """Return the squared distance of each point from the nearest mixture of the others, u."""
    count, apart = len(distances), distances[distances > 0]
    scale = float(np.median(apart)) if apart.size else 1.0
    bordered = np.ones((count + 1, count + 1))
    bordered[:count, :count] = 0.5 * distances / scale + _APART
    np.fill_diagonal(bordered, 0.0)
    inverse = np.linalg.pinv(bordered, hermitian=True)  # of any distances, while inv may fail
    found: Vector = scale / np.maximum(-inverse.diagonal()[:count], _APART)
    return found
