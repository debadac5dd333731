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

import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from consilience.errors import UpdateError
from consilience.parallel import in_order, stripes
from consilience.tensors import Array
from consilience.updates import LARGEST, Updates, parse

Vector = npt.NDArray[np.float64]
Matrix = npt.NDArray[np.float64]
Positions = npt.NDArray[np.intp]
Spans = list[tuple[int, int]]

# Up to so many coordinates all are read, in double precision.
SMALL = 1 << 17
# What the largest error of a sampled distance should be, and how many numbers are read for it at
# most: see `sampled_spans`.
_ERROR = 0.007
_NUMBERS = 1 << 23
_SPAN = 4096
# OpenBLAS multiplies matrices of at most a million multiplications with a kernel made for small
# ones, twice to four times as fast as its general one, and on the thread that asks: so parties are
# multiplied tile by tile. numpy lets other threads run during a call, so a call is made to last:
# it multiplies many pairs of small matrices, _BATCH numbers in all.
_SMALL_PRODUCT = 500_000
_TILE = 32
_BATCH = 1 << 20
# Of a squared distance.
_ROUNDING = 1e-15
# A larger mean squared distance is no update's, and a smaller one is none. Ratios of those between,
# to any power up to one and a half, are numbers.
_FARTHEST, _NEAREST = 4 * LARGEST**2, 1e-100
# Updates whose squares are this many times their squared distances have to be centred.
_NEAR = 100.0
# A reference this many times farther from its peers than another party is not a good one.
_FAR = 1000.0


