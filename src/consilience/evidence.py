"""Evidence: all that the inference needs of the updates, a J×J matrix for each set of parties.

Every estimate in this package is a linear combination ``y = Σ_j w_j x_j`` with coefficients shared
by all coordinates, so the updates enter only through inner products. Kept here are the mean
squared distances per coordinate, ``D_jl = ‖x_j − x_l‖²/K``, between the parties of a round and one
more point, the **centre** (the last row and column): the origin that a prior on the truth is
centred on, zero unless the caller names a better guess such as the previous global model. For
weights ω that sum to one over all J+1 points, two identities do all the work:

    r_j = ‖x_j − y‖²/K = (Dω)_j − ½ ωᵀDω               (residuals)
    (x_j − y)ᵀ(x_l − y)/K = ½ (r_j + r_l − D_jl)         (residual products)

A distance is a sum over coordinates, so evidence over chunks, tensors, shards and rounds just adds
up: rounds with the same parties merge into one `Block`, weighted by their number of coordinates.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from consilience.arrays import Array, Matrix, Positions, Vector
from consilience.updates.tensors import LARGEST

# Relative, of a squared distance.
_ROUNDING = 1e-15
# Mean squared distances beyond this range are not those of updates, or count as zero. Ratios within
# it, to any power up to 1.5, do not overflow.
FARTHEST, _NEAREST = 4 * LARGEST**2, 1e-100
FORGOTTEN = 1e-3  # what has decayed to this share of a fresh round's count is dropped
_MOST_BLOCKS = 100  # with the usual decay 66 rounds are remembered
_MOST_DISTANCES = 2**23  # in all blocks, 64 MB


@dataclass(frozen=True, eq=False)
class Block:
    """What is known from the rounds in which exactly these parties took part."""

    parties: tuple[str, ...]
    distances: Matrix  # (J+1, J+1): mean squared distance per coordinate; last: the centre
    count: float  # coordinates seen, discounted by age if a memory decays

    def __post_init__(self) -> None:
        if ((self.distances > 0) & (self.distances < _NEAREST)).any():
            far = np.where(self.distances < _NEAREST, 0.0, self.distances)
            object.__setattr__(self, "distances", far)

    @cached_property
    def gram(self) -> Matrix:
        """Inner products about the party closest to its peers, (J+1, J+1): precise even if the
        centre or a wild party is far away."""
        return self._gram_about(int(np.argmin(self.typical_distances)))

    def _gram_about(self, origin: int) -> Matrix:
        from_there = self.distances[origin]
        return _possible(0.5 * (from_there[:, None] + from_there - self.distances), from_there)

    @cached_property
    def _last_grams(self) -> dict[int, Matrix]:
        return {}

    def _gram_near(self, weights: Vector) -> Matrix:
        """Inner products about the heaviest point, if it is much heavier than the others: the
        weighted mean is then so close to it that its residual would be lost to rounding."""
        heaviest = int(np.argmax(weights))
        if weights[heaviest] * weights.size < 2:
            return self.gram
        if heaviest not in self._last_grams:
            self._last_grams.clear()
            self._last_grams[heaviest] = self._gram_about(heaviest)
        return self._last_grams[heaviest]

    @cached_property
    def coordinates(self) -> Matrix:
        """The points up to a rotation, (J+1, at most J), with `gram` as inner products. Differences
        of points lose fewer digits than differences of inner products."""
        lengths = np.sqrt(np.diag(self.gram))
        away = lengths > 0  # the others lie at the origin
        unit = lengths[away]
        values, vectors = np.linalg.eigh(self.gram[np.ix_(away, away)] / np.outer(unit, unit))
        points = np.zeros((lengths.size, unit.size))
        points[away] = unit[:, None] * vectors * np.sqrt(np.maximum(values, 0.0))
        return points

    @cached_property
    def typical_distances(self) -> Vector:
        """Each party's median squared distance from its peers, (J,); the lower of two middle ones,
        so that a minority cannot make that of an honest party large."""
        middle = len(self.parties) // 2  # the distance from itself, zero, is among them
        typical: Vector = np.partition(self.distances[:-1, :-1], middle, axis=1)[:, middle]
        return typical

    @property
    def typical(self) -> float:
        """The median of these, or if it is zero the least positive distance; zero if all parties
        are equal. A minority of the parties cannot set this scale."""
        ordered = np.sort(self.typical_distances)
        middle = float(ordered[(ordered.size - 1) // 2])
        return middle if middle > 0 or np.isinf(self.least_distance) else self.least_distance

    @property
    def central_weights(self) -> Vector:
        """Weights of a point amid most parties, the inverse typical distances: where to start."""
        pull = 1.0 / np.maximum(self.typical_distances, 1e-12 * self.typical or 1.0)
        weights: Vector = pull / pull.sum()
        return weights

    @cached_property
    def least_distance(self) -> float:
        """The least positive squared distance between two parties; infinite if there is none."""
        pairs = self.distances[:-1, :-1]
        return float(np.where(pairs > 0, pairs, np.inf).min(initial=np.inf))

    def residuals(self, weights: Vector) -> Vector:
        """Return each point's mean squared distance from the weighted mean of all points.

        Computed from inner products: with the distances, a far centre would multiply the rounding
        error of the weights' sum.
        """
        gram = self._gram_near(weights)
        pulled = gram @ weights
        return np.diag(gram) - 2 * pulled + weights @ pulled

    def moved(self, change: Vector) -> float:
        """Return how far the weighted mean moves per coordinate (root mean square) for this change
        of the parties' weights."""
        return float(np.sqrt(max(float(change @ self.gram[:-1, :-1] @ change), 0.0)))

    def discounted(self, factor: float) -> Block:
        """Return the same distances with a smaller count."""
        return Block(self.parties, self.distances, self.count * factor)

    def ordered(self, parties: tuple[str, ...]) -> Block:
        """Return the same with its parties in this order."""
        if parties == self.parties:
            return self
        position = {party: j for j, party in enumerate(self.parties)}
        order = [*(position[party] for party in parties), len(parties)]
        return Block(parties, self.distances[np.ix_(order, order)], self.count)

    def among(self, parties: frozenset[str]) -> Block:
        """Return the block of those of its parties that are among these."""
        here = [j for j, party in enumerate(self.parties) if party in parties]
        if len(here) == len(self.parties):
            return self
        at = [*here, len(self.parties)]
        there = tuple(self.parties[j] for j in here)
        return Block(there, self.distances[np.ix_(at, at)], self.count)

    def mixed(self, means: Matrix) -> Block:
        """Return the block of weighted means of the points, one for each point: a row of ``means``,
        (J+1, J+1), holds the weights of one and sums to one."""
        between = means @ self.distances @ means.T
        within = 0.5 * np.diag(between)
        distances = np.maximum(between - within[:, None] - within, 0.0)
        return Block(self.parties, 0.5 * (distances + distances.T), self.count)

    def merged(self, other: Block) -> Block:
        """Return the block over this one's coordinates and the other's, of the same parties."""
        if set(self.parties) != set(other.parties):
            raise ValueError("blocks of different parties do not merge")
        total = self.count + other.count
        mine, theirs = self.count / total, other.count / total
        distances = mine * self.distances + theirs * other.ordered(self.parties).distances
        return Block(self.parties, distances, total)


