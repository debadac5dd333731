"""One tensor, whoever made it: numpy, torch, or anything with ``__array__`` or ``__dlpack__``.

A `Tensor` is a flat numpy view of foreign storage. `rebuild` is the way back: from storage of the
same dtype to a tensor of the original library, dtype, shape and device. Storage is copied only if
it is strided, byte-swapped or on another device, and never written. Torch is not imported here; a
torch tensor brings its own.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from consilience.arrays import Array, Positions
from consilience.errors import UpdateError
from consilience.text import shown, told

# A flat array, or something that slices like one: a tensor in a file (engines.files.stored).
Storage = Any

# numpy has no bfloat16. It is the upper half of a float32, so it is read as uint16 and shifted.
_BFLOAT16 = "bfloat16"
LARGEST_OF = {
    "float16": float(np.finfo(np.float16).max),
    _BFLOAT16: 2.0**128 - 2.0**120,
    "float32": float(np.finfo(np.float32).max),
}
LARGEST = 1e50  # magnitude of a usable number: beyond it, squares and their ratios may overflow
# Keys are dtypes in native byte order: a byte-swapped array does not match.
_PLAIN = {np.dtype(np.float32): "float32", np.dtype(np.float64): "float64"}
AS_IT_LIES = 0x101  # numpy's flags for C-contiguous and aligned
_CODES = {"float32": b"f", "float64": b"d", "float16": b"e", _BFLOAT16: b"b"}
_CHUNK = 1 << 16
_LARGEST_REPEATED = 1 << 30  # bytes that a view with repeated elements may appear to have
_EXPECTED = "expected float16, 32, 64 or bfloat16, or integers"


@dataclass(eq=False, slots=True)
class Tensor:
    """A flat view of a tensor's storage, and the object it came from."""

    storage: Storage  # (size,), once `flat`; uint16 where dtype is bfloat16
    dtype: str
    shape: tuple[int, ...]
    source: Any

    @property
    def kind(self) -> str:
        """Return ``float``, ``integer``, ``bool``, or the name of any other dtype."""
        if self.dtype in _CODES:
            return "float"
        return "integer" if self.dtype.startswith(("int", "uint")) else self.dtype

    @property
    def size(self) -> int:
        """Return the number of coordinates."""
        return math.prod(self.shape)

    @property
    def wide(self) -> bool:
        """Tell whether float32 would lose digits of it."""
        return self.dtype == "float64"

    @property
    def code(self) -> bytes:
        """Return the letter by which the loops know a floating-point dtype."""
        return _CODES[self.dtype]

    def look(self, places: Positions) -> Array:
        """Return the coordinates at the given places, as floats."""
        return self._floats(self.storage[places])

    def read(self, start: int, stop: int) -> Array:
        """Return a slice of the storage, as numpy reads it."""
        return _hosted(self.storage[start:stop])

    def floats(self, start: int, stop: int) -> Array:
        """Return a slice of the coordinates, as floats."""
        return self._floats(self.storage[start:stop])

    def _floats(self, piece: Storage) -> Array:
        host = _hosted(piece)
        return from_bfloat16(host) if self.dtype == _BFLOAT16 else host

    def faulty(self) -> tuple[int, float] | None:
        """Return the position and value of the first unusable number; None if all are usable."""
        if hasattr(self.storage, "faulty"):  # made of several parts, which check themselves
            found: tuple[int, float] | None = self.storage.faulty()
            return found
        for start in range(0, self.size, _CHUNK):
            piece = self.floats(start, start + _CHUNK)
            with np.errstate(invalid="ignore"):
                usable = np.abs(piece) <= np.float64(LARGEST)  # float32 cannot hold the limit
            if not usable.all():
                at = int(np.argmin(usable))
                return start + at, piece[at]
        return None

    def empty(self, size: int | None = None) -> Array:
        """Return uninitialised storage for a result of the same dtype and size."""
        size = self.size if size is None else size
        return np.empty(size, _hosted(self.storage[:0]).dtype)

    def flat(self) -> Tensor:
        """Return the same with flat storage, as the loops read it: a copy if it is strided,
        byte-swapped or unaligned."""
        flat = self.storage
        if not isinstance(flat, np.ndarray):
            if _torch_of(flat) is None:
                return self
            return Tensor(flat.reshape(-1), self.dtype, self.shape, self.source)
        if flat.flags.num & AS_IT_LIES == AS_IT_LIES and flat.dtype.isnative:
            if flat.ndim == 1:
                return self
        else:
            flat = np.require(flat, flat.dtype.newbyteorder("="), ["A", "C"])
        return Tensor(flat.reshape(-1), self.dtype, self.shape, self.source)

    def emptied(self) -> Any:
        """Return what `rebuild` needs of the source: its library, dtype and device."""
        source = self.source
        if _torch_of(source) is not None:
            return source.new_empty(0)
        if isinstance(source, np.ndarray):
            return np.empty(0, source.dtype)
        return source if isinstance(source, float | int | np.generic | list | tuple) else None

    def rebuild(self, storage: Array) -> Any:
        """Return storage as a tensor of the source's library, dtype, shape and device."""
        source = self.source
        torch = _torch_of(source)
        if torch is not None and _torch_of(storage) is not None:
            return storage.reshape(self.shape)
        if torch is not None:
            flat = torch.from_numpy(storage.view(np.int16) if self.dtype == _BFLOAT16 else storage)
            return flat.view(source.dtype).reshape(self.shape).to(source.device)
        dtype = np.dtype(_BFLOAT16) if self.dtype == _BFLOAT16 else storage.dtype
        array = storage.view(dtype).reshape(self.shape)
        if isinstance(source, np.ndarray):  # perhaps byte-swapped
            return array.astype(source.dtype, copy=False)
        if isinstance(source, float | int | np.generic):
            return array[()]
        if isinstance(source, list | tuple):  # of plain numbers
            return type(source)(array.tolist())
        if hasattr(source, "__array_namespace__"):
            return _in_namespace(source, array)
        return array


