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
from numbers import Number
from typing import Any, NamedTuple, Self

import numpy as np

from consilience.errors import UpdateError
from consilience.parallel import in_order
from consilience.tensors import Array, Storage, Tensor, is_tensor
from consilience.text import shown, told
from consilience.trees import Leaves, Path, Tree, flatten, show, unflatten
from consilience.votes import Vector, at_most_a_third, weighted_median

log = logging.getLogger("consilience")

_CHUNK = 1 << 16
# What layers call their tensors.
_LAYER = {"weight", "bias", "kernel", "running_mean", "running_var", "num_batches_tracked"}
LARGEST = 1e50  # number of an update: beyond it squares, and ratios of squares, may overflow
_ELECTED = 1 << 20  # numbers that are voted on at once


@dataclass(frozen=True, eq=False)
class Updates:
    """The usable updates of a round, as J vectors of K coordinates that are never stacked."""

    parties: tuple[str, ...]
    leaves: tuple[Leaves, ...]  # one per party, same paths in each
    trees: tuple[Tree, ...]
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
        _log(bad)
        rejected = {**self.rejected, **bad}
        keep = [j for j, party in enumerate(self.parties) if party not in bad]
        if not keep:
            raise nobody_left(rejected)
        return replace(
            self,
            parties=tuple(self.parties[j] for j in keep),
            leaves=tuple(self.leaves[j] for j in keep),
            trees=tuple(self.trees[j] for j in keep),
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
        for path in self.floats:
            leaf = leaves[path]
            spare = np.empty(min(leaf.size, _CHUNK), float if leaf.wide else np.float32)
            for start in range(0, leaf.size, _CHUNK):
                piece = leaf.piece(start, start + _CHUNK, spare)
                with np.errstate(invalid="ignore"):
                    usable = np.abs(piece) <= np.float64(LARGEST)  # float32 cannot hold it
                if not usable.all():
                    at = int(np.argmin(usable))
                    return f"{show(path)} holds {piece[at]} at position {start + at}"
        return None

    def template(self) -> int:
        """Return the first party with the commonest dtypes, of those with the commonest types of
        tensors and containers: the consensus takes after it."""
        dtypes = [tuple(leaf.dtype for leaf in leaves.values()) for leaves in self.leaves]
        common = Counter(dtypes).most_common(1)[0][0]
        those = [j for j, found in enumerate(dtypes) if found == common]
        types = [self.trees[j].types for j in those]
        return those[types.index(Counter(types).most_common(1)[0][0])]

    def elected(self, model: Tensor, path: Path, weights: Vector) -> Storage:
        """Return storage, as the model's, for a tensor that is not aggregated: each element is
        voted on."""
        votes = at_most_a_third(weights)
        votes = votes if votes.any() else np.ones(len(votes))
        out, voters = model.empty(), np.flatnonzero(votes)
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
            storage = floats[path] if path in floats else self.elected(leaf, path, weights)
            values[path] = leaf.rebuild(storage)
        return unflatten(self.trees[model], values)


class _Read(NamedTuple):
    """What a party sent."""

    leaves: Leaves
    tree: Tree


def parse(updates: Any, center: Any = None) -> Updates:
    """Read the updates of a round, and reject those whose structure differs.

    An update that could not be had, such as an unreadable file, is given as the error that says so.
    """
    if isinstance(updates, Updates):
        return updates
    named, stack = _name(updates)
    # By id, so that the sums, and so the bits of the answer, do not depend on who came first.
    parties = sorted(named) if isinstance(updates, Mapping) else list(named)
    expected = None if center is None else _center(center)
    read, rejected = _read(named, parties)
    if not read:
        _log(rejected)
        raise nobody_left(rejected)
    reference = expected
    if reference is None:
        _check_parties(read)
        reference = _commonest([found.leaves for found in read.values()])
    leaves, differing = _agreeing(read, reference)
    rejected |= differing
    _log(rejected)
    if not leaves:
        raise nobody_left(rejected)
    good = tuple(leaves)
    _check_floats(leaves[good[0]])
    return Updates(
        parties=good,
        leaves=tuple(leaves.values()),
        trees=tuple(read[party].tree for party in good),
        given=tuple(named),
        rejected=rejected,
        center=expected,
        stack=stack if len(good) == len(named) else None,
    )


def _read(
    named: Mapping[str, Any], parties: Iterable[str]
) -> tuple[dict[str, _Read], dict[str, str]]:
    """Take the updates apart; return also who sent none, with reasons."""
    read: dict[str, _Read] = {}
    rejected: dict[str, str] = {}
    for party in parties:
        try:
            read[party] = _Read(*flatten(named[party]))
        except UpdateError as error:
            rejected[party] = str(error)
        except Exception as error:  # whatever a stranger's object raises costs nobody else
            rejected[party] = f"it cannot be read ({told(error)})"
    return read, rejected


def _agreeing(
    read: Mapping[str, _Read], reference: Leaves
) -> tuple[dict[str, Leaves], dict[str, str]]:
    """Return the tensors of those whose structure is the expected one; the others with reasons."""
    agreeing: dict[str, Leaves] = {}
    rejected: dict[str, str] = {}
    for party, (leaves, _) in read.items():
        reason = _difference(leaves, reference)
        if reason is not None:
            rejected[party] = reason
            continue
        try:
            # Paths in one order for all: mappings may list the same names in different orders.
            agreeing[party] = {path: leaves[path].flat() for path in reference}
        except MemoryError as error:  # a small view of any size, and nobody to compare it with
            rejected[party] = f"it cannot be read ({told(error)})"
    return agreeing, rejected


def _log(rejected: Mapping[str, str]) -> None:
    for party, reason in rejected.items():
        log.warning("party %s rejected: %s", shown(party), reason)


def _check_floats(leaves: Leaves) -> None:
    if not any(leaf.size for leaf in leaves.values() if leaf.kind == "float"):
        kinds = sorted({leaf.dtype for leaf in leaves.values()})
        raise UpdateError(
            f"no floating-point coordinate in the updates (found {', '.join(kinds) or 'no tensor'})"
            ": convert them, for instance with .astype(float)"
        )


def _check_parties(read: Mapping[str, _Read]) -> None:
    """Raise if these are the tensors, or the layers, of one model rather than the updates of many
    parties.

    That shows where each is a single tensor, or all hold what a layer does, and no shapes are those
    of most; or where most of the tensors have a layer's names.
    """
    single = all(found.tree.leaf for found in read.values())
    if len(read) < 2 or not (single or all(map(_is_layer, read.values()))):
        return
    shapes = {p: tuple(leaf.shape for leaf in found.leaves.values()) for p, found in read.items()}
    (_, most), *others = Counter(shapes.values()).most_common(2)
    tied = any(count == most for _, count in others)
    layers = sum(party.rsplit(".", 1)[-1] in _LAYER for party in read) if single else 0
    if tied or 2 * most < len(read) or 2 * layers > len(read):
        some = ", ".join(f"{shown(party)} {shape}" for party, shape in list(shapes.items())[:3])
        raise UpdateError(
            f"this looks like the tensors of one model, each taken for a party ({some}, …): give "
            "{party: model}, or a centre to say what is expected"
        )


def _is_layer(found: _Read) -> bool:
    return bool(found.leaves) and all(len(p) == 1 and p[0] in _LAYER for p in found.leaves)


def nobody_left(rejected: Mapping[str, str]) -> UpdateError:
    """Return the error for a round in which no update can be used."""
    if not rejected:
        return UpdateError("no updates: expected at least one party, found none")
    reasons = "; ".join(f"{shown(party)}: {reason}" for party, reason in list(rejected.items())[:5])
    more = f"; and {len(rejected) - 5} more" if len(rejected) > 5 else ""
    return UpdateError(
        f"every update was rejected, nothing is left to aggregate ({reasons}{more})", rejected
    )


def _name(updates: Any) -> tuple[dict[str, Any], Array | None]:
    """Return the updates by party id, and the array they are the rows of, if they are."""
    if isinstance(updates, Mapping):
        return _by_id(updates, updates.values()), None
    if hasattr(updates, "columns") or (hasattr(updates, "index") and hasattr(updates, "to_numpy")):
        return _rows(updates), None
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


def _rows(frame: Any) -> dict[str, Any]:
    """Return the rows of a data frame by party id: its index, or 0, 1, … where it has none."""
    kind = shown(type(frame).__name__)
    try:
        values = frame.to_numpy()
        if values.dtype.kind == "O":  # of a column that can be missing, perhaps
            _check_numbers(values[~frame.isna().to_numpy()])
            values = frame.to_numpy(dtype=float, na_value=np.nan)
    except Exception as error:
        raise UpdateError(
            f"{kind} cannot be read as numbers, a row for each party ({told(error)}); leave out "
            "other columns, or make them the index"
        ) from None
    return _by_id(frame.index if hasattr(frame, "index") else range(len(values)), values)


def _check_numbers(values: Array) -> None:
    """Raise for what can be made a number but is none, such as text or a date."""
    for value in values:
        if not isinstance(value, Number | np.bool_):
            raise TypeError(f"found {shown(type(value).__name__)}")


def _by_id(ids: Iterable[Any], updates: Iterable[Any]) -> dict[str, Any]:
    names = [str(party) for party in ids]
    named = dict(zip(names, updates, strict=True))
    if len(named) != len(names):
        raise UpdateError("two parties have the same id once written as text")
    return named


def _center(center: Any) -> Leaves:
    leaves = {path: leaf.flat() for path, leaf in flatten(center)[0].items()}
    for path, leaf in leaves.items():
        if leaf.kind == "float":
            buffer = np.empty(min(leaf.size, _CHUNK))
            for start in range(0, leaf.size, _CHUNK):
                piece = buffer[: min(leaf.size - start, _CHUNK)]
                leaf.read(start, start + piece.size, piece)
                if not (np.abs(piece) <= np.float64(LARGEST)).all():
                    raise UpdateError(
                        f"the centre's {show(path)} holds NaN, inf or a number above {LARGEST:g}"
                    )
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
        parts = [f"{show(path)} is missing" for path in missing[:2]]
        parts += [f"{show(path)} is not expected" for path in extra[:2]]
        more = len(missing) + len(extra) - len(parts)
        return ", ".join(parts) + (f" and {more} more differ" if more else "")
    for path, leaf in found.items():
        wanted = expected[path]
        if leaf.shape != wanted.shape:
            return f"{show(path)} has shape {leaf.shape}, expected {wanted.shape}"
        if leaf.kind != wanted.kind:
            return f"{show(path)} is {leaf.dtype}, expected {wanted.kind}"
    return None
