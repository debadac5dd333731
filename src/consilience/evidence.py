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
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from consilience.errors import UpdateError
from consilience.parallel import in_order, stripes
from consilience.updates import Updates, parse

Vector = npt.NDArray[np.float64]
Matrix = npt.NDArray[np.float64]
Positions = npt.NDArray[np.intp]

# Up to so many coordinates all are read, in double precision.
SMALL = 1 << 17
# What the largest error of a sampled distance should be, and where that takes too many coordinates
# (more than one in six), the share of them that is read: see `sampled_spans`.
_ERROR = 0.0075
SHARE = 16
_SPAN = 4096
# OpenBLAS multiplies matrices of at most this many multiplications with a kernel made for small
# ones, four times faster for ten parties than its general kernel, and on the thread that asks: more
# parties than _TILE are multiplied tile by tile.
_SMALL_PRODUCT = 1_000_000
_TILE = 32
# A reference this many times farther from its peers than another party is not a good one.
_FAR = 1000.0


@dataclass(frozen=True, eq=False)
class Block:
    """What is known of the rounds in which exactly these parties took part."""

    parties: tuple[str, ...]
    distances: Matrix  # (J+1, J+1): mean squared distance per coordinate; last: the centre
    count: float  # coordinates seen, discounted by age where a memory forgets

    @cached_property
    def gram(self) -> Matrix:
        """Inner products about the party closest to its peers, (J+1, J+1): precise however far the
        centre or a wild party is."""
        closest = int(np.argmin(np.median(self.distances[:-1, :-1], axis=1)))
        from_there = self.distances[closest]
        products: Matrix = 0.5 * (from_there[:, None] + from_there - self.distances)
        return products

    def residuals(self, weights: Vector) -> Vector:
        """Return each point's mean squared distance from the weighted mean of all points.

        Of inner products rather than of the distances: rounding in the weights' sum is then not
        multiplied by the distance of a far centre.
        """
        pulled = self.gram @ weights
        return np.diag(self.gram) - 2 * pulled + weights @ pulled

    def corrected(self, weights: Vector, squares: Vector) -> Block:
        """Return the block with each point's mean squared distance from the weighted mean as it
        was measured, and correlations of the residuals as they are.

        A sampled distance errs mostly by what the sample says of each party's length.
        """
        products = residual_products(self.distances, weights)
        expected = np.diag(products)
        scale = np.sqrt(np.where(expected > 0, squares / np.where(expected > 0, expected, 1), 1))
        products = products * scale[:, None] * scale
        lengths = np.diag(products)
        distances = np.maximum(lengths[:, None] + lengths - 2 * products, 0.0)
        np.fill_diagonal(distances, 0.0)
        return Block(self.parties, distances, self.count)

    def discounted(self, factor: float) -> Block:
        """Return the same distances, believed less."""
        return Block(self.parties, self.distances, self.count * factor)

    def merged(self, other: Block) -> Block:
        """Return the block over this one's coordinates and the other's, of the same parties."""
        if set(self.parties) != set(other.parties):
            raise ValueError("blocks of different parties do not merge")
        order = [*map(other.parties.index, self.parties), len(self.parties)]
        total = self.count + other.count
        mine, theirs = self.count / total, other.count / total
        distances = mine * self.distances + theirs * other.distances[np.ix_(order, order)]
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
        least = np.inf
        for block in self.blocks:
            pairs = block.distances[:-1, :-1]
            positive = pairs[pairs > 0]
            least = min(least, float(positive.min(initial=np.inf)))
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


def residual_products(distances: Matrix, weights: Vector) -> Matrix:
    """Return the inner products per coordinate of the residuals from the weighted mean."""
    r = residuals(distances, weights)
    products: Matrix = 0.5 * (r[:, None] + r - distances)
    return products


