"""The first pass over the updates: the distances between parties; and a look at some places."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import pairwise

import numpy as np

from consilience.arrays import Array, Matrix, Positions, Spans
from consilience.errors import UpdateError
from consilience.evidence import FARTHEST, Block, Evidence, Layers
from consilience.passes import loops
from consilience.passes.parallel import cores, in_order, stripes
from consilience.passes.sampling import SMALL, sampled_spans
from consilience.updates.tensors import LARGEST
from consilience.updates.trees import Leaves, Path, show
from consilience.updates.usable import Piece, Updates

Tell = Callable[[int], None]  # reports how many coordinates are done

# A reference this many times farther from its peers than another party is a bad one.
_FAR = 1000.0
_FIRST = 128  # coordinates from which the reference is chosen
# A squared distance this many times smaller than the squares whose difference it is has lost digits
# in single precision.
_LOST = 1e-3
# A mean square below this has terms that single precision, which ends at 10^-38, cannot hold.
_FAINT = 1e-30
_MANY = 1 << 16  # with this many scattered numbers a thread is worth its cost
# For distances of single tensors: the most distances in all, and coordinates of each tensor.
TOLD = 1 << 18
_SPAN = 512


def ignored(_: int) -> None:
    """Tell nobody."""


def observe(
    updates: Updates, random: np.random.Generator, *, exact: bool = False, tell: Tell = ignored
) -> tuple[Updates, Evidence]:
    """Return the evidence of a round, and the updates without those found unusable on the way."""
    size = updates.seen
    spans = [(0, size)] if exact else sampled_spans(size, len(updates.parties), random)
    wide = updates.wide or size <= SMALL
    with np.errstate(over="ignore", invalid="ignore"):
        reference = _likely_medoid(updates, spans)
        distances, lost = _distances(updates, spans, reference, wide, tell)
        if not wide and (lost or _too_close(updates, spans, reference, distances)):
            distances, _ = _distances(updates, spans, reference, True, tell)
        # A party may look like its peers in the first coordinates only. As the reference it would
        # spoil the distances of the others in the rest.
        typical = np.median(distances[:-1, :-1], axis=1)
        if typical[reference] > _FAR * typical.min():
            distances, _ = _distances(updates, spans, int(np.argmin(typical)), True, tell)
    there = distances <= FARTHEST  # and not NaN
    if there.all():
        seen = sum(stop - start for start, stop in spans)
        block = Block(updates.parties, distances, float(seen))
        return (replace(updates, faint=True) if faint(block) else updates), Evidence((block,))
    # A party that has a distance from nobody but itself is to blame, if it is that clear.
    good = screened(updates, there[:-1].sum(axis=1) == 1)
    if len(good.parties) == len(updates.parties):
        good = screened(updates)
    if len(good.parties) == len(updates.parties):
        raise UpdateError("the centre is too far from the updates to compare them with it")
    return observe(good, random, exact=exact, tell=tell)


def faint(block: Block) -> bool:
    """Tell whether single precision cannot hold the squares of typical differences."""
    return 0 < block.typical < _FAINT


def look(updates: Updates, places: Positions) -> Array:
    """Return every party's coordinates at the given places, in ascending order: (J, n)."""
    wide, count = updates.wide, len(updates.parties)
    out = np.empty((count, len(places)), float if wide else np.float32)
    edges = np.searchsorted(places, updates.offsets)
    tensors = list(zip(updates.floats, updates.offsets, edges, edges[1:], strict=False))
    here = updates.loops is None and updates.widest is None
    in_memory = here and all(  # a product of factors is not an array
        isinstance(updates.leaves[0][path].storage, np.ndarray) for path in updates.floats
    )

    def read(mine: slice) -> None:
        for path, begin, low, high in tensors:
            if low < high and in_memory:
                rows, codes = updates.columns[path]
                there = (places[low:high] - begin).astype(np.int64)
                loops.current.look(rows[mine], codes[mine], there, out[mine], int(low), wide)
            elif low < high:
                for row, leaves in zip(out[mine], updates.leaves[mine], strict=True):
                    row[low:high] = leaves[path].look(places[low:high] - begin)

    threads = cores() if in_memory and out.size >= _MANY else 1
    cut = [i * count // threads for i in range(threads + 1)]
    list(in_order(read, [slice(*ends) for ends in pairwise(cut)]))
    return out


def by_tensor(
    updates: Updates,
    reference: int,
    random: np.random.Generator,
    known: Mapping[Path, Matrix] | None = None,
) -> Layers | None:
    """Return the distances in a span of each tensor that is evidence; None for a single tensor, or
    for too many. ``reference`` is a party not far from the others. ``known`` are squared distances
    in whole tensors."""
    known = known or {}
    paths = [p for p in updates.floats if updates.judges(p) and updates.leaves[0][p].size]
    parties, gram_of = len(updates.parties), (updates.loops or loops.current).gram
    if not 1 < len(paths) <= TOLD // parties**2:
        return None
    sizes = np.array([updates.leaves[0][path].size for path in paths])
    counts = np.where([path in known for path in paths], sizes, np.minimum(sizes, _SPAN))
    starts = random.integers(0, sizes - counts + 1)
    grams = np.zeros((len(paths), parties, parties))
    with np.errstate(over="ignore", invalid="ignore"):
        for gram, path, start, count in zip(grams, paths, starts, counts, strict=True):
            if path not in known:
                piece = Piece(path, int(start), int(start + count))
                gram_of(*updates.rows(piece), reference, gram, True)
        distances = _apart(grams)[0]
        for t, path in enumerate(paths):
            distances[t] = known.get(path, distances[t])
        distances /= counts[:, None, None]
    names = tuple(".".join(map(str, path)) for path in paths)
    return Layers(names, updates.parties, distances, counts.astype(float), sizes.astype(float))


def screened(updates: Updates, suspects: Array | None = None) -> Updates:
    """Return the updates without those parties, or suspects, whose numbers are unusable."""
    looked_at = np.flatnonzero(np.ones(len(updates.parties)) if suspects is None else suspects)

    def unusable(leaves: Leaves) -> str | None:
        for path in updates.floats:
            found = leaves[path].faulty()
            if found is not None:
                beyond = f", beyond {LARGEST:g}" if np.isfinite(found[1]) else ""
                return f"{show(path)} holds {found[1]} at position {found[0]}{beyond}"
        return None

    reasons = in_order(unusable, [updates.leaves[j] for j in looked_at])
    named = zip((updates.parties[j] for j in looked_at), reasons, strict=True)
    return updates.without({party: reason for party, reason in named if reason is not None})


def _distances(
    updates: Updates, spans: Spans, reference: int, wide: bool, tell: Tell
) -> tuple[Matrix, bool]:
    """Return mean squared distances over the spans, and whether rounding may have spoilt them.

    Inner products are taken about one of the parties, the reference, so that the common part of
    the updates does not cause cancellation.
    """
    points = len(updates.parties) + 1
    gram_of = (updates.loops or loops.current).gram

    def products(mine: Spans) -> Matrix:
        total = np.zeros((points, points))
        for start, stop in mine:
            for piece in updates.pieces(start, stop):
                rows, codes = updates.rows(piece)
                origin, code = updates.origin(piece)
                gram_of([*rows, origin], codes + code, reference, total, wide)
            tell(stop - start)
        return total

    gram = np.zeros((points, points))
    for total in in_order(products, stripes(spans, points * max(4, points // 40))):
        gram += total
    distances, sums = _apart(gram)
    near = distances[:-1, :-1] < _LOST * sums[:-1, :-1]
    lost = bool(near[~np.eye(points - 1, dtype=bool)].any()) or not np.isfinite(gram).all()
    np.fill_diagonal(distances, 0.0)
    return distances / sum(stop - start for start, stop in spans), lost


def _too_close(updates: Updates, spans: Spans, reference: int, distances: Matrix) -> bool:
    """Tell whether somebody differs from the reference, but too little for single precision. Who
    sent the same is told from that without a second pass over all."""
    close = np.flatnonzero(distances[reference, :-1] < _FAINT)
    return any(not _equal(updates, spans, reference, int(j)) for j in close if j != reference)


def _equal(updates: Updates, spans: Spans, one: int, other: int) -> bool:
    """Tell whether two parties sent the same numbers, in the same dtypes."""
    both = np.array([one, other])
    for start, stop in spans:
        for at in range(start, stop, _MANY):
            for piece in updates.pieces(at, min(at + _MANY, stop)):
                (x, y), codes = updates.rows(piece, both)
                if codes[0] != codes[1] or not bool((x == y).all()):
                    return False
    return True


def _apart(gram: Array) -> tuple[Array, Array]:
    """Return squared distances from products (lower triangle), and the sums of squares whose
    differences they are: for one matrix or several."""
    gram = np.tril(gram) + np.swapaxes(np.tril(gram, -1), -1, -2)
    squares = np.diagonal(gram, axis1=-2, axis2=-1)
    sums = squares[..., :, None] + squares[..., None, :]
    return np.maximum(sums - 2 * gram, 0.0), sums


def _likely_medoid(updates: Updates, spans: Spans) -> int:
    """Return the party with the least median distance from the others, in the first coordinates:
    about a wild one, the differences would be as large as it is."""
    start, stop = spans[0]
    count = len(updates.parties)
    gram = np.zeros((count, count))
    for piece in updates.pieces(start, min(stop, start + _FIRST)):
        (updates.loops or loops.current).gram(*updates.rows(piece), -1, gram, True)
    gram = np.tril(gram) + np.tril(gram, -1).T
    squares = np.diag(gram)
    distances = squares[:, None] + squares - 2 * gram
    return int(np.argmin(np.nan_to_num(np.median(distances, axis=1), nan=np.inf)))