@dataclass(frozen=True, eq=False)
class Block:
    """What is known of the rounds in which exactly these parties took part."""

    parties: tuple[str, ...]
    distances: Matrix  # (J+1, J+1): mean squared distance per coordinate; last: the centre
    count: float  # coordinates seen, discounted by age where a memory forgets

    def __post_init__(self) -> None:
        if ((self.distances > 0) & (self.distances < _NEAREST)).any():
            far = np.where(self.distances < _NEAREST, 0.0, self.distances)
            object.__setattr__(self, "distances", far)

    @cached_property
    def gram(self) -> Matrix:
        """Inner products about the party closest to its peers, (J+1, J+1): precise however far the
        centre or a wild party is."""
        return self._gram_about(int(np.argmin(self.typical_distances)))

    def _gram_about(self, origin: int) -> Matrix:
        from_there = self.distances[origin]
        return _possible(0.5 * (from_there[:, None] + from_there - self.distances), from_there)

    @cached_property
    def _last_grams(self) -> dict[int, Matrix]:
        return {}

    def _gram_near(self, weights: Vector) -> Matrix:
        """Inner products about the heaviest point, where one is much heavier than the others: the
        weighted mean is then next to it, and what is left of its residual would be rounding."""
        heaviest = int(np.argmax(weights))
        if weights[heaviest] * weights.size < 2:
            return self.gram
        if heaviest not in self._last_grams:
            self._last_grams.clear()
            self._last_grams[heaviest] = self._gram_about(heaviest)
        return self._last_grams[heaviest]

    @cached_property
    def coordinates(self) -> Matrix:
        """The points themselves but for a rotation, (J+1, at most J): their inner products are
        the gram. Differences of points lose fewer digits than differences of inner products."""
        lengths = np.sqrt(np.diag(self.gram))
        away = lengths > 0  # the others are at the origin
        unit = lengths[away]
        values, vectors = np.linalg.eigh(self.gram[np.ix_(away, away)] / np.outer(unit, unit))
        points = np.zeros((lengths.size, unit.size))
        points[away] = unit[:, None] * vectors * np.sqrt(np.maximum(values, 0.0))
        return points

    @cached_property
    def typical_distances(self) -> Vector:
        """Each party's median squared distance from its peers, (J,). Of two middle ones the lesser:
        less than half of the parties cannot make an honest party's large."""
        peers = np.sort(self.distances[:-1, :-1], axis=1)[:, 1:]  # column 0 is the party itself
        if peers.shape[1] == 0:
            return np.zeros(1)
        typical: Vector = peers[:, (peers.shape[1] - 1) // 2]
        return typical

    @property
    def typical(self) -> float:
        """The median of these, or where that is zero the least positive distance; zero if all
        parties are equal. A scale that less than half of the parties cannot set."""
        ordered = np.sort(self.typical_distances)
        middle = float(ordered[(ordered.size - 1) // 2])
        return middle if middle > 0 or np.isinf(self.smallest) else self.smallest

    @property
    def central_weights(self) -> Vector:
        """Weights of a point amid most parties, one over the typical distance: where to start."""
        pull = 1.0 / np.maximum(self.typical_distances, 1e-12 * self.typical or 1.0)
        weights: Vector = pull / pull.sum()
        return weights

    @property
    def smallest(self) -> float:
        """The least positive squared distance between two parties; infinite if there is none."""
        pairs = self.distances[:-1, :-1]
        return float(pairs[pairs > 0].min(initial=np.inf))

    def residuals(self, weights: Vector) -> Vector:
        """Return each point's mean squared distance from the weighted mean of all points.

        Of inner products rather than of the distances: rounding in the weights' sum is then not
        multiplied by the distance of a far centre.
        """
        gram = self._gram_near(weights)
        pulled = gram @ weights
        return np.diag(gram) - 2 * pulled + weights @ pulled

    def moved(self, change: Vector) -> float:
        """Return how far the weighted mean moves per coordinate (root mean square) where the
        parties' weights change so."""
        return float(np.sqrt(max(float(change @ self.gram[:-1, :-1] @ change), 0.0)))

    def discounted(self, factor: float) -> Block:
        """Return the same distances, believed less."""
        return Block(self.parties, self.distances, self.count * factor)

    def ordered(self, parties: tuple[str, ...]) -> Block:
        """Return the same with its parties in this order."""
        if parties == self.parties:
            return self
        position = {party: j for j, party in enumerate(self.parties)}
        order = [*(position[party] for party in parties), len(parties)]
        return Block(parties, self.distances[np.ix_(order, order)], self.count)

    def merged(self, other: Block) -> Block:
        """Return the block over this one's coordinates and the other's, of the same parties."""
        if set(self.parties) != set(other.parties):
            raise ValueError("blocks of different parties do not merge")
        total = self.count + other.count
        mine, theirs = self.count / total, other.count / total
        distances = mine * self.distances + theirs * other.ordered(self.parties).distances
        return Block(self.parties, distances, total)


@dataclass(frozen=True, eq=False)
class Evidence:
    """The evidence of one round or many: a block for each set of parties that met."""

    blocks: tuple[Block, ...]

    @classmethod
    def of(cls, updates: Any, center: Any = None, *, exact: bool = False) -> Evidence:
        """Return the evidence of a round. Unusable updates are left out, with a logged warning.

        Above 131,072 coordinates the distances are estimated from random spans of coordinates,
        unless ``exact``.
        """
        _, evidence = observe(parse(updates, center), exact=exact)
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
    def smallest(self) -> float:
        """The smallest noise worth telling from none: half the least positive squared distance
        between two parties, or zero if all are equal."""
        least = min((block.smallest for block in self.blocks), default=np.inf)
        return least / 2 if np.isfinite(least) else 0.0

    def __add__(self, other: Evidence) -> Evidence:
        blocks = {frozenset(block.parties): block for block in self.blocks}
        for block in other.blocks:
            key = frozenset(block.parties)
            blocks[key] = blocks[key].merged(block) if key in blocks else block
        return Evidence(tuple(blocks.values()))

    def discounted(self, factor: float) -> Evidence:
        """Return the same evidence, believed less."""
        return Evidence(tuple(block.discounted(factor) for block in self.blocks))

    def find(self, parties: Iterable[str]) -> int:
        """Return the position of the block of exactly these parties."""
        wanted = frozenset(parties)
        return next(b for b, block in enumerate(self.blocks) if frozenset(block.parties) == wanted)


def residuals(distances: Matrix, weights: Vector) -> Vector:
    """Return each point's mean squared distance from the weighted mean (weights sum to one)."""
    pulled = distances @ weights
    return pulled - 0.5 * (weights @ pulled)


def residual_products(gram: Matrix, weights: Vector) -> Matrix:
    """Return the inner products per coordinate of the residuals from the weighted mean (weights
    sum to one), from inner products about any one point."""
    pulled = gram @ weights
    products = gram - pulled[:, None] - pulled + weights @ pulled
    return _possible(products, np.diag(products))


def _possible(products: Matrix, squares: Vector) -> Matrix:
    """Return inner products no larger than the lengths allow.

    A party 10¹⁵ times farther away than the others has a direction that rounding hides: what is
    then left of an inner product can exceed the product of the lengths by as much again.
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
    total, count = np.zeros((size, size)), np.zeros((size, size))
    for block, members in zip(evidence.blocks, evidence.members, strict=True):
        at = np.ix_(members, members)
        total[at] += block.count * block.distances[:-1, :-1]
        count[at] += block.count
    np.fill_diagonal(count, 0.0)
    distances: Matrix = total / np.maximum(count, 1e-300)
    np.fill_diagonal(distances, 0.0)
    return distances, count


def observe(updates: Updates, *, exact: bool = False) -> tuple[Updates, Evidence]:
    """Return the evidence of a round, and the updates less those found unusable on the way."""
    spans = [(0, updates.size)] if exact else sampled_spans(updates)
    coarse = updates.size > SMALL and not updates.wide
    with np.errstate(over="ignore", invalid="ignore"):
        reference, near = _likely_medoid(updates, spans)
        about = reference if near or not coarse or not exact else None
        distances, lost = _distances(updates, spans, about, np.float32 if coarse else np.float64)
        if coarse and lost:
            distances, lost = _distances(updates, spans, reference, np.float64)
        # A party may look like its peers in the first coordinates alone, to spoil the others'
        # distances with differences as large as it is in the rest.
        typical = np.median(distances[:-1, :-1], axis=1)
        if about is not None and typical[reference] > _FAR * typical.min():
            distances, lost = _distances(updates, spans, int(np.argmin(typical)), np.float64)
    there = distances <= _FARTHEST  # and not NaN
    if not there.all():
        # Whoever is at a distance from nobody but itself is to blame, where it is that clear.
        good = updates.screened(there[:-1].sum(axis=1) == 1)
        if len(good.parties) == len(updates.parties):
            good = updates.screened()
        if len(good.parties) == len(updates.parties):
            raise UpdateError("the centre is too far from the updates to compare them with it")
        return observe(good, exact=exact)
    seen = sum(stop - start for start, stop in spans)
    return updates, Evidence((Block(updates.parties, distances, float(seen)),))


def sampled_spans(updates: Updates) -> Spans:
    """Return spans of coordinates, one at a random place in each of many equal stretches.

    Of n coordinates, a party's distance from the others has a relative error of √(2/n), and the
    largest of J such errors is about √(2 log 2J) times as large. n is chosen for a largest error of
    _ERROR; but the cost of n coordinates grows as J², so that the more parties there are, the fewer
    coordinates are read of each.

    The places are drawn with a seed made from the updates themselves: the same updates give the
    same evidence, yet no party can know beforehand which of its coordinates will be looked at.
    """
    size = updates.size
    if size <= SMALL:
        return [(0, size)]
    wanted = 4 * np.log(2 * len(updates.parties)) / _ERROR**2
    wanted /= 1 + wanted / size  # what was not looked at is the less, the more was
    count = int(min(wanted, max(SMALL // 8, _NUMBERS // len(updates.parties))))
    stretches = np.linspace(0, size, count // _SPAN + 1).astype(np.int64)
    random = np.random.default_rng(_fingerprint(updates))
    room = np.diff(stretches) - _SPAN
    starts = stretches[:-1] + random.integers(0, room + 1)
    return [(int(start), int(start) + _SPAN) for start in starts]


def _fingerprint(updates: Updates) -> int:
    checksum = 0
    probe = np.empty((len(updates.parties), 16))
    for start in np.linspace(0, updates.size - 16, 8).astype(np.int64):
        updates.read(int(start), int(start) + 16, probe)
        checksum = zlib.crc32(probe.tobytes(), checksum)
    return checksum


def _distances(
    updates: Updates,
    spans: Spans,
    reference: int | None,
    dtype: type[np.floating[Any]],
) -> tuple[Matrix, bool]:
    """Return mean squared distances over the spans, and whether rounding may show in them.

    The sums are of differences from one of the parties, the reference, so that what the updates
    have in common does not cancel; with None, where it does not matter, of the updates themselves.
    """
    points = len(updates.parties) + 1
    tile = -(-points // -(-points // _TILE))  # as equal as can be
    seen = sum(stop - start for start, stop in spans)
    depth = min(seen, max(256, min(8192, _SMALL_PRODUCT // tile**2)))
    batch = max(1, min(_BATCH // (points * depth), seen // depth))
    stack = updates.stack if reference is None and updates.center is None else None

    def products(groups: Sequence[Spans]) -> Matrix:
        total = np.zeros((points, points))
        buffer = np.empty((points, batch * depth), dtype)
        for group in groups:
            rows = buffer
            if stack is not None and group[0][1] - group[0][0] == batch * depth:
                rows = stack[:, slice(*group[0])]  # as it lies
            else:
                _gather(updates, group, buffer, reference)
            _add_products(total, rows.reshape(len(rows), batch, depth).transpose(1, 0, 2), tile)
        return total

    groups = list(_groups(spans, batch * depth))
    gram = np.zeros((points, points))
    for total in in_order(products, stripes(groups, points * seen * max(1, points // 10))):
        gram += total
    gram = np.tril(gram) + np.tril(gram, -1).T
    squares = np.diag(gram)
    sums = squares[:, None] + squares
    distances = np.maximum(sums - gram - gram.T, 0.0)
    parties = slice(0, points - 1)
    apart = ~np.eye(points - 1, dtype=bool)
    ratio = distances[parties, parties][apart] < 1e-3 * sums[parties, parties][apart]
    lost = bool(ratio.any()) or not np.isfinite(gram).all()
    np.fill_diagonal(distances, 0.0)
    return distances / seen, lost


def _gather(updates: Updates, group: Spans, buffer: Array, reference: int | None) -> None:
    """Read spans side by side into the buffer, and fill what is left of it with zeros."""
    at = 0
    for start, stop in group:
        updates.read(start, stop, buffer[:, at : at + stop - start], about=reference)
        at += stop - start
    buffer[:, at:] = 0


def _add_products(total: Matrix, slices: Array, tile: int) -> None:
    """Add the inner products of rows, cut into slices (batch, rows, depth), to a lower triangle."""
    points = slices.shape[1]
    for low in range(0, points, tile):
        rows = slices[:, low : low + tile]
        high = low + rows.shape[1]
        for at in range(0, low, tile):
            other = slices[:, at : at + tile].transpose(0, 2, 1)
            total[low:high, at : at + tile] += (rows @ other).sum(axis=0)
        # The same array on both sides would make numpy call the slow symmetric product.
        others, last = rows[:, :-1].transpose(0, 2, 1), rows[:, -1]
        total[low:high, low : high - 1] += (rows @ others).sum(axis=0)
        total[high - 1, high - 1] += np.einsum("bk,bk->", last, last)


def _groups(spans: Spans, width: int) -> Iterator[Spans]:
    """Yield the spans again, in groups of so many coordinates; long ones are cut."""
    group: list[tuple[int, int]] = []
    room = width
    for start, stop in spans:
        while start < stop:
            end = min(stop, start + room)
            group.append((start, end))
            room -= end - start
            start = end
            if room == 0:
                yield group
                group, room = [], width
    if group:
        yield group


def _likely_medoid(updates: Updates, spans: Spans) -> tuple[int, bool]:
    """Return the party whose median distance from the others is least in the first coordinates
    (differences from a wild one would be as large as it is), and whether parties are so close to
    each other that they have to be centred."""
    start, stop = spans[0]
    stop = min(stop, start + 512)
    chunk = np.empty((len(updates.parties), stop - start))
    updates.read(start, stop, chunk)
    squares = np.einsum("jk,jk->j", chunk, chunk)
    distances = squares[:, None] + squares - 2 * (chunk @ chunk.T)
    typical = np.nan_to_num(np.median(distances, axis=1), nan=np.inf)
    near = not np.median(squares) < _NEAR * np.median(typical)
    return int(np.argmin(typical)), near