def pooled_products(evidence: Evidence, weights: Iterable[Vector]) -> Matrix:
    """Return residual products averaged over the rounds each pair met in (Proposition 1, remark).

    ``weights`` holds one vector per block over its parties and the centre. Pairs that never met
    get zero.
    """
    size = len(evidence.parties)
    total, count = np.zeros((size, size)), np.zeros((size, size))
    for block, members, w in zip(evidence.blocks, evidence.members, weights, strict=True):
        at = np.ix_(members, members)
        total[at] += block.count * residual_products(block.distances, w)[:-1, :-1]
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
        reference = _likely_medoid(updates, spans)
        distances, lost = _distances(
            updates, spans, reference, np.float32 if coarse else np.float64
        )
        if coarse and lost:
            distances, lost = _distances(updates, spans, reference, np.float64)
        # A party may look like its peers in the first coordinates alone, to spoil the others'
        # distances with differences as large as it is in the rest.
        typical = np.median(distances[:-1, :-1], axis=1)
        if typical[reference] > _FAR * typical.min():
            distances, lost = _distances(updates, spans, int(np.argmin(typical)), np.float64)
    if not np.isfinite(distances).all():
        # Whoever is at a distance from nobody but itself is to blame, where it is that clear.
        good = updates.screened(np.isfinite(distances[:-1]).sum(axis=1) == 1)
        if len(good.parties) == len(updates.parties):
            good = updates.screened()
        if len(good.parties) == len(updates.parties):
            raise UpdateError("the centre is too far from the updates for a distance to exist")
        return observe(good, exact=exact)
    seen = sum(stop - start for start, stop in spans)
    return updates, Evidence((Block(updates.parties, distances, float(seen)),))


def sampled_spans(updates: Updates) -> list[tuple[int, int]]:
    """Return spans of coordinates, one at a random place in each of many equal stretches.

    Of n coordinates, a party's distance has a relative error of √(2/n), and the largest of J such
    errors is about √(2 log 2J) times that. n is chosen for a largest error of _ERROR; where that is
    too many, a small share is read, and the second pass, which measures every party's distance from
    the consensus in all coordinates, corrects the rest (`Block.corrected`).

    The places are drawn with a seed made from the updates themselves: the same updates give the
    same evidence, yet no party can know beforehand which of its coordinates will be looked at.
    """
    size = updates.size
    if size <= SMALL:
        return [(0, size)]
    wanted = int(4 * np.log(2 * len(updates.parties)) / _ERROR**2)
    if 6 * wanted > size:
        wanted = max(SMALL // 4, size // SHARE)
    stretches = np.linspace(0, size, wanted // _SPAN + 1).astype(np.int64)
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
    spans: list[tuple[int, int]],
    reference: int,
    dtype: type[np.floating[Any]],
) -> tuple[Matrix, bool]:
    """Return mean squared distances over the spans, and whether rounding may show in them.

    The sums are of differences from one of the parties, the reference, so that what the updates
    have in common does not cancel.
    """
    points = len(updates.parties) + 1
    width = max(256, min(8192, _SMALL_PRODUCT // min(points, _TILE) ** 2))

    def products(chunks: Sequence[tuple[int, int]]) -> Matrix:
        total, buffer = np.zeros((points, points)), np.empty((points, width), dtype)
        for start, stop in chunks:
            chunk = buffer[:, : stop - start]
            updates.read(start, stop, chunk, about=reference)
            _add_products(total, chunk)
        return total

    chunks = list(_chunks(spans, width))
    work = stripes(chunks, points * sum(stop - start for start, stop in spans))
    gram = np.zeros((points, points))
    for total in in_order(products, work):
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
    return distances / sum(stop - start for start, stop in spans), lost


def _add_products(total: Matrix, chunk: npt.NDArray[Any]) -> None:
    """Add the inner products of a chunk's rows to the lower triangle of a matrix."""
    points = len(chunk)
    tile = -(-points // -(-points // _TILE))  # as equal as can be
    for low in range(0, points, tile):
        rows = chunk[low : low + tile]
        high = low + len(rows) - 1
        for at in range(0, low, tile):
            total[low : high + 1, at : at + tile] += rows @ chunk[at : at + tile].T
        # The same array on both sides would make numpy call the slow symmetric product.
        total[low : high + 1, low:high] += rows @ rows[:-1].T
        total[high, high] += rows[-1] @ rows[-1]


def _chunks(spans: list[tuple[int, int]], width: int) -> Iterable[tuple[int, int]]:
    for start, stop in spans:
        for at in range(start, stop, width):
            yield at, min(at + width, stop)


def _likely_medoid(updates: Updates, spans: list[tuple[int, int]]) -> int:
    """Return the party whose median distance from the others is least in the first coordinates:
    differences from a wild one would be as large as it is."""
    start, stop = spans[0]
    stop = min(stop, start + 512)
    chunk = np.empty((len(updates.parties), stop - start))
    updates.read(start, stop, chunk)
    squares = np.einsum("jk,jk->j", chunk, chunk)
    distances = squares[:, None] + squares - 2 * (chunk @ chunk.T)
    return int(np.argmin(np.nan_to_num(np.median(distances, axis=1), nan=np.inf)))
