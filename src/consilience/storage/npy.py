"""The .npy format, read from untrusted bytes. Nothing is ever unpickled."""

from __future__ import annotations

import io
import math

import numpy as np
from numpy.lib import format as npy

from consilience.arrays import Array

_HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


def parsed(data: bytes) -> Array:
    """Return the array as a view of its bytes; raise some error if they are not an array."""
    start = io.BytesIO(data)  # no copy
    shape, fortran, dtype = _HEADERS[npy.read_magic(start)](start)
    if dtype.kind not in "fiub":
        raise ValueError(f"{dtype} is not a type of numbers")
    if not all(type(length) is int and length >= 0 for length in shape):
        raise ValueError(f"its shape is {shape}")
    expected, found = math.prod(shape) * dtype.itemsize, len(data) - start.tell()
    if expected != found:
        raise ValueError(f"{found} bytes, expected {expected} of {dtype} {shape}")
    flat = np.frombuffer(data, dtype, offset=start.tell())
    return flat.reshape(shape, order="F" if fortran else "C")
