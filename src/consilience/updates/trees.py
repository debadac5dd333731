"""Trees of tensors, flattened and rebuilt.

A tree comes from a stranger. It is read once, in bounded time and memory, and only plain things are
kept: names, shapes, and the types of containers. Nothing is asked twice, since the second answer
may differ.
"""

from __future__ import annotations

import os
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from consilience.arrays import Array
from consilience.errors import UpdateError
from consilience.text import shown
from consilience.updates.tensors import AS_IT_LIES, Tensor, is_tensor, outline

Path = tuple[Any, ...]
Leaves = dict[Path, Tensor]

_DEEPEST = 64  # levels of nested containers
_MOST = 1 << 17  # tensors and containers
# Types of plain numbers. Not those derived from them, such as bool, which may behave differently.
_NUMBERS = frozenset((int, float, *(np.dtype(code).type for code in "efdbhilqBHILQ")))


@dataclass(frozen=True, eq=False)
class Tree:
    """A container of an update and its children; or a tensor, a leaf."""

    kind: type
    parts: Mapping[Any, Tree] = field(default_factory=dict)
    leaf: bool = False

    @cached_property
    def types(self) -> tuple[Any, ...]:
        """The types in the tree, compared by identity: a foreign type may define its own ``==``."""
        return (id(self.kind), *(part.types for part in self.parts.values()))


_LEAF = Tree(np.ndarray, leaf=True)  # shared by all plain leaves


def flatten(update: Any) -> tuple[Leaves, Tree]:
    """Return the tensors of an update, uncopied, and its containers.

    Raises UpdateError with the reason, or whatever a foreign object raises.
    """
    leaves: Leaves = {}
    seen = 0

    def take(node: Any, path: Path) -> Tree:
        nonlocal seen
        seen += 1
        if seen > _MOST:
            raise UpdateError(f"more than {_MOST} tensors and containers: send arrays")
        if len(path) > _DEEPEST:
            raise UpdateError(f"nested more than {_DEEPEST} deep")
        if type(node) is np.ndarray:
            leaves[path] = _outlined(node, path)
            return _LEAF
        if isinstance(node, UpdateError):
            raise node
        if is_tensor(node):
            leaves[path] = _outlined(node, path)
            return Tree(type(node), leaf=True)
        if _is_vector(node) and (node or not path):
            # [1, 2.5] are numbers, not counters.
            leaves[path] = Tensor(np.array(node, float), "float64", (len(node),), type(node)())
            return Tree(type(node), leaf=True)
        parts = {key: take(value, (*path, key)) for key, value in _parts(node, path)}
        return Tree(type(node), parts)

    tree = take(update, ())
    return leaves, tree


def alike(update: Any, leaves: Leaves, tree: Tree) -> Leaves | None:
    """Return the tensors of an update if it is plainly like another one: an array, or a dict of
    arrays. None means that this quick test does not tell.

    `flatten` gives the same, but nearly all updates are plain, with hundreds of tensors.
    """
    if tree is _LEAF:
        return {(): _same(update, leaves[()])} if _is_like(update, leaves[()]) else None
    if type(update) is not dict or tree.kind is not dict or len(update) != len(leaves):
        return None
    found: Leaves = {}
    for (key, array), (path, leaf) in zip(update.items(), leaves.items(), strict=True):
        plain = type(key) is str and (key,) == path and tree.parts[key] is _LEAF
        if not plain or not _is_like(array, leaf):
            return None
        found[path] = _same(array, leaf)
    return found


def _is_like(array: Any, leaf: Tensor) -> bool:
    """Tell whether a part of an update is a plain array with the dtype and shape of a leaf."""
    return (
        type(array) is np.ndarray
        and array.dtype is leaf.storage.dtype
        and bool(array.dtype.isbuiltin)
        and array.shape == leaf.shape
        and array.flags.num & AS_IT_LIES == AS_IT_LIES
    )


def _same(array: Array, leaf: Tensor) -> Tensor:
    """Return an array as a tensor like a leaf."""
    return Tensor(array.ravel(), leaf.dtype, leaf.shape, array)


def pruned(tree: Tree, kept: Container[Path], path: Path = ()) -> Tree:
    """Return the tree with only the tensors to keep."""
    if tree.leaf:
        return tree
    parts = {
        key: pruned(part, kept, (*path, key))
        for key, part in tree.parts.items()
        if not part.leaf or (*path, key) in kept
    }
    return Tree(tree.kind, parts)


def unflatten(tree: Tree, values: Mapping[Path, Any], path: Path = ()) -> Any:
    """Return a tree with the same containers and other tensors."""
    if tree.leaf:
        return values[path]
    parts = {key: unflatten(part, values, (*path, key)) for key, part in tree.parts.items()}
    make: Any = tree.kind
    try:
        if issubclass(make, Mapping):
            return make(parts)
        if issubclass(make, tuple):
            return make(*parts.values()) if hasattr(make, "_fields") else tuple(parts.values())
    except Exception:  # a mapping whose type does not take items, such as defaultdict
        return parts if issubclass(make, Mapping) else tuple(parts.values())
    return list(parts.values())


def show(path: Path) -> str:
    """Return the name of a tensor, for people."""
    return f"tensor '{shown('.'.join(map(str, path)))}'" if path else "the update"


def _is_vector(node: Any) -> bool:
    """Tell whether this is a list of plain numbers, Python's or numpy's. A foreign sequence may
    answer differently the next time, and is not asked."""
    return type(node) in (list, tuple) and all(type(part) in _NUMBERS for part in node)


def _parts(node: Any, path: Path) -> Iterable[tuple[Any, Any]]:
    if isinstance(node, Mapping):
        return (
            (key if type(key) is str else _plain(key, path), value) for key, value in node.items()
        )
    if isinstance(node, Sequence) and not isinstance(node, str | bytes):
        if len(node) > _MOST:
            raise UpdateError(f"{show(path)} has {len(node)} parts: send an array")
        return enumerate(node)
    raise UpdateError(
        f"{show(path)}: expected a tensor, found {shown(type(node).__name__)}{_meant(node)}"
    )


def _meant(node: Any) -> str:
    """Return what to give instead of something that is often given."""
    if hasattr(node, "state_dict"):
        return ": give its state_dict()"
    if isinstance(node, Iterator):
        return ": give a list of it"
    return "; models in files: aggregate_files" if isinstance(node, str | os.PathLike) else ""


def _outlined(node: Any, path: Path) -> Tensor:
    try:
        return outline(node)
    except UpdateError as error:
        raise UpdateError(f"{show(path)}: {error}") from None


def _plain(key: Any, path: Path) -> Any:
    """Return a name of a built-in type, which compares and hashes predictably."""
    if isinstance(key, str):
        return str.__str__(key)
    if isinstance(key, tuple) and len(path) < _DEEPEST:
        return tuple(_plain(part, (*path, "")) for part in tuple.__iter__(key))
    if key is None or type(key) in (bool, float, bytes) or (type(key) is int and abs(key) < 2**63):
        return key
    raise UpdateError(
        f"{show(path)}: expected names that are text or numbers, found {shown(type(key).__name__)}"
    )
