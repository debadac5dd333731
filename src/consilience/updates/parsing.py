"""Reads the updates of a round, compares their structure, and rejects those that differ.

An update is a tensor, or a mapping or sequence of updates. The updates of a round must agree on
names, shapes and kinds of tensors. A party that disagrees with the centre, or without a centre with
most other parties, is rejected by name, and the round goes on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from numbers import Number
from typing import Any, NamedTuple

import numpy as np

from consilience.arrays import Array
from consilience.errors import ConsilienceError, UpdateError
from consilience.text import shown, told
from consilience.updates.names import Patterns, meant
from consilience.updates.tensors import LARGEST, is_tensor
from consilience.updates.trees import Leaves, Path, Tree, alike, flatten, pruned, show
from consilience.updates.usable import Updates, log_rejected, nobody_left

Signature = dict[Path, tuple[tuple[int, ...], str]]  # shapes and kinds

# The usual names of the tensors of a layer.
_LAYER = {"weight", "bias", "kernel", "running_mean", "running_var", "num_batches_tracked"}


class _Read(NamedTuple):
    """What a party sent."""

    leaves: Leaves
    tree: Tree
    signature: Signature


def parse(
    updates: Any,
    center: Any = None,
    tensors: Patterns | None = None,
    evidence: Patterns | None = None,
) -> Updates:
    """Read the updates of a round, and reject those whose structure differs.

    An update that could not be obtained, such as an unreadable file, is given as the error that
    says so. ``tensors`` selects what is read at all; ``evidence`` selects, among these, the tensors
    by which parties are judged.
    """
    if isinstance(updates, Updates):
        return updates
    by_party = named(updates)
    # Sorted, so that sums, and the bits of the result, do not depend on who came first.
    parties = sorted(by_party) if isinstance(updates, Mapping) else list(by_party)
    expected = None if center is None else _center(center)
    read, rejected = _read(by_party, parties)
    if tensors is not None and read:
        read, expected = _chosen(read, expected, tensors)
    if not read:
        log_rejected(rejected)
        raise nobody_left(rejected)
    reference = expected
    if reference is None:
        _check_parties(read)
        reference = _commonest(list(read.values()))
    leaves, differing = _agreeing(read, reference)
    rejected |= differing
    log_rejected(rejected)
    if not leaves:
        unlike = expected is not None and len(differing) == len(rejected)
        raise nobody_left(rejected, unlike_center=unlike)
    good = tuple(leaves)
    _check_floats(leaves[good[0]])
    judged = None if evidence is None else _judged(leaves[good[0]], evidence)
    return Updates(
        parties=good,
        leaves=tuple(leaves.values()),
        trees=tuple(read[party].tree for party in good),
        given=tuple(by_party),
        rejected=rejected,
        center=expected,
        judged=judged,
    )


def _chosen(
    read: Mapping[str, _Read], expected: Leaves | None, tensors: Patterns
) -> tuple[dict[str, _Read], Leaves | None]:
    """Return the selected tensors of what was read and of what is expected."""
    paths = {path: None for found in read.values() for path in found.leaves}
    kept = meant([*paths, *(expected or {})], tensors)

    def only(leaves: Leaves) -> Leaves:
        return {path: leaf for path, leaf in leaves.items() if path in kept}

    chosen = {
        party: _Read(only(leaves), pruned(tree, kept), _signature(only(leaves)))
        for party, (leaves, tree, _) in read.items()
    }
    return chosen, None if expected is None else only(expected)


def _judged(leaves: Leaves, evidence: Patterns) -> frozenset[Path]:
    """Return the tensors by which parties are judged."""
    judged = meant([path for path, leaf in leaves.items() if leaf.kind == "float"], evidence)
    if not any(leaves[path].size for path in judged):
        raise ConsilienceError(
            f"no floating-point tensor is left to judge parties by: evidence is {evidence!r}"
        )
    return judged


def _read(
    named: Mapping[str, Any], parties: Iterable[str]
) -> tuple[dict[str, _Read], dict[str, str]]:
    """Flatten the updates; return also who sent none, with reasons."""
    read: dict[str, _Read] = {}
    rejected: dict[str, str] = {}
    last: _Read | None = None
    for party in parties:
        try:
            same = None if last is None else alike(named[party], last.leaves, last.tree)
            if last is not None and same is not None:
                last = _Read(same, last.tree, last.signature)
            else:
                leaves, tree = flatten(named[party])
                last = _Read(leaves, tree, _signature(leaves))
            read[party] = last
        except UpdateError as error:
            rejected[party] = str(error)
        except Exception as error:  # a foreign object may raise anything; only its own party pays
            rejected[party] = f"it cannot be read ({told(error)})"
    return read, rejected


def _agreeing(
    read: Mapping[str, _Read], reference: Leaves
) -> tuple[dict[str, Leaves], dict[str, str]]:
    """Return the tensors of parties with the expected structure; and the others, with reasons."""
    agreeing: dict[str, Leaves] = {}
    rejected: dict[str, str] = {}
    expected = _signature(reference)
    for party, (leaves, _, signature) in read.items():
        if signature != expected:
            rejected[party] = _difference(leaves, reference)
            continue
        try:
            # The same order for all: mappings may list the same names in different orders.
            agreeing[party] = {path: leaves[path].flat() for path in reference}
        except MemoryError as error:  # a small view may claim any size: with nobody to compare to
            rejected[party] = f"it cannot be read ({told(error)})"
    return agreeing, rejected


def _check_floats(leaves: Leaves) -> None:
    if not any(leaf.size for leaf in leaves.values() if leaf.kind == "float"):
        kinds = sorted({leaf.dtype for leaf in leaves.values()})
        if any(leaf.kind == "float" for leaf in leaves.values()):
            raise UpdateError("the updates are empty: no floating-point coordinate in any tensor")
        raise UpdateError(
            f"no floating-point coordinate in the updates (found {', '.join(kinds) or 'no tensor'})"
            ": convert them, for instance with .astype(float)"
        )


def _check_parties(read: Mapping[str, _Read]) -> None:
    """Raise if these look like the tensors or layers of one model, not like parties' updates.

    The signs: each is a single tensor, or all hold a layer's tensors, and no shape has a majority;
    or most tensors bear a layer's names.
    """
    single = all(found.tree.leaf for found in read.values())
    if len(read) < 2 or not (single or all(map(_is_layer, read.values()))):
        return
    shapes = {p: tuple(leaf.shape for leaf in found.leaves.values()) for p, found in read.items()}
    (_, most), *others = Counter(shapes.values()).most_common(2)
    lists = any(found.tree.kind in (list, tuple) for found in read.values())  # no model's tensors
    tied = any(count == most for _, count in others)
    layers = sum(party.rsplit(".", 1)[-1] in _LAYER for party in read) if single else 0
    if (not lists and (tied or 2 * most < len(read))) or 2 * layers > len(read):
        some = ", ".join(f"{shown(party)} {shape}" for party, shape in list(shapes.items())[:3])
        raise UpdateError(
            f"this looks like the tensors of one model, each taken for a party ({some}, …): give "
            "{party: model}, or center= to say what is expected"
        )


def _is_layer(found: _Read) -> bool:
    return bool(found.leaves) and all(len(p) == 1 and p[0] in _LAYER for p in found.leaves)


def named(updates: Any) -> dict[str, Any]:
    """Return the updates by party id."""
    if isinstance(updates, Mapping):
        return _by_id(updates, updates.values())
    if hasattr(updates, "columns") or (hasattr(updates, "index") and hasattr(updates, "to_numpy")):
        return _rows(updates)
    if is_tensor(updates):
        rows = updates if hasattr(updates, "shape") else np.asarray(updates)
        if len(rows.shape) == 0:
            raise UpdateError(f"expected one update per party, found a single number: {updates}")
        return {str(j): rows[j] for j in range(rows.shape[0])}
    if isinstance(updates, Iterable) and not isinstance(updates, str | bytes):
        return {str(j): update for j, update in enumerate(updates)}
    raise UpdateError(
        "expected {party: update}, a sequence of updates or a (J, K) array, "
        f"found {type(updates).__name__}"
    )


def _rows(frame: Any) -> dict[str, Any]:
    """Return the rows of a data frame by party id: its index, or 0, 1, … if it has none."""
    kind = shown(type(frame).__name__)
    try:
        values = frame.to_numpy()
        if values.dtype.kind == "O":  # perhaps a column with missing values
            _check_numbers(values[~frame.isna().to_numpy()])
            values = frame.to_numpy(dtype=float, na_value=np.nan)
    except Exception as error:
        raise UpdateError(
            f"{kind} cannot be read as numbers, a row for each party ({told(error)}); leave out "
            "other columns, or make them the index"
        ) from None
    return _by_id(frame.index if hasattr(frame, "index") else range(len(values)), values)


def _check_numbers(values: Array) -> None:
    """Raise for what converts to numbers but is not one, such as text or a date."""
    for value in values:
        if not isinstance(value, Number | np.bool_):
            raise TypeError(f"found {shown(type(value).__name__)}")


def _by_id(ids: Iterable[Any], updates: Iterable[Any]) -> dict[str, Any]:
    names = [str(party) for party in ids]
    named = dict(zip(names, updates, strict=True))
    if len(named) != len(names):
        twice = Counter(names).most_common(1)[0][0]
        raise UpdateError(f"two parties have the id '{shown(twice)}' once written as text")
    return named


def _center(center: Any) -> Leaves:
    leaves = {path: leaf.flat() for path, leaf in flatten(center)[0].items()}
    for path, leaf in leaves.items():
        if leaf.kind == "float" and leaf.faulty() is not None:
            raise UpdateError(
                f"the centre's {show(path)} holds NaN, inf or a number above {LARGEST:g}"
            )
    return leaves


def _commonest(found: Sequence[_Read]) -> Leaves:
    """Return the first leaves with the commonest signature."""
    first = found[0]
    if all(other.signature == first.signature for other in found):
        return first.leaves
    signatures = [frozenset(other.signature.items()) for other in found]
    return found[signatures.index(Counter(signatures).most_common(1)[0][0])].leaves


def _signature(leaves: Leaves) -> Signature:
    return {path: (leaf.shape, leaf.kind) for path, leaf in leaves.items()}


def _difference(found: Leaves, expected: Leaves) -> str:
    """Return in words how an update's structure differs from the expected one."""
    if () in expected and () not in found:
        return f"expected one tensor, found {_container(found)}"
    if () in found and () not in expected:
        return f"expected {_container(expected)}, found one tensor"
    missing = [path for path in expected if path not in found]
    extra = [path for path in found if path not in expected]
    if missing or extra:
        parts = [f"{show(path)} is missing" for path in missing[:2]]
        parts += [f"{show(path)} is not expected" for path in extra[:2]]
        more = len(missing) + len(extra) - len(parts)
        return ", ".join(parts) + (f" and {more} more differ" if more else "")
    shapes = (path for path, leaf in found.items() if leaf.shape != expected[path].shape)
    for path in shapes:
        return f"{show(path)} has shape {found[path].shape}, expected {expected[path].shape}"
    path = next(path for path, leaf in found.items() if leaf.kind != expected[path].kind)
    return f"{show(path)} is {found[path].dtype}, expected {expected[path].kind}"


def _container(leaves: Leaves) -> str:
    return next((f"a container with {show(path)}" for path in leaves), "an empty container")
