"""One tensor, whoever made it: numpy, torch, or anything with ``__array__`` or ``__dlpack__``.

A `Tensor` is a flat numpy view of somebody's storage, read in pieces into a float buffer, and a
way back: numbers in, a tensor of the original library, dtype, shape and device out. The storage
is never copied unless it is strided or on another device, and never written. Torch is not
imported here; a torch tensor brings its own.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from consilience.errors import UpdateError
from consilience.text import shown, told

Array = npt.NDArray[Any]
# A flat array, or what slices like one: engines.stored has tensors that stay in their files.
Storage = Any

# numpy has no bfloat16 of its own. It is the upper half of a float32, so its storage is read as
# uint16 and shifted.
_BFLOAT16 = "bfloat16"
_LARGEST = {
    "float16": float(np.finfo(np.float16).max),
    _BFLOAT16: 2.0**128 - 2.0**120,
    "float32": float(np.finfo(np.float32).max),
}
_LARGEST_REPEATED = 1 << 30  # bytes that a view may pretend to have
_EXPECTED = "expected float16, 32, 64 or bfloat16, or integers"


@dataclass(frozen=True, eq=False)
class Tensor:
    """A flat view of a tensor's storage, and the object it came from."""

    storage: Storage  # (size,), once `flat`; uint16 where dtype is bfloat16
    dtype: str
    shape: tuple[int, ...]
    source: Any

    @property
    def kind(self) -> str:
        """Return ``float``, ``integer``, ``bool`` or the name of a dtype that is none of these."""
        if self.dtype == _BFLOAT16:
            return "float"
        kinds = {"f": "float", "i": "integer", "u": "integer", "b": "bool"}
        return kinds.get(self.storage.dtype.kind, self.dtype)

    @property
    def size(self) -> int:
        """Return the number of coordinates."""
        return int(self.storage.size)

    @property
    def wide(self) -> bool:
        """Tell whether float32 would lose some of its digits."""
        return int(self.storage.dtype.itemsize) > 4

    def read(self, start: int, stop: int, out: Array) -> None:
        """Write coordinates start..stop into the float array ``out``."""
        self._convert(self.storage[start:stop], out)

    def look(self, places: Array, out: Array) -> None:
        """Write the coordinates at some places into the float array ``out``."""
        self._convert(self.storage[places], out)

    def _convert(self, piece: Array, out: Array) -> None:
        if self.dtype == _BFLOAT16:
            piece = (piece.astype(np.uint32) << 16).view(np.float32)
        np.copyto(out, piece, casting="same_kind" if piece.dtype.kind == "f" else "unsafe")

    def piece(self, start: int, stop: int, spare: Array) -> Array:
        """Return coordinates start..stop as they lie, or read into the spare if dtypes differ."""
        stop = min(stop, self.size)
        if self.storage.dtype == spare.dtype:
            piece: Array = self.storage[start:stop]
            return piece
        self.read(start, stop, spare[: stop - start])
        return spare[: stop - start]

    def empty(self) -> Storage:
        """Return uninitialised storage for a result of the same dtype and size."""
        return np.empty(self.size, self.storage.dtype)

    def within(self, values: Array) -> Array:
        """Return float values, those beyond the range of this tensor's dtype at its end.

        Weights may be negative, and sums round: a consensus can be larger than all that was sent.
        """
        if values.dtype.itemsize <= self.storage.dtype.itemsize:
            return values
        largest = _LARGEST[self.dtype]
        return values.clip(-largest, largest)

    def store(self, values: Array, out: Storage, start: int = 0) -> None:
        """Round float values to this tensor's dtype, into storage from `empty`, at a place."""
        if self.dtype == _BFLOAT16:
            bits = values.astype(np.float32).view(np.uint32)
            # Round to nearest, ties to even, then keep the upper half. A NaN would round into
            # infinity, but no NaN gets this far.
            values = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        out[start : start + values.size] = values

    def flat(self) -> Tensor:
        """Return the same with flat storage: a copy where it is strided."""
        if not isinstance(self.storage, np.ndarray) or self.storage.ndim == 1:
            return self
        return replace(self, storage=self.storage.reshape(-1))

    def rebuild(self, storage: Array) -> Any:
        """Return storage as a tensor of the source's library, dtype, shape and device."""
        source = self.source
        torch = _torch_of(source)
        if torch is not None:
            flat = torch.from_numpy(storage.view(np.int16) if self.dtype == _BFLOAT16 else storage)
            return flat.view(source.dtype).reshape(self.shape).to(source.device)
        dtype = np.dtype(_BFLOAT16) if self.dtype == _BFLOAT16 else storage.dtype
        array = storage.view(dtype).reshape(self.shape)
        if isinstance(source, float | int | np.generic):
            return array[()]
        if not isinstance(source, np.ndarray) and hasattr(source, "__array_namespace__"):
            return _in_namespace(source, array)
        return array


