"""How well distances are known, which is little if few coordinates were seen.

With independent noise in n coordinates, D_jl is (s_j + s_l)·χ²_n/n. With ten coordinates, chance
makes one of two equal parties seem twice as noisy as the other, and a fit to such distances would
make a dictator of whoever happens to be near the others. So each distance is shrunk towards the
typical one, as if that had been seen in ν more coordinates:

    D'_jl = (n D_jl + ν D̄) / (n + ν)

ν says how much the parties' levels differ, and is learnt from the distances. If levels are
distributed as an inverse χ²_ν, distances are as Snedecor's F(n, ν): nearly equal levels give a
large ν, levels over orders of magnitude a small one. D̄ is a median of medians, which a minority of
the parties cannot set. From 4,096 coordinates on nothing is changed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from consilience.arrays import Mask, Matrix, Vector
from consilience.evidence import Block

_MANY = 1 << 12  # coordinates: with more, a prior worth 64 of them hardly matters
_COORDINATES = 2.0 ** np.arange(-2, 7)  # a grid for ν
_FARTHER = 2.0 ** np.arange(-4, 0.1, 0.5)  # a grid for the scale of F, over the typical distance
_QUANTILES = 256  # of the distances, used instead of all of them
_SKEWED = 0.29  # the median of medians of χ²_n/n is about (1 − 0.29/n)³
_CLOSEST = 1e-9  # relative to the typical distance: the least that counts
_FEWEST = 1e-3  # coordinates, instead of none
_ACCUSED = 0.01  # share of rounds with equal parties in which somebody may be named


@dataclass(frozen=True)
class Prior:
    """What distances are shrunk towards."""

    coordinates: float  # ν
    distance: float  # D̄
    count: float  # n, of a typical pair

    @property
    def own(self) -> float:
        """The weight of its own data in a typical pair's distance."""
        return self.count / (self.count + self.coordinates)

    def blended(self, distances: Matrix, counts: Matrix) -> Matrix:
        """Return the distances, shrunk towards the typical one; zero for pairs that never met."""
        if self.coordinates == 0:
            return distances
        total = counts + self.coordinates
        blend = (counts * distances + self.coordinates * self.distance) / total
        return np.where(counts > 0, blend, 0.0)


def learnt(distances: Matrix, counts: Matrix) -> Prior:
    """Return the prior for these distances (J, J), given the number of coordinates of each."""
    count = _typical_count(counts)
    if count >= _MANY:
        return Prior(0.0, 0.0, count)
    met = counts > 0
    typical = _typical(distances, met) / (1 - _SKEWED / max(count, 1.0)) ** 3
    if typical == 0:  # most are copies: there is no noise to shrink towards
        return Prior(0.0, 0.0, count)
    seen = distances[np.triu(met, 1)] / typical
    weight = 2 / len(distances)  # weight of a pair: J parties are J draws, not J(J − 1)/2
    if seen.size > _QUANTILES:
        weight *= seen.size / _QUANTILES
        seen = np.quantile(seen, (np.arange(_QUANTILES) + 0.5) / _QUANTILES)
    likely = np.exp(weight * _log_likelihood(np.maximum(seen, _CLOSEST), count))
    own = float((likely * count / (count + _COORDINATES)).sum() / likely.sum())
    return Prior(count * (1 - own) / own, typical, count)


def steadied(block: Block) -> Block:
    """Return a block whose distances between parties are shrunk towards the typical one."""
    if block.count >= _MANY:
        return block
    parties = np.full_like(block.distances[:-1, :-1], block.count)
    np.fill_diagonal(parties, 0.0)
    distances = block.distances.copy()
    prior = learnt(distances[:-1, :-1], parties)
    distances[:-1, :-1] = prior.blended(distances[:-1, :-1], parties)
    return Block(block.parties, distances, block.count)


def _typical_count(counts: Matrix) -> float:
    """Return the median of the positive counts."""
    most = float(counts.max())
    if np.count_nonzero(counts == most) == np.count_nonzero(counts):  # no need to sort
        return most
    return float(np.median(counts[counts > 0]))


def _typical(distances: Matrix, met: Mask) -> float:
    """Return the median over parties of their median distance, in logarithms."""
    with np.errstate(divide="ignore"):
        logs = np.where(met, np.log(distances), np.nan)
    return float(np.exp(np.median(np.nanmedian(logs, axis=1))))


def _log_likelihood(seen: Vector, count: float) -> Matrix:
    """Return the log likelihood of F(n, ν) on the grid of scales and ν, less its maximum."""
    from scipy.special import betaln  # here, as its import takes longer than all others

    x = seen[:, None, None] / _FARTHER[:, None]
    nu, n = _COORDINATES, count
    each = 0.5 * n * (np.log(n / nu) + np.log(x)) - 0.5 * (n + nu) * np.log1p(n * x / nu)
    total: Matrix = each.sum(axis=0) - len(seen) * betaln(n / 2, nu / 2)
    return np.asarray(total - total.max())


def beyond_chance(relative: Vector, known: Vector, share: float) -> Mask:
    """Tell which parties' levels, relative to the typical one, chance does not explain: (..., J).

    Snedecor's F test at a level of one in a hundred for all parties of a round together. ``known``
    are the coordinates behind each level; ``share`` is the weight of the data in the distances,
    before they were shrunk.
    """
    seen = 1 + (relative - 1) / share  # undo the shrinkage
    found: Mask = seen > largest_by_chance(known)
    return found


def largest_by_chance(known: Vector) -> Vector:
    """Return how large chance makes a level, relative to the typical one, in one round of a hundred
    with equal parties: (J,). ``known`` are the coordinates behind each level."""
    from scipy.special import fdtri

    others = max(float(known.sum() - known.max(initial=0.0)), _FEWEST)
    some, where = np.unique(known, return_inverse=True)  # mostly one: a ratio takes microseconds
    with np.errstate(over="ignore", invalid="ignore"):
        ratio = fdtri(np.maximum(some, _FEWEST), others, 1 - _ACCUSED / max(len(known), 1))[where]
    found: Vector = np.nan_to_num(ratio, nan=np.inf, posinf=np.inf)
    return found