def tensor(source: Any) -> Tensor:
    """Return a `Tensor` over anything array-like; raise UpdateError for what is not one."""
    return outline(source).flat()


def outline(source: Any) -> Tensor:
    """Return a `Tensor` whose storage is not yet flat or copied, so that its shape can be checked
    first."""
    if type(source) is np.ndarray and source.flags.num & AS_IT_LIES == AS_IT_LIES:
        # The fast path: nearly all tensors are like this, and there may be thousands.
        plain = _PLAIN.get(source.dtype)
        if plain is not None:
            return Tensor(source.ravel(), plain, source.shape, source)
    if isinstance(source, Tensor):
        return source
    torch = _torch_of(source)
    if torch is not None:
        return _from_torch(torch, source)
    array = _as_array(source)
    name = _dtype_name(array.dtype)
    _check_view(array)
    storage = array.view(np.uint16) if name == _BFLOAT16 else array
    if array.dtype.kind == "f" and name not in _CODES:  # long doubles
        with np.errstate(over="ignore"):  # too large becomes infinite, and is rejected later
            storage, name = array.astype(np.float64), "float64"
    # Of a subclass of ndarray only the numbers are kept.
    return Tensor(storage, name, array.shape, array if isinstance(source, np.ndarray) else source)


def as_numpy(source: Any) -> Array:
    """Return anything array-like as numpy has it, with bfloat16 as float32."""
    if isinstance(source, np.ndarray) and source.dtype.name != _BFLOAT16:
        return source
    seen = tensor(source)
    values = seen.read(0, seen.size)
    return (from_bfloat16(values) if seen.dtype == _BFLOAT16 else values).reshape(seen.shape)


def is_tensor(source: Any) -> bool:
    """Tell a leaf of an update from a container of leaves."""
    if isinstance(source, float | int | np.generic | Tensor):
        return True
    return hasattr(source, "__array__") or hasattr(source, "__dlpack__")