def tensor(source: Any) -> Tensor:
    """Return a `Tensor` over anything array-like; raise UpdateError for what is not one."""
    return outline(source).flat()


def outline(source: Any) -> Tensor:
    """Return a `Tensor` whose storage lies as it came, not copied: whether its shape is the
    expected one is better asked first."""
    if isinstance(source, Tensor):
        return source
    torch = _torch_of(source)
    if torch is not None:
        return _from_torch(torch, source)
    array = _as_array(source)
    name = _dtype_name(array.dtype)
    _check_view(array)
    storage = array.view(np.uint16) if name == _BFLOAT16 else array
    # Of an array of a class of its own only the numbers are kept.
    return Tensor(storage, name, array.shape, array if isinstance(source, np.ndarray) else source)


def is_tensor(source: Any) -> bool:
    """Tell a leaf of an update from a container of leaves."""
    if isinstance(source, float | int | np.generic | Tensor):
        return True
    return hasattr(source, "__array__") or hasattr(source, "__dlpack__")


def _as_array(source: Any) -> Array:
    exported = hasattr(source, "__dlpack__") and not hasattr(source, "__array__")
    try:
        array = np.from_dlpack(source) if exported else np.asarray(source)
    except Exception as error:  # whatever a stranger's export raises: it must not stop the round
        raise UpdateError(
            f"{shown(type(source).__name__)} cannot be read ({told(error)})"
        ) from None
    if array.dtype.kind == "O":
        raise UpdateError(f"expected a tensor of numbers, found {shown(type(source).__name__)}")
    foreign = array.dtype.kind not in "fiubc" or array.dtype.isbuiltin == 2  # of ml_dtypes
    if foreign and _dtype_name(array.dtype) != _BFLOAT16:
        raise UpdateError(f"{_EXPECTED}, found {shown(_dtype_name(array.dtype))}")
    if isinstance(source, np.ma.MaskedArray):
        hidden = int(np.count_nonzero(np.ma.getmaskarray(source)))
        if hidden:
            raise UpdateError(f"{hidden} of {array.size} numbers are masked: fill them in")
    return array


def _check_view(array: Array) -> None:
    """Raise if few numbers are spread over a shape that would fill the memory."""
    if 0 in array.strides and array.nbytes > _LARGEST_REPEATED:
        raise UpdateError(f"numbers repeated up to shape {array.shape}: send an array of its own")


@lru_cache(64)
def _dtype_name(dtype: np.dtype[Any]) -> str:
    return dtype.name  # which numpy makes anew each time


def _in_namespace(source: Any, array: Array) -> Any:
    try:
        return source.__array_namespace__().asarray(array)
    except Exception:  # a stranger's library: what it made can be read, what it makes cannot
        return array


def _torch_of(source: Any) -> Any:
    """Return the torch module if source is a torch tensor (then it has been imported), or None."""
    torch = sys.modules.get("torch")
    return torch if torch is not None and isinstance(source, torch.Tensor) else None


def _from_torch(torch: Any, source: Any) -> Tensor:
    # A subclass may answer every question as it likes; a tensor says what it is.
    plain = source if type(source) is torch.Tensor else source.as_subclass(torch.Tensor)
    if type(plain) is not torch.Tensor or plain.is_nested:
        raise UpdateError(f"expected a dense tensor, found {shown(type(source).__name__)}")
    if plain.layout is not torch.strided or plain.is_quantized or plain.is_meta:
        kind = "meta" if plain.is_meta else "quantized" if plain.is_quantized else plain.layout
        raise UpdateError(f"expected a dense tensor with data, found torch layout {kind}")
    _check_storage(plain)
    name = str(plain.dtype).removeprefix("torch.")
    dense = plain.detach().cpu().resolve_conj().resolve_neg()
    if name == _BFLOAT16:
        storage = dense.view(torch.int16).numpy().view(np.uint16)
    else:
        try:
            storage = dense.numpy()
        except TypeError:  # a dtype numpy does not have, such as float8
            raise UpdateError(f"{_EXPECTED}, found {name}") from None
    _check_view(storage)
    return Tensor(storage, name, tuple(plain.shape), plain)


def _check_storage(plain: Any) -> None:
    """Raise if a tensor is larger than its memory, as one is that has been given back."""
    if plain.numel() == 0:
        return
    steps = zip(plain.shape, plain.stride(), strict=True)
    last = plain.storage_offset() + sum((size - 1) * stride for size, stride in steps)
    if (last + 1) * plain.element_size() > plain.untyped_storage().nbytes():
        raise UpdateError("expected a tensor with data, found one whose storage was freed")