class Layers(NamedTuple):
    """The distances of a round's parties, tensor by tensor: for people, unused by the methods."""

    names: tuple[str, ...]
    parties: tuple[str, ...]
    distances: Array  # (T, J, J): mean squared
    counts: Vector  # (T,): coordinates seen
    sizes: Vector  # (T,): coordinates in total


@dataclass(frozen=True, eq=False)
class Evidence:
    """The evidence of one round or many: a block for each set of parties that met. Rounds add up.

    >>> import consilience as cs
    >>> first = cs.Evidence.of({"ann": [1.0, 2], "bob": [1.0, 4], "eve": [9.0, 9]})
    >>> second = cs.Evidence.of({"ann": [0.0, 2], "bob": [0.0, 4], "eve": [9.0, 9]})
    >>> both = first + second
    >>> len(both.blocks), both.blocks[0].count, float(both.blocks[0].distances[0, 1])
    (1, 4.0, 2.0)
    """

    blocks: tuple[Block, ...]

    @classmethod
    def of(
        cls, updates: Any, center: Any = None, *, exact: bool = False, seed: int | None = None
    ) -> Evidence:
        """Return the evidence of a round. Unusable updates are left out, with a logged warning.

        Where there is much to read, the distances are estimated from random spans of coordinates,
        unless ``exact``; ``seed`` makes them the same ones each time.
        """
        from consilience.passes.observe import observe  # imported here, as it builds on this module
        from consilience.updates.parsing import parse

        _, evidence = observe(parse(updates, center), np.random.default_rng(seed), exact=exact)
        return evidence

    @cached_property
    def parties(self) -> tuple[str, ...]:
        """Everybody who ever took part: in the round's order, or by id where rounds differ."""
        if len(self.blocks) == 1:
            return self.blocks[0].parties
        return tuple(sorted({party for block in self.blocks for party in block.parties}))

    @cached_property
    def members(self) -> tuple[Positions, ...]:
        """For each block, the positions of its parties among all parties."""
        position = {party: j for j, party in enumerate(self.parties)}
        return tuple(np.array([position[p] for p in block.parties]) for block in self.blocks)

    @cached_property
    def counts(self) -> Vector:
        """Coordinates seen of each party."""
        counts = np.zeros(len(self.parties))
        for block, members in zip(self.blocks, self.members, strict=True):
            counts[members] += block.count
        return counts

    @cached_property
    def worth(self) -> Vector:
        """Effective number of coordinates behind each party's level. With p peers, whose noise must
        be told from its own, n coordinates are worth n(p − 1)/(p + 1), by least squares."""
        worth = np.zeros(len(self.parties))
        for block, members in zip(self.blocks, self.members, strict=True):
            size = len(members)
            if size > 1:  # with two parties, nothing tells whose the noise is
                worth[members] += block.count * max(1 - 2 / size, size**-2)
        return worth

    @cached_property
    def least_noise(self) -> float:
        """The smallest noise that can be told from none: half the least positive squared distance
        between two parties, or zero if all are equal."""
        least = min((block.least_distance for block in self.blocks), default=np.inf)
        return least / 2 if np.isfinite(least) else 0.0

    def __add__(self, other: Evidence) -> Evidence:
        blocks = {frozenset(block.parties): block for block in self.blocks}
        for block in other.blocks:
            key = frozenset(block.parties)
            blocks[key] = blocks[key].merged(block) if key in blocks else block
        return Evidence(tuple(blocks.values()))

    def discounted(self, factor: float) -> Evidence:
        """Return the same evidence with smaller counts."""
        return Evidence(tuple(block.discounted(factor) for block in self.blocks))

    def faded(self, decay: float, fresh: float) -> Evidence:
        """Return what is left of it a round later, beside ``fresh`` coordinates."""
        past = self.discounted(decay).blocks
        return Evidence(tuple(block for block in past if block.count > FORGOTTEN * fresh))

    def followed(self, now: Evidence) -> Evidence:
        """Return it with the blocks of a later round, which come last."""
        blocks = {frozenset(block.parties): block for block in self.blocks}
        for block in now.blocks:
            before = blocks.pop(frozenset(block.parties), None)
            blocks[frozenset(block.parties)] = before.merged(block) if before else block
        return Evidence(tuple(blocks.values()))

    def latest(self, most_parties: int, most_distances: int | None = None) -> Evidence:
        """Return it without the oldest blocks, if there are too many of them or of parties."""
        most_distances = most_distances or _MOST_DISTANCES
        kept: list[Block] = []
        parties: set[str] = set()
        distances = 0
        for block in reversed(self.blocks):
            distances += block.distances.size
            parties.update(block.parties)
            many = distances > most_distances or len(parties) > most_parties
            if kept and (many or len(kept) == _MOST_BLOCKS):
                break
            kept.append(block)
        return Evidence(tuple(reversed(kept)))

    def among(self, parties: Iterable[str]) -> Evidence:
        """Return the evidence on these parties, from rounds where at least two of them met."""
        wanted = frozenset(parties)
        blocks = (block.among(wanted) for block in self.blocks)
        return Evidence(()) + Evidence(tuple(b for b in blocks if len(b.parties) > 1))

    def find(self, parties: Iterable[str]) -> int:
        """Return the position of the block of exactly these parties."""
        wanted = frozenset(parties)
        return next(b for b, block in enumerate(self.blocks) if frozenset(block.parties) == wanted)


