"""The usable updates of a round, and the screening of those that are not.

Screening is free while all is well: a NaN shows in the evidence or in the consensus, and only then
does the search for the party begin.

Floating-point tensors are aggregated as one long vector. The elements of any other tensor (a
BatchNorm counter, a mask) are put to a vote: each becomes the weighted median of what the parties
sent, for booleans the majority. A party votes with its weight in the consensus, but with at most a
third of all votes, since a weight may rest on a mere claim of samples. A mean of counters has no
meaning, and a maximum could be set by any single party.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import ModuleType
from typing import Any, NamedTuple, Self

import numpy as np

from consilience.arrays import Array, Positions, Vector
from consilience.errors import UpdateError
from consilience.text import shown
from consilience.updates.tensors import Storage
from consilience.updates.trees import Leaves, Path, Tree, unflatten
from consilience.updates.votes import at_most_a_third, weighted_median

log = logging.getLogger("consilience")

_ELECTED = 1 << 20  # elements put to a vote at once


class Piece(NamedTuple):
    """A range of one tensor's coordinates."""

    path: Path
    low: int
    high: int


@dataclass(frozen=True, eq=False)
class Updates:
    """The usable updates of a round, as J vectors of K coordinates that are never stacked."""

    parties: tuple[str, ...]
    leaves: tuple[Leaves, ...]  # one per party, all with the same paths
    trees: tuple[Tree, ...]
    given: tuple[str, ...]  # everybody who sent something, in the given order
    rejected: dict[str, str]
    center: Leaves | None = None
    widest: int | None = None  # most coordinates to read at once, if they are not in memory
    loops: ModuleType | None = None  # the loops for rows on an accelerator
    judged: frozenset[Path] | None = None  # tensors used as evidence; None: all
    faint: bool = False  # single precision cannot hold the squares of typical differences
    floats: tuple[Path, ...] = field(init=False)
    offsets: Array = field(init=False)  # where each float tensor starts among the coordinates
    seen: int = field(init=False)  # number of coordinates that are evidence; they come first

    def __post_init__(self) -> None:
        floats = [path for path, leaf in self.leaves[0].items() if leaf.kind == "float"]
        floats.sort(key=lambda path: not self.judges(path))
        sizes = [self.leaves[0][path].size for path in floats]
        offsets = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])
        object.__setattr__(self, "floats", tuple(floats))
        object.__setattr__(self, "offsets", offsets)
        object.__setattr__(self, "seen", int(offsets[sum(map(self.judges, floats))]))

    @property
    def size(self) -> int:
        """Return K, the number of floating-point coordinates of an update."""
        return int(self.offsets[-1])

    def judges(self, path: Path) -> bool:
        """Tell whether a tensor is evidence about the parties."""
        return self.judged is None or path in self.judged

    @cached_property
    def wide(self) -> bool:
        """Tell whether single precision is too little, for the digits or for the range."""
        return self.faint or any(
            leaves[path].wide for leaves in self.leaves for path in self.floats
        )

    def pieces(self, start: int, stop: int) -> Iterator[Piece]:
        """Yield the pieces that coordinates start..stop lie in, none wider than `widest`."""
        most = self.widest or self.size
        first = int(np.searchsorted(self.offsets, start, side="right")) - 1
        for path, begin, end in zip(
            self.floats[first:], self.offsets[first:], self.offsets[first + 1 :], strict=False
        ):
            if begin >= stop:
                return
            low, high = max(start, int(begin)) - int(begin), min(stop, int(end)) - int(begin)
            for at in range(low, high, most):
                yield Piece(path, at, min(high, at + most))

    def rows(self, piece: Piece, chosen: Positions | None = None) -> tuple[list[Array], bytes]:
        """Return a piece of all parties, or of the chosen ones, uncopied; and the dtype codes."""
        storages, codes = self.columns[piece.path]
        span = slice(piece.low, piece.high)
        if chosen is None:
            return [storage[span] for storage in storages], codes
        return [storages[j][span] for j in chosen], bytes(codes[j] for j in chosen)

    @cached_property
    def columns(self) -> dict[Path, tuple[list[Storage], bytes]]:
        """The storage of each float tensor for all parties, and the dtype codes."""
        by_path = {path: [leaves[path] for leaves in self.leaves] for path in self.floats}
        return {
            path: ([leaf.storage for leaf in column], b"".join(leaf.code for leaf in column))
            for path, column in by_path.items()
        }

    def origin(self, piece: Piece) -> tuple[Array | None, bytes]:
        """Return a piece of the centre, or None where the centre is zero."""
        if self.center is None:
            return None, b"f"
        leaf = self.center[piece.path]
        return leaf.storage[piece.low : piece.high], leaf.code

    def without(self, bad: Mapping[str, str]) -> Self:
        """Log who is rejected and why, and return the updates of the others."""
        if not bad:
            return self
        log_rejected(bad)
        return self.less(bad)

    def less(self, bad: Mapping[str, str]) -> Self:
        """Return the updates without some parties, each with a reason; raise if nobody is left."""
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
        )

    @cached_property
    def template(self) -> int:
        """Return the party the consensus is modelled on: the first with the commonest dtypes, among
        those with the commonest types of tensors and containers."""
        dtypes = [tuple(leaf.dtype for leaf in leaves.values()) for leaves in self.leaves]
        common = Counter(dtypes).most_common(1)[0][0]
        those = [j for j, found in enumerate(dtypes) if found == common]
        types = [self.trees[j].types for j in those]
        return those[types.index(Counter(types).most_common(1)[0][0])]

    def elect(self, path: Path, weights: Vector, out: Storage) -> None:
        """Fill the storage of a tensor that is put to a vote, element by element."""
        votes = at_most_a_third(weights)
        votes = votes if votes.any() else np.ones(len(votes))
        voters, size = np.flatnonzero(votes), self.leaves[0][path].size
        dtype = self.leaves[self.template][path].empty(0).dtype
        width = max(256, _ELECTED // len(voters))
        for start in range(0, size, width):
            stop = min(start + width, size)
            rows = np.empty((len(voters), stop - start), dtype)
            for row, party in zip(rows, voters, strict=True):
                row[:] = self.leaves[party][path].read(start, stop)
            # Complex numbers have no order, but their real and imaginary parts have.
            parts = rows.view(rows.real.dtype) if rows.dtype.kind == "c" else rows
            out[start:stop] = weighted_median(parts, votes[voters]).view(rows.dtype)

    def rebuild(self, values: Mapping[Path, Storage]) -> Any:
        """Return a tree like the updates, with new storage for each tensor."""
        model = self.template
        leaves = self.leaves[model]
        made = {path: leaves[path].rebuild(storage) for path, storage in values.items()}
        return unflatten(self.trees[model], made)


def log_rejected(rejected: Mapping[str, str]) -> None:
    """Log who is rejected, and why."""
    for party, reason in rejected.items():
        log.warning("party %s rejected: %s", shown(party), reason)


def nobody_left(rejected: Mapping[str, str], unlike_center: bool = False) -> UpdateError:
    """Return the error for a round in which no update can be used."""
    if not rejected:
        return UpdateError("no updates: expected at least one party, found none")
    reasons = "; ".join(f"{shown(party)}: {reason}" for party, reason in list(rejected.items())[:5])
    more = f"; and {len(rejected) - 5} more" if len(rejected) > 5 else ""
    why = "differs from the centre" if unlike_center else "was rejected"
    return UpdateError(
        f"every update {why}, nothing is left to aggregate ({reasons}{more})", rejected
    )
