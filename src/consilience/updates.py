"""Trees of tensors in and out; screening of bad updates, with reasons.

An update is a tensor, or a mapping or sequence of updates. The updates of a round must agree on
names, shapes and kinds of tensors; a party that disagrees with the centre, or without one with
most other parties, is rejected by name and the round goes on. Screening costs nothing while all is
well: a NaN shows in the evidence or in the consensus, and only then is the culprit looked for.

Floating-point tensors are aggregated, as one long vector of coordinates. The elements of any other
tensor (a BatchNorm counter, a mask) are voted on: each is the weighted median of what the parties
sent, which of booleans is the majority. A party votes with its weight in the consensus, yet with at
most a third of all votes: a weight may be no more than a claim of samples. An average of counters
has no meaning, and a maximum could be set by any one party.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np

from consilience.errors import UpdateError
from consilience.parallel import in_order
from consilience.tensors import Array, Storage, Tensor, is_tensor, tensor
from consilience.votes import Vector, at_most_a_third, weighted_median

log = logging.getLogger("consilience")

Path = tuple[Any, ...]
Leaves = dict[Path, Tensor]
_CHUNK = 1 << 16
_ELECTED = 1 << 20  # numbers that are voted on at once


@dataclass(frozen=True, eq=False)
class Updates:
    """The usable updates of a round, as J vectors of K coordinates that are never stacked."""

    parties: tuple[str, ...]
    leaves: tuple[Leaves, ...]  # one per party, same paths in each
    originals: tuple[Any, ...]
    given: tuple[str, ...]  # everybody who sent something, in the order given
    rejected: dict[str, str]
    center: Leaves | None = None
    stack: Array | None = None  # (J, K), where the updates came as the rows of one array
    floats: tuple[Path, ...] = field(init=False)
    offsets: Array = field(init=False)  # where each float tensor starts among the coordinates

    def __post_init__(self) -> None:
        floats = tuple(path for path, leaf in self.leaves[0].items() if leaf.kind == "float")
        sizes = [self.leaves[0][path].size for path in floats]
        object.__setattr__(self, "floats", floats)
        object.__setattr__(self, "offsets", np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)]))

    @property
    def size(self) -> int:
        """Return K, the number of floating-point coordinates of an update."""
        return int(self.offsets[-1])

    @property
    def wide(self) -> bool:
        """Tell whether any party sent more than float32."""
        return any(leaves[path].wide for leaves in self.leaves for path in self.floats)

    def chunks(self, width: int) -> list[tuple[int, int]]:
        """Return the spans of so many coordinates, one after the other, that are all of them."""
        return [(at, min(at + width, self.size)) for at in range(0, self.size, width)]

    def rows(self, chosen: Array, start: int, stop: int, buffer: Array) -> Array:
        """Return coordinates start..stop of the chosen parties, as they lie if that is in one
        array, or read into the buffer."""
        stack = self.stack
        if stack is not None and stack.dtype == buffer.dtype and len(chosen) == len(stack):
            return stack[:, start:stop]
        rows = buffer[:, : stop - start]
        for path, low, high, at in self.pieces(start, stop):
            for row, party in zip(rows, chosen, strict=True):
                self.leaves[party][path].read(low, high, row[at : at + high - low])
        return rows

    def centre(self, start: int, stop: int, dtype: np.dtype[Any]) -> Array:
        """Return coordinates start..stop of the centre."""
        out = np.empty((1, stop - start), dtype)
        self._read_centre(start, stop, out)
        coordinates: Array = out[0]
        return coordinates

    def read(self, start: int, stop: int, out: Array, about: int | None = None) -> None:
        """Write coordinates start..stop of every party into the rows of ``out``, and below them
        those of the centre if ``out`` has a row for it; less those of the party ``about``."""
        count = len(self.parties)
        self._read_centre(start, stop, out[count:])
        if self.stack is not None and (about is None or self.stack.dtype == out.dtype):
            rows = self.stack[:, start:stop]
            np.copyto(out[:count], rows, casting="same_kind")
            if about is not None:  # in place, on what is in the cache, is the fastest way
                out -= rows[about]
            return
        for path, low, high, at in self.pieces(start, stop):
            for row, leaves in zip(out, self.leaves, strict=False):
                leaves[path].read(low, high, row[at : at + high - low])
        if about is not None:
            out -= out[about].copy()

    def look(self, places: Array) -> Array:
        """Return every party's coordinates at some places, in ascending order: (J, n)."""
        out = np.empty((len(self.parties), len(places)))
        edges = np.searchsorted(places, self.offsets)
        for path, begin, low, high in zip(
            self.floats, self.offsets, edges, edges[1:], strict=False
        ):
            for row, leaves in zip(out, self.leaves, strict=True) if low < high else ():
                leaves[path].look(places[low:high] - begin, row[low:high])
        return out

    def _read_centre(self, start: int, stop: int, out: Array) -> None:
        if self.center is None or not len(out):
            out[:] = 0
            return
        for path, low, high, at in self.pieces(start, stop):
            self.center[path].read(low, high, out[0, at : at + high - low])

    def pieces(self, start: int, stop: int) -> Iterable[tuple[Path, int, int, int]]:
        """Yield where coordinates start..stop lie: tensor, from, to, and the place in the span."""
        first = int(np.searchsorted(self.offsets, start, side="right")) - 1
        for path, begin, end in zip(
            self.floats[first:], self.offsets[first:], self.offsets[first + 1 :], strict=False
        ):
            if begin >= stop:
                return
            low, high = max(start, int(begin)), min(stop, int(end))
            if low < high:
                yield path, low - int(begin), high - int(begin), low - start

    def without(self, bad: Mapping[str, str]) -> Self:
        """Return these updates less some parties, each with the reason; raise if none are left."""
        if not bad:
            return self
        for party, reason in bad.items():
            log.warning("party %s rejected: %s", party, reason)
        rejected = {**self.rejected, **bad}
        keep = [j for j, party in enumerate(self.parties) if party not in bad]
        if not keep:
            raise nobody_left(rejected)
        return replace(
            self,
            parties=tuple(self.parties[j] for j in keep),
            leaves=tuple(self.leaves[j] for j in keep),
            originals=tuple(self.originals[j] for j in keep),
            rejected=rejected,
            stack=None,
        )

    def screened(self, suspects: Array | None = None) -> Self:
        """Return these updates less every party, or suspect, whose numbers cannot be used."""
        looked_at = np.flatnonzero(np.ones(len(self.parties)) if suspects is None else suspects)
        found = in_order(self._unusable, [self.leaves[j] for j in looked_at])
        reasons = zip((self.parties[j] for j in looked_at), found, strict=True)
        return self.without({party: reason for party, reason in reasons if reason is not None})

    def _unusable(self, leaves: Leaves) -> str | None:
        square = 0.0
        for path in self.floats:
            leaf = leaves[path]
            spare = np.empty(min(leaf.size, _CHUNK), float if leaf.wide else np.float32)
            for start in range(0, leaf.size, _CHUNK):
                piece = leaf.piece(start, start + _CHUNK, spare)
                with np.errstate(over="ignore", invalid="ignore"):
                    total = float(np.square(piece).sum() if leaf.wide else piece.sum())
                if not np.isfinite(total):  # a sum is the quickest look at many numbers
                    finite = np.isfinite(piece)
                    if not finite.all():
                        at = int(np.argmin(finite))
                        return f"{_show(path)} holds {piece[at]} at position {start + at}"
                if leaf.wide:
                    square += total
        # A quarter of the range, so that a difference of two such updates has a norm too. Numbers
        # of single precision are too small to get there.
        if square > np.finfo(float).max / 4:
            return "its norm overflows"
        return None

    def template(self) -> int:
        """Return the first party with the commonest dtypes: the consensus takes after it."""
        dtypes = [tuple(leaf.dtype for leaf in leaves.values()) for leaves in self.leaves]
        return dtypes.index(Counter(dtypes).most_common(1)[0][0])

    def elected(self, path: Path, weights: Vector) -> Storage:
        """Return storage for a tensor that is not aggregated, with each element voted on."""
        votes = at_most_a_third(weights)
        votes = votes if votes.any() else np.ones(len(votes))
        model, voters = self.leaves[self.template()][path], np.flatnonzero(votes)
        out = model.empty()
        width = max(256, _ELECTED // len(voters))
        for start in range(0, model.size, width):
            stop = min(start + width, model.size)
            rows = np.empty((len(voters), stop - start), model.storage.dtype)
            for row, party in zip(rows, voters, strict=True):
                row[:] = self.leaves[party][path].storage[start:stop]
            # Complex numbers have no order; their parts do.
            parts = rows.view(rows.real.dtype) if rows.dtype.kind == "c" else rows
            out[start:stop] = weighted_median(parts, votes[voters]).view(rows.dtype)
        return out

    def rebuild(self, floats: Mapping[Path, Array], weights: Vector) -> Any:
        """Return a tree like the updates: float storage given, other tensors voted on."""
        model = self.template()
        values: dict[Path, Any] = {}
        for path, leaf in self.leaves[model].items():
            storage = floats[path] if path in floats else self.elected(path, weights)
            values[path] = leaf.rebuild(storage)
        return _unflatten(self.originals[model], values)


def parse(updates: Any, center: Any = None) -> Updates:
    """Read the updates of a round, and reject those whose structure differs.

    An update that could not be had, such as an unreadable file, is given as the error that says so.
    """
    if isinstance(updates, Updates):
        return updates
    named, stack = _name(updates)
    given = tuple(named)
    # By id, so that the sums, and so the bits of the answer, do not depend on who came first.
    parties = sorted(named) if isinstance(updates, Mapping) else list(named)
    expected = None if center is None else _center(center)
    leaves: dict[str, Leaves] = {}
    rejected: dict[str, str] = {}
    for party in parties:
        try:
            leaves[party] = dict(_flatten(named[party]))
        except UpdateError as error:
            rejected[party] = str(error)
    if not leaves:
        raise nobody_left(rejected)
    reference = expected if expected is not None else _commonest(list(leaves.values()))
    for party, found in leaves.items():
        reason = _difference(found, reference)
        if reason is not None:
            rejected[party] = reason
    for party, reason in rejected.items():
        log.warning("party %s rejected: %s", party, reason)
    good = [party for party in parties if party not in rejected]
    if not good:
        raise nobody_left(rejected)
    if not any(leaf.size for leaf in leaves[good[0]].values() if leaf.kind == "float"):
        kinds = sorted({leaf.dtype for leaf in leaves[good[0]].values()})
        raise UpdateError(
            f"no floating-point coordinate in the updates (found {', '.join(kinds) or 'no tensor'})"
            ": convert them, for instance with .astype(float)"
        )
    return Updates(
        parties=tuple(good),
        # Paths in one order for all: mappings may list the same names in different orders.
        leaves=tuple({path: leaves[party][path] for path in reference} for party in good),
        originals=tuple(named[party] for party in good),
        given=given,
        rejected=rejected,
        center=expected,
        stack=stack if len(good) == len(given) else None,
    )


def nobody_left(rejected: Mapping[str, str]) -> UpdateError:
    """Return the error for a round in which no update can be used."""
    if not rejected:
        return UpdateError("no updates: expected at least one party, found none")
    reasons = "; ".join(f"{party}: {reason}" for party, reason in list(rejected.items())[:5])
    more = f"; and {len(rejected) - 5} more" if len(rejected) > 5 else ""
    return UpdateError(
        f"every update was rejected, nothing is left to aggregate ({reasons}{more})", rejected
    )


def _name(updates: Any) -> tuple[dict[str, Any], Array | None]:
    """Return the updates by party id, and the array they are the rows of, if they are."""
    if isinstance(updates, Mapping):
        named = {str(party): update for party, update in updates.items()}
        if len(named) != len(updates):
            raise UpdateError("two parties have the same id once written as text")
        return named, None
    if is_tensor(updates):
        rows = updates if hasattr(updates, "shape") else np.asarray(updates)
        if len(rows.shape) == 0:
            raise UpdateError(f"expected one update per party, found a single number: {updates}")
        plain = type(rows) is np.ndarray and rows.ndim == 2 and rows.flags.c_contiguous
        return {str(j): rows[j] for j in range(rows.shape[0])}, rows if plain else None
    if isinstance(updates, Iterable) and not isinstance(updates, str | bytes):
        return {str(j): update for j, update in enumerate(updates)}, None
    raise UpdateError(
        "expected {party: update}, a sequence of updates or a (J, K) array, "
        f"found {type(updates).__name__}"
    )


def _flatten(update: Any, path: Path = ()) -> Iterable[tuple[Path, Tensor]]:
    if isinstance(update, UpdateError):
        raise update
    if is_tensor(update):
        try:
            yield path, tensor(update)
        except UpdateError as error:
            raise UpdateError(f"{_show(path)}: {error}") from None
    elif isinstance(update, Mapping):
        for key, value in update.items():
            yield from _flatten(value, (*path, key))
    elif isinstance(update, Sequence) and not isinstance(update, str | bytes):
        for index, value in enumerate(update):
            yield from _flatten(value, (*path, index))
    else:
        raise UpdateError(f"{_show(path)}: expected a tensor, found {type(update).__name__}")


def _unflatten(update: Any, values: Mapping[Path, Any], path: Path = ()) -> Any:
    if is_tensor(update):
        return values[path]
    if isinstance(update, Mapping):
        items = {key: _unflatten(value, values, (*path, key)) for key, value in update.items()}
        make: Any = type(update)
        try:
            return make(items)
        except TypeError:  # a mapping that is not made from its items, such as a defaultdict
            return items
    parts = [_unflatten(value, values, (*path, index)) for index, value in enumerate(update)]
    if isinstance(update, tuple):
        return type(update)(*parts) if hasattr(update, "_fields") else tuple(parts)
    return parts


def _center(center: Any) -> Leaves:
    leaves = dict(_flatten(center))
    for path, leaf in leaves.items():
        if leaf.kind == "float":
            buffer = np.empty(min(leaf.size, _CHUNK))
            for start in range(0, leaf.size, _CHUNK):
                piece = buffer[: min(leaf.size - start, _CHUNK)]
                leaf.read(start, start + piece.size, piece)
                if not np.isfinite(piece).all():
                    raise UpdateError(f"the centre's {_show(path)} holds NaN or inf")
    return leaves


def _commonest(found: Sequence[Leaves]) -> Leaves:
    """Return the first of the leaves with the commonest signature."""
    signatures = [frozenset(_signature(leaves).items()) for leaves in found]
    return found[signatures.index(Counter(signatures).most_common(1)[0][0])]


def _signature(leaves: Leaves) -> dict[Path, tuple[tuple[int, ...], str]]:
    return {path: (leaf.shape, leaf.kind) for path, leaf in leaves.items()}


def _difference(found: Leaves, expected: Leaves) -> str | None:
    """Return in words how an update's structure differs from the expected one, or None."""
    missing = [path for path in expected if path not in found]
    extra = [path for path in found if path not in expected]
    if missing or extra:
        parts = [f"{_show(path)} is missing" for path in missing[:2]]
        parts += [f"{_show(path)} is not expected" for path in extra[:2]]
        more = len(missing) + len(extra) - len(parts)
        return ", ".join(parts) + (f" and {more} more differ" if more else "")
    for path, leaf in found.items():
        wanted = expected[path]
        if leaf.shape != wanted.shape:
            return f"{_show(path)} has shape {leaf.shape}, expected {wanted.shape}"
        if leaf.kind != wanted.kind:
            return f"{_show(path)} is {leaf.dtype}, expected {wanted.kind}"
    return None


def _show(path: Path) -> str:
    return f"tensor '{'.'.join(map(str, path))}'" if path else "the update"
