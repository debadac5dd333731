"""The second pass over the updates: the weighted sum, and a check of the sampled evidence.

Evidence from a sample is checked while the sum is formed. The parties stand in a **ring**, and each
one's squared distance from its predecessor is measured in all coordinates. The ring is drawn at
random each time, so no party can know its neighbour.

Where nothing may rest on the word of one party, the sum is winsorised coordinate by coordinate: see
`corroborate`.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from consilience.arrays import Array, Positions, Spans, Vector
from consilience.passes import loops
from consilience.passes.corroborate import Witnesses
from consilience.passes.observe import Tell, ignored
from consilience.passes.parallel import in_order, stripes
from consilience.passes.sampling import SMALL
from consilience.updates.tensors import Storage
from consilience.updates.trees import Path
from consilience.updates.usable import Piece, Updates

Room = Callable[[Path], Storage]  # returns the storage for a tensor of the result

_TOLD = 64  # one block in so many is used to tell who contributed to a coordinate-wise rule


def combine(
    updates: Updates,
    weights: Vector,
    room: Room,
    ring: Positions | None = None,
    tell: Tell = ignored,
    witnesses: Witnesses | None = None,
) -> tuple[Vector, Vector]:
    """Form y = Σ_j w_j x_j tensor by tensor, in the updates' dtypes; the last weight is that of the
    centre.

    ``ring`` is an order of all parties: return each one's mean squared distance from its
    predecessor, zero without a ring. With ``witnesses`` nobody counts far beyond them: return also
    the mean square of what was clipped of each party. Both cover the coordinates that are evidence,
    and are NaN if an update, or the sum, is not finite; all coordinates are formed in any case.
    """
    value = _Value(updates, room)
    centred = weights[-1] != 0 and updates.center is not None
    chosen = np.flatnonzero(weights[:-1]) if ring is None else ring
    chosen = chosen if len(chosen) else np.zeros(1, np.intp)  # with no parties the sum is zero
    said = np.append(weights[chosen], weights[-1]) if centred else weights[chosen]
    add = _loop(updates, None if witnesses is None else witnesses.of(chosen))

    def form(mine: Spans) -> tuple[Vector | None, Vector, bool]:
        squares, alone = None if ring is None else np.zeros(len(ring)), np.zeros(len(chosen))
        finite, unused = True, np.zeros(len(chosen))
        for start, stop in mine:
            for piece in updates.pieces(start, stop):
                rows, codes = updates.rows(piece, chosen)
                if centred:
                    origin, code = updates.origin(piece)
                    rows, codes = [*rows, origin], codes + code  # type: ignore[list-item]
                out, code = value.place(piece)
                told = (squares, alone) if updates.judges(piece.path) else (None, unused)
                finite &= add(rows, codes, said, out, code, *told)
                value.keep(piece, out)
            tell(stop - start)
        return squares, alone, finite

    apart, alone, finite = np.zeros(len(weights) - 1), np.zeros(len(weights) - 1), True
    for squares, cut, good in in_order(form, stripes([(0, updates.size)], len(said))):
        finite &= good
        alone[chosen] += cut
        if squares is not None:
            apart[ring] += squares
    alone[weights[:-1] == 0] = 0.0  # a party without weight has nothing to clip
    unknown = 0.0 if finite else np.nan
    return apart / updates.seen + unknown, alone / updates.seen + unknown


def _loop(updates: Updates, witnesses: Witnesses | None) -> Callable[..., bool]:
    """Return the loop that forms a piece: with witnesses, the one that clips."""
    use, wide = updates.loops or loops.current, updates.wide
    if witnesses is None:
        return lambda rows, codes, said, out, code, squares, _: use.combine(
            rows, codes, said, out, code, squares, wide
        )
    return lambda rows, codes, said, out, code, squares, alone: use.corroborate(
        rows, codes, said, *witnesses, out, code, squares, alone, wide
    )


def reduce(
    updates: Updates, cut: int, room: Room, *, exact: bool = False, tell: Tell = ignored
) -> tuple[Vector, Vector]:
    """Form the mean of each coordinate without the ``cut`` least and ``cut`` greatest.

    Return each party's share in it and its mean squared distance from it. With many coordinates
    these come from some of them, unless ``exact``. Both are NaN if an update is not finite.
    """
    count, wide = len(updates.parties), updates.wide
    every = 1 if exact or updates.size <= SMALL else _TOLD
    value, use = _Value(updates, room), updates.loops or loops.current

    def form(mine: Spans) -> tuple[Vector, Vector, int]:
        shares, squares, seen = np.zeros(count), np.zeros(count), 0
        for start, stop in mine:
            for piece in updates.pieces(start, stop):
                rows, codes = updates.rows(piece)
                out, code = value.place(piece)
                some = use.trim(rows, codes, cut, out, code, every, shares, squares, wide)
                value.keep(piece, out)
                if some < 0:
                    shares[:] = squares[:] = np.nan
                seen += abs(some)
            tell(stop - start)
        return shares, squares, seen

    shares, squares, seen = np.zeros(count), np.zeros(count), 0
    for said, apart, some in in_order(form, stripes([(0, updates.size)], count)):
        shares, squares, seen = shares + said, squares + apart, seen + some
    return shares / seen, squares / seen


class _Value:
    """The result while it is being formed."""

    def __init__(self, updates: Updates, room: Room) -> None:
        self._model = updates.leaves[updates.template]
        self._storage = {path: room(path) for path in updates.floats}

    def place(self, piece: Piece) -> tuple[Array, bytes]:
        """Return an array for a piece, its final place if that is in memory; and its dtype code."""
        model, storage = self._model[piece.path], self._storage[piece.path]
        if not getattr(storage, "written", False):
            return storage[piece.low : piece.high], model.code
        native = model.storage.dtype.newbyteorder("=")
        return np.empty(piece.high - piece.low, native), model.code

    def keep(self, piece: Piece, formed: Array) -> None:
        """Store a piece that was formed outside its final place."""
        storage = self._storage[piece.path]
        if getattr(storage, "written", False):
            storage[piece.low : piece.high] = formed
