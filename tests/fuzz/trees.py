"""Trees of tensors: what all parties of a round send, in shape, and the same numbers in many makes.

A `Skeleton` says which containers and tensors there are; `Values` are the numbers by path, as plain
numpy arrays; `dressed` makes of both what a party would send.
"""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import ml_dtypes
import numpy as np
from numpy.random import Generator

FLOATS = ("float16", "bfloat16", "float32", "float64")
OTHERS = ("int64", "int32", "uint8", "bool")

Key = tuple[Any, ...]
Values = dict[Key, Any]  # path -> array
Style = Callable[[Any], Any]  # one tensor in another make


@dataclass(frozen=True)
class Spec:
    """One tensor: its dtype and its shape."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Return the number of its coordinates."""
        return int(np.prod(self.shape, dtype=np.int64))

    def rounded(self, random: Generator, values: Any) -> Any:
        """Return numbers as this dtype has them; where it has no fractions, small counts."""
        if self.dtype in FLOATS:
            with np.errstate(over="ignore"):
                return np.asarray(values).astype(numpy_dtype(self.dtype))
        return np.asarray(random.integers(0, 3, self.shape)).astype(self.dtype)


@dataclass
class Skeleton:
    """Which tensors there are, and in which containers."""

    tree: Any  # ("dict", {key: tree}), ("list" or "tuple" or "named", [tree]), or a Spec
    specs: dict[Key, Spec] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._collect(self.tree, ())

    def _collect(self, tree: Any, path: Key) -> None:
        if isinstance(tree, Spec):
            self.specs[path] = tree
            return
        kind, parts = tree
        for key, part in parts.items() if kind == "dict" else enumerate(parts):
            self._collect(part, (*path, key))

    @property
    def size(self) -> int:
        """Return K, the number of floating-point coordinates."""
        return sum(spec.size for spec in self.specs.values() if spec.dtype in FLOATS)

    @property
    def floats(self) -> list[Key]:
        """Return the paths of floating-point tensors that are not empty."""
        return [p for p, spec in self.specs.items() if spec.dtype in FLOATS and spec.size]


def numpy_dtype(name: str) -> Any:
    """Return a dtype by name; numpy alone does not know bfloat16."""
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


def skeleton(random: Generator, size: int) -> Skeleton:
    """Return a tree with so many floating-point coordinates in it."""
    dtype = str(random.choice(FLOATS, p=[0.1, 0.1, 0.5, 0.3]))
    count = int(random.integers(1, 5)) if random.random() < 0.7 else 1
    edges = [0, *sorted(random.integers(0, size + 1, count - 1).tolist()), size]
    specs = [
        Spec(
            str(random.choice(FLOATS)) if random.random() < 0.1 else dtype,
            _shape(random, high - low),
        )
        for low, high in pairwise(edges)
    ]
    if random.random() < 0.3:
        specs.append(Spec(str(random.choice(OTHERS)), _shape(random, int(random.integers(0, 5)))))
    if len(specs) == 1 and random.random() < 0.6:
        return Skeleton(specs[0])
    return Skeleton(_container(random, specs))


def _shape(random: Generator, size: int) -> tuple[int, ...]:
    if size == 1 and random.random() < 0.5:
        return ()
    rows = int(random.choice([1, 2, 3, 5]))
    if random.random() < 0.4 and size % rows == 0:
        return (rows, size // rows)
    return (size,)


def _container(random: Generator, parts: list[Any]) -> Any:
    """Return parts in a container, some of them perhaps in one of their own first."""
    if len(parts) > 2 and random.random() < 0.4:
        cut = int(random.integers(1, len(parts) - 1))
        parts = [*parts[:cut], _container(random, parts[cut:])]
    kind = str(random.choice(["dict", "dict", "list", "tuple", "named"]))
    if kind == "dict":
        names = [f"layer.{k}.weight" if random.random() < 0.8 else k for k in range(len(parts))]
        return "dict", dict(zip(names, parts, strict=True))
    return kind, parts


def dressed(
    shape: Skeleton,
    values: Values,
    style: Style,
    instead: dict[Key, Any] | None = None,
    turned: bool = False,
) -> Any:
    """Return what a party with these values sends; ``instead`` are other things at some places,
    ``turned`` lists the names of mappings the other way round."""
    other = instead or {}

    def build(tree: Any, path: Key) -> Any:
        if path in other:
            return other[path]
        if isinstance(tree, Spec):
            return style(values[path])
        kind, parts = tree
        if kind == "dict":
            items = [(key, build(part, (*path, key))) for key, part in parts.items()]
            made = dict(items[::-1] if turned else items)
            return OrderedDict(made) if turned else made
        built = [build(part, (*path, k)) for k, part in enumerate(parts)]
        if kind == "named" and not turned:
            return namedtuple("Named", [f"f{k}" for k in range(len(built))])(*built)
        return tuple(built) if kind != "list" or turned else built

    return build(shape.tree, ())


def at(tree: Any, path: Key) -> Any:
    """Return what lies at a path."""
    for key in path:
        tree = tree[key]
    return tree


class Quiet(np.ndarray):
    """A subclass that changes nothing."""


class Exporting:
    """Something with ``__array__``."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return np.array(self.array, dtype)


class Lending:
    """Something with ``__dlpack__``."""

    def __init__(self, array: Any) -> None:
        self.array = np.array(array, order="C")

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()


def sound_style(random: Generator, torch: bool) -> Style:
    """Return a make that changes no number."""
    if torch and random.random() < 0.9:
        return as_torch
    if random.random() < 0.5:
        return lambda array: array
    ways = [_fortran, _strided, _reversed, _locked, _swapped, _quiet, Exporting, _lent, _number]
    return ways[int(random.integers(len(ways)))]


def as_torch(array: Any) -> Any:
    """Return a torch tensor."""
    import torch

    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(np.array(array, np.float32)).to(torch.bfloat16)
    return torch.from_numpy(np.array(array))


def _fortran(array: Any) -> Any:
    return np.array(array, order="F")


def _strided(array: Any) -> Any:
    wide = np.zeros((*array.shape, 2), array.dtype)
    wide[..., 0] = array
    return wide[..., 0]


def _reversed(array: Any) -> Any:
    return array if not array.ndim else np.ascontiguousarray(array[::-1])[::-1]


def _locked(array: Any) -> Any:
    array = np.array(array)
    array.flags.writeable = False
    return array


def _swapped(array: Any) -> Any:
    if array.dtype == ml_dtypes.bfloat16:
        return array
    return array.astype(array.dtype.newbyteorder(">"))


def _quiet(array: Any) -> Any:
    return np.asarray(array).view(Quiet)


def _lent(array: Any) -> Any:
    return array if array.dtype == ml_dtypes.bfloat16 else Lending(array)


def _number(array: Any) -> Any:
    return array[()] if array.ndim == 0 else array
