"""Hostile parties: what they send instead of an update, and whether it can be used.

`hostile` returns the update, the numbers in it where it can be used (else None), and whether it
can: True, False, or None where either will do.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np
from numpy.random import Generator

from fuzz.damage import NASTY
from fuzz.trees import FLOATS, Exporting, Skeleton, Values, as_torch, dressed, sound_style

Sent = tuple[Any, Values | None, bool | None]
_DEEP = 5000


def hostile(random: Generator, shape: Skeleton, sound: list[Values], torch: bool) -> Sent:
    """Return one hostile update among these sound ones."""
    way = random.random()
    if way < 0.45:
        return _poisoned(random, shape, sound, torch)
    values = sound[int(random.integers(len(sound)))]
    if way < 0.6:
        return _spoilt(random, shape, values, torch)
    if way < 0.85:
        path = _pick(random, shape.floats)
        thing, usable = _pick(random, TORCH if torch and random.random() < 0.5 else TENSORS)(
            random, values[path]
        )
        return dressed(shape, values, sound_style(random, torch), {path: thing}), None, usable
    return _pick(random, WHOLE)(random, shape, values), None, False


def count(random: Generator) -> tuple[Any, bool | None]:
    """Return a sample count nobody should believe, and whether its party can be used."""
    bad: list[Any] = [
        *(float("nan"), float("inf"), -1, 0, -0.0, "nan", "inf", "many", [], {}, 1j, 10**400),
        *(np.float32("nan"), np.array([1, 2]), b"\xff", object(), _Raising(), "-1", "1e999"),
    ]
    odd: list[Any] = [True, "12", 1e308, 5e-324, np.int8(3), np.array(3), None, "1_0", " 7 "]
    if random.random() < 0.7:
        return _pick(random, bad), False
    return _pick(random, odd), None


def name(random: Generator) -> Any:
    """Return an id that a party should not be able to harm anybody with."""
    return _pick(random, [*NASTY, "x" * 100_000, None, 1.5, ("a", 1), b"\xff", True, "\x00"])


def _pick(random: Generator, things: Sequence[Any]) -> Any:
    return things[int(random.integers(len(things)))]


def _poisoned(random: Generator, shape: Skeleton, sound: list[Values], torch: bool) -> Sent:
    """Return numbers that can be used, alas."""
    values = _pick(random, sound)
    factor = float(_pick(random, [-1.0, 0.0, 10.0, -1e4, 1e8, 1e-9, 1e14, 1e25]))
    way = random.random()
    if way < 0.5:
        made = {p: _times(v, factor) for p, v in values.items()}
    elif way < 0.7:  # the largest there are
        made = {p: _full(v) for p, v in values.items()}
    elif way < 0.85:  # in another dtype, or as it is: a copy
        dtype = _pick(random, [np.float32, np.float64])
        made = {p: _times(v, 1.0, dtype) for p, v in values.items()}
    else:
        made = {p: _times(np.ones_like(v), factor) for p, v in values.items()}
    turned = bool(random.random() < 0.3)
    return dressed(shape, made, sound_style(random, torch), turned=turned), made, True


def _float(array: Any) -> bool:
    return str(array.dtype) in FLOATS


def _limit(dtype: Any) -> float:
    """Return the largest number of a dtype, or one that may still be compared with others."""
    return min(float(ml_dtypes.finfo(dtype).max), 1e45)


def _times(array: Any, factor: float, dtype: Any = None) -> Any:
    if not _float(array):
        return array
    dtype = array.dtype if dtype is None else dtype
    limit = _limit(dtype)
    return np.clip(array.astype(np.float64) * factor, -limit, limit).astype(dtype)


def _full(array: Any) -> Any:
    return np.full_like(array, _limit(array.dtype)) if _float(array) else array


def _spoilt(random: Generator, shape: Skeleton, values: Values, torch: bool) -> Sent:
    """Return an update with one number that is none, or a norm that is none."""
    path = _pick(random, shape.floats)
    array = values[path].copy()
    bad = _pick(random, [np.nan, np.inf, -np.inf])
    if array.dtype == np.float64 and random.random() < 0.3:
        bad = 1e200
    array.reshape(-1)[int(random.integers(array.size))] = bad
    return dressed(shape, {**values, path: array}, sound_style(random, torch)), None, False


class _Raising:
    """Something that raises whatever is asked of it."""

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        raise RuntimeError("\x1b[2Jno\nparty ann rejected")

    def __float__(self) -> float:
        raise RuntimeError("no number")

    def __repr__(self) -> str:
        raise RuntimeError("no text")


class _Lying(np.ndarray):
    """A subclass that makes its way into what numpy does with it."""

    def __array_finalize__(self, other: Any) -> None:
        if other is not None and other.ndim == 1 and type(other) is _Lying:
            raise RuntimeError("no views")

    def reshape(self, *shape: Any, **options: Any) -> Any:
        return np.full(7, np.nan)

    def __getitem__(self, item: Any) -> Any:
        raise RuntimeError("no items")

    @property
    def shape(self) -> Any:  # type: ignore[override]
        return (-1, "x")


class _Class:
    """Something whose make is a lie."""

    __array__ = None
    __dlpack__ = None
    shape = dtype = property(lambda self: 1 / 0)


class _Mapping(Mapping[str, Any]):
    def __getitem__(self, key: str) -> Any:
        raise RuntimeError("no items")

    def __iter__(self) -> Any:
        return iter(["a"])

    def __len__(self) -> int:
        return 1


class _Rows(Sequence[Any]):
    def __getitem__(self, at: Any) -> Any:
        raise ValueError("no items")

    def __len__(self) -> int:
        return 3


def _deep() -> Any:
    found: Any = np.zeros(3)
    for k in range(_DEEP):
        found = [found] if k % 2 else {"a": found}
    return found


def _endless() -> Any:
    found: list[Any] = [np.zeros(3)]
    found.append(found)
    return found


def _endless_mapping() -> Any:
    found: dict[str, Any] = {"a": np.zeros(3)}
    found["b"] = {"c": found}
    return found


def _two(array: Any) -> Any:
    return np.stack([array, array])


Make = Callable[[Generator, Any], tuple[Any, bool | None]]
# In the place of one floating-point tensor.
TENSORS: list[Make] = [
    lambda r, a: (_two(a), False),
    lambda r, a: (a[..., None], False),
    lambda r, a: (a.reshape(-1)[:-1], False),
    lambda r, a: (np.zeros(a.shape, np.int64), False),
    lambda r, a: (np.zeros(a.shape, bool), False),
    lambda r, a: (a.astype(np.complex128), False),
    lambda r, a: (np.full(a.shape, None), False),
    lambda r, a: (np.full(a.shape, "1.5"), False),
    lambda r, a: (np.zeros(a.shape, "M8[s]"), False),
    lambda r, a: (np.zeros(a.shape, [("x", "f4")]), False),
    lambda r, a: (np.zeros(a.shape, ml_dtypes.float8_e4m3fn), False),
    lambda r, a: (np.ma.masked_array(a, np.ones(a.shape, bool)), None),
    lambda r, a: (np.broadcast_to(np.float32(1), (1 << 31,)), False),
    lambda r, a: (np.array(a, ndmin=1).view(_Lying), None),
    lambda r, a: (Exporting(np.zeros((1, 2, 3, 4))), False),
    lambda r, a: (_Raising(), False),
    lambda r, a: (_Class(), False),
    lambda r, a: (_Class, False),
    lambda r, a: (None, False),
    lambda r, a: (str(_pick(r, NASTY)), False),
    lambda r, a: (b"\x00" * 8, False),
    lambda r, a: (object(), False),
    lambda r, a: (10**400, False),
    lambda r, a: (True if a.ndim == 0 else [True], False),
    lambda r, a: ([], False),
    lambda r, a: ({}, False),
    lambda r, a: (_Mapping(), False),
    lambda r, a: (_Rows(), False),
    lambda r, a: (_deep(), False),
    lambda r, a: (_endless(), False),
    lambda r, a: (_endless_mapping(), False),
    lambda r, a: (itertools.repeat(0.0), False),
    lambda r, a: (memoryview(b"12345678"), False),
]


def _torch(make: Callable[[Any, Any], Any], usable: bool | None = False) -> Make:
    def made(random: Generator, array: Any) -> tuple[Any, bool | None]:
        import torch

        return make(torch, as_torch(array)), usable

    return made


def _fake(torch: Any, tensor: Any) -> Any:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode() as mode:
        return mode.from_tensor(tensor)


def _nested(torch: Any, tensor: Any) -> Any:
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.nested.nested_tensor([tensor.float().reshape(-1)] * 2)


def _quantized(torch: Any, tensor: Any) -> Any:
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.quantize_per_tensor(tensor.float(), 0.1, 0, torch.qint8)


TORCH: list[Make] = [
    _torch(lambda torch, t: t.to_sparse() if t.ndim else t.reshape(1).to_sparse()),
    _torch(lambda torch, t: t.to("meta")),
    _torch(lambda torch, t: t.to(torch.complex64).conj()),
    _torch(lambda torch, t: t.float().to(torch.float8_e5m2)),
    _torch(lambda torch, t: t.to(torch.int32)),
    _torch(lambda torch, t: torch.stack([t, t])),
    _torch(lambda torch, t: torch.zeros(1).expand(1 << 31)),
    _torch(_fake),
    _torch(_nested),
    _torch(_quantized),
    _torch(lambda torch, t: torch.nn.Linear(1, 1)),
]


def _without(random: Generator, shape: Skeleton, values: Values) -> Any:
    """Return a flat mapping in the place of the tree, with a name too few or too many."""
    flat: dict[Any, Any] = {str(path): array for path, array in values.items()}
    if random.random() < 0.5:
        flat[_pick(random, [*NASTY, "x" * 100_000])] = np.zeros(1)
    else:
        flat.popitem()
    return {"nobody expects this": flat}


def _renamed(random: Generator, shape: Skeleton, values: Values) -> Any:
    return {_pick(random, [*NASTY, "x" * 100_000, None, 3.5]): np.zeros(3)}


# In the place of all of an update.
WHOLE: list[Callable[[Generator, Skeleton, Values], Any]] = [
    _without,
    _renamed,
    *(lambda r, s, v, make=make: make() for make in (_deep, _endless, _endless_mapping)),
    *(lambda r, s, v, make=make: make() for make in (_Raising, _Class, _Mapping, _Rows, object)),
    *(lambda r, s, v, it=it: it for it in (None, "update", b"update", [], {}, (), 1j, print)),
    lambda r, s, v: {1: np.zeros(2), "1": np.zeros(2)},
    lambda r, s, v: [np.zeros(1)] * 3000,
    lambda r, s, v: iter([np.zeros(3)]),
]