def _as_array(source: Any) -> Array:
    exported = hasattr(source, "__dlpack__") and not hasattr(source, "__array__")
    try:
        array = np.from_dlpack(source) if exported else np.asarray(source)
    except Exception as error:  # a foreign export may raise anything, and must not stop the round
        raise UpdateError(
            f"{shown(type(source).__name__)} cannot be read ({told(error)})"
        ) from None
    if array.dtype.kind == "O":
        raise UpdateError(f"expected a tensor of numbers, found {shown(type(source).__name__)}")
    foreign = array.dtype.kind not in "fiubc" or array.dtype.isbuiltin == 2  # such as ml_dtypes'
    if foreign and _dtype_name(array.dtype) != _BFLOAT16:
        raise UpdateError(f"{_EXPECTED}, found {shown(_dtype_name(array.dtype))}")
    if isinstance(source, np.ma.MaskedArray):
        hidden = int(np.count_nonzero(np.ma.getmaskarray(source)))
        if hidden:
            raise UpdateError(f"{hidden} of {array.size} numbers are masked: fill them in")
    return array


def _check_view(array: Array) -> None:
    """Raise if a few repeated numbers claim a shape that would fill the memory."""
    if 0 in array.strides and array.nbytes > _LARGEST_REPEATED:
        raise UpdateError(f"numbers repeated up to shape {array.shape}: send an array of its own")


@lru_cache(64)
def _dtype_name(dtype: np.dtype[Any]) -> str:
    return dtype.name  # numpy builds the name anew each time


def _in_namespace(source: Any, array: Array) -> Any:
    try:
        return source.__array_namespace__().asarray(array)
    except Exception:  # a foreign library may be able to read but not to make such a tensor
        return array


def _torch_of(source: Any) -> Any:
    """Return the torch module if source is a torch tensor (torch is then imported), or None."""
    torch = sys.modules.get("torch")
    return torch if torch is not None and isinstance(source, torch.Tensor) else None


def _from_torch(torch: Any, source: Any) -> Tensor:
    # A subclass may override anything; a plain tensor does not lie about itself.
    plain = source if type(source) is torch.Tensor else source.as_subclass(torch.Tensor)
    if type(plain) is not torch.Tensor or plain.is_nested:
        raise UpdateError(f"expected a dense tensor, found {shown(type(source).__name__)}")
    if plain.layout is not torch.strided or plain.is_quantized or plain.is_meta:
        kind = "meta" if plain.is_meta else "quantized" if plain.is_quantized else plain.layout
        raise UpdateError(f"expected a dense tensor with data, found torch layout {kind}")
    _check_storage(plain)
    name = str(plain.dtype).removeprefix("torch.")
    dense = plain.detach().resolve_conj().resolve_neg()
    try:
        _hosted(dense[:0] if dense.ndim else dense)
    except TypeError:  # a dtype that numpy lacks, such as float8
        raise UpdateError(f"{_EXPECTED}, found {name}") from None
    if dense.device.type != "cpu":
        return Tensor(dense, name, tuple(plain.shape), plain)  # it stays on its device
    storage = _hosted(dense)
    _check_view(storage)
    return Tensor(storage, name, tuple(plain.shape), plain)


def _hosted(storage: Storage) -> Array:
    """Return storage as numpy reads it; a torch tensor is brought to this machine."""
    torch = _torch_of(storage)
    if torch is None:
        host: Array = storage
    elif storage.dtype is torch.bfloat16:
        host = storage.cpu().view(torch.int16).numpy().view(np.uint16)
    else:
        host = storage.cpu().numpy()
    return host


def _check_storage(plain: Any) -> None:
    """Raise if a tensor claims more than its memory, as after its storage was freed."""
    if plain.numel() == 0:
        return
    steps = zip(plain.shape, plain.stride(), strict=True)
    last = plain.storage_offset() + sum((size - 1) * stride for size, stride in steps)
    if (last + 1) * plain.element_size() > plain.untyped_storage().nbytes():
        raise UpdateError("expected a tensor with data, found one whose storage was freed")


def from_bfloat16(bits: Array) -> Array:
    """Return bfloat16 numbers, as numpy reads them, as float32."""
    wide: Array = (bits.astype(np.uint32) << 16).view(np.float32)
    return wide


def to_bfloat16(values: Array) -> Array:
    """Round to bfloat16, to nearest and ties to even; no NaN."""
    bits = values.astype(np.float32).view(np.uint32)
    rounded: Array = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return rounded