def residuals(distances: Matrix, weights: Vector) -> Vector:
    """Return each point's mean squared distance from the weighted mean (weights sum to one)."""
    pulled = distances @ weights
    return pulled - 0.5 * (weights @ pulled)


def residual_products(gram: Matrix, weights: Vector) -> Matrix:
    """Return the inner products, per coordinate, of the residuals from the weighted mean (weights
    sum to one), given inner products about any point."""
    pulled = gram @ weights
    products = gram - pulled[:, None] - pulled + weights @ pulled
    return _possible(products, np.diag(products))


def _possible(products: Matrix, squares: Vector) -> Matrix:
    """Clip inner products to what the lengths allow.

    For a party 10¹⁵ times farther away than the others, rounding hides the direction, and a
    computed inner product can be twice the product of the lengths.
    """
    lengths = np.sqrt(np.maximum(squares, 0.0))
    most = np.outer(lengths, lengths)
    rounding = _ROUNDING * np.maximum.outer(squares, squares)
    bounded: Matrix = np.where(rounding < most, np.clip(products, -most, most), 0.0)
    np.fill_diagonal(bounded, lengths**2)
    return bounded


def pooled_products(evidence: Evidence, weights: Iterable[Vector]) -> Matrix:
    """Return residual products averaged over the rounds each pair met in (Proposition 1, remark).

    ``weights`` holds one vector per block over its parties and the centre. Pairs that never met
    get zero.
    """
    size = len(evidence.parties)
    total, count = np.zeros((size, size)), np.zeros((size, size))
    for block, members, w in zip(evidence.blocks, evidence.members, weights, strict=True):
        at = np.ix_(members, members)
        total[at] += block.count * residual_products(block.gram, w)[:-1, :-1]
        count[at] += block.count
    products: Matrix = total / np.maximum(count, 1e-300)
    return products


def pooled_distances(evidence: Evidence) -> tuple[Matrix, Matrix]:
    """Return the mean distance of each two parties over the rounds they met in, and the number of
    coordinates behind it: both (J, J), zero for pairs that never met and on the diagonal."""
    size = len(evidence.parties)
    if len(evidence.blocks) == 1 and evidence.blocks[0].count > 0:  # nothing to average
        (block,) = evidence.blocks
        distances, count = block.distances[:-1, :-1].copy(), np.full((size, size), block.count)
        np.fill_diagonal(distances, 0.0)
        np.fill_diagonal(count, 0.0)
        return distances, count
    total, count = np.zeros((size, size)), np.zeros((size, size))
    for block, members in zip(evidence.blocks, evidence.members, strict=True):
        at = np.ix_(members, members)
        total[at] += block.count * block.distances[:-1, :-1]
        count[at] += block.count
    np.fill_diagonal(count, 0.0)
    distances = total / np.maximum(count, 1e-300)
    np.fill_diagonal(distances, 0.0)
    return distances, count
