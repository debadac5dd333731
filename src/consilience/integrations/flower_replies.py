"""Reads Flower's replies as what they are: bytes from untrusted parties.

Arrays are views of their .npy bytes: nothing is copied, and nothing is ever unpickled. Any fault of
a reply is an `UpdateError` that says what is wrong.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Message, RecordDict
from numpy.lib import format as npy
from numpy.typing import NDArray

from consilience.errors import UpdateError
from consilience.storage.npy import parsed
from consilience.text import shown
from consilience.updates.tensors import as_numpy

Tensors = dict[str, NDArray[Any]]

_NUMPY = "numpy.ndarray"
_LONGEST_ID = 64


def tensors(record: Mapping[str, Array]) -> Tensors:
    """Return the arrays of a record by name, as views of its bytes."""
    return {name: tensor(name, array) for name, array in record.items()}


def tensor(name: str, array: Array) -> NDArray[Any]:
    """Return an array as a view of its bytes."""
    if array.stype != _NUMPY:
        found = f"tensor '{shown(name)}' is serialised as '{shown(array.stype)}'"
        raise UpdateError(f"{found}, expected '{_NUMPY}'")
    try:
        return parsed(array.data)
    except Exception as error:  # bytes can be wrong in any way
        raise UpdateError(f"tensor '{shown(name)}' is not a .npy array ({_short(error)})") from None


def record(model: dict[str, Any]) -> ArrayRecord:
    """Return a model as a record, and empty the model meanwhile: one copy is enough."""
    found = ArrayRecord()
    for name in list(model):
        found[name] = serialised(as_numpy(model.pop(name)))
    return found


def serialised(values: NDArray[Any]) -> Array:
    """Return a tensor as Flower sends it, copied once."""
    values = np.asarray(values, order="C")
    header = io.BytesIO()
    npy.write_array_header_1_0(header, npy.header_data_from_array_1_0(values))
    data = b"".join([header.getvalue(), values.reshape(-1).view(np.uint8).data])
    return Array(dtype=str(values.dtype), shape=values.shape, stype=_NUMPY, data=data)


def update(message: Message) -> Tensors:
    """Return what a party sent: its reply must hold exactly one record of arrays."""
    if message.has_error():
        error = message.error
        raise UpdateError(f"error {error.code}: {_short(error.reason or 'no reason given')}")
    records = list(message.content.array_records.values())
    if len(records) != 1:
        raise UpdateError(f"its reply holds {len(records)} array records, expected one")
    return tensors(records[0])


def claimed_id(message: Message, key: str) -> str | None:
    """Return the id that a party claims, if it fits into a line of a log."""
    records: Iterable[Mapping[str, Any]] = (
        *message.content.metric_records.values(),
        *message.content.config_records.values(),
    )
    found = next((record[key] for record in records if key in record), None)
    short = isinstance(found, str) or (isinstance(found, int) and abs(found) < 1 << 64)
    said = str(found) if short and not isinstance(found, bool) else ""
    return said if said.isprintable() and 0 < len(said) <= _LONGEST_ID else None


def metrics(content: RecordDict) -> dict[str, Any]:
    """Return all metrics of a reply, from all its records."""
    return {key: value for part in content.metric_records.values() for key, value in part.items()}


def _short(text: object) -> str:
    """Return the last line: in a traceback it says what happened."""
    lines = str(text).strip().splitlines() or [""]
    return shown(lines[-1], 200)
