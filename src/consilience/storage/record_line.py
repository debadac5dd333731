"""Checks a line of a record against its format, docs/record.md.

A record is read by people and pages long after it was written. A line that does not follow the
format was edited, or comes from elsewhere; it is refused, and the error names the key.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Mapping
from typing import Any

from consilience.text import shown

_LARGEST = 1 << 62  # for whole numbers; JSON has no limit
_WIDEST = 100  # largest width of an interval, in logarithms: useful ones are far below


def fault(line: Mapping[str, Any]) -> str | None:
    """Return what is wrong with a line, in words; None if nothing is."""
    for key, (fits, expected) in _KEYS.items():
        if key in line and not fits(line[key]):
            return f"its '{key}' is {shown(json.dumps(line[key]))}, expected {expected}"
    for key in ("round", "time"):
        if key not in line:
            return f"it has no '{key}'"
    count = len(line.get("parties", ()))
    for key in ("weights", "noise", *(key for key in ("noise_spread", "group") if key in line)):
        found = len(line.get(key, ()))
        if found != count:
            return f"its '{key}' are {found}, expected {count}, one for each party"
    return _correlation_fault(line.get("correlation"), count)


def known(line: Mapping[str, Any]) -> dict[str, Any]:
    """Return a line without its unknown keys, which may hold anything."""
    return {key: value for key, value in line.items() if key in _KEYS}


def _correlation_fault(coded: str | None, count: int) -> str | None:
    try:
        found = None if coded is None else len(base64.b64decode(coded, validate=True))
    except ValueError:
        return "its 'correlation' is not base64"
    if found not in (None, count * (count - 1) // 2):
        return f"its 'correlation' is of {found} pairs, expected those of {count} parties"
    return None


def _is_whole(value: object) -> bool:
    return type(value) is int and abs(value) < _LARGEST


def _is_number(value: object) -> bool:
    return _is_whole(value) or (type(value) is float and math.isfinite(value))


def _is_spread(value: object) -> bool:
    return _is_number(value) and isinstance(value, int | float) and 0 <= value <= _WIDEST


def _is_text(value: object) -> bool:
    return type(value) is str


def _or_none(fits: Callable[[object], bool]) -> Callable[[object], bool]:
    return lambda value: value is None or fits(value)


def _list_of(fits: Callable[[object], bool]) -> Callable[[object], bool]:
    return lambda value: type(value) is list and all(map(fits, value))


def _mapping_of(fits: Callable[[object], bool]) -> Callable[[object], bool]:
    return lambda value: type(value) is dict and all(map(fits, value.values()))


def _are_ids(value: object) -> bool:
    return isinstance(value, list) and all(map(_is_text, value)) and len(set(value)) == len(value)


_NUMBER = (_is_number, "a number")
_NUMBERS = (_list_of(_or_none(_is_number)), "numbers")
_TEXT = (_is_text, "text")
_TEXTS = (_mapping_of(_is_text), "text by party")
_BY_NAME = (_mapping_of(_or_none(_is_number)), "numbers by name")
_KEYS: dict[str, tuple[Callable[[object], bool], str]] = {
    "round": (_is_whole, "a whole number"),
    "time": _NUMBER,
    "method": _TEXT,
    "parties": (_are_ids, "different ids"),
    "weights": _NUMBERS,
    "noise": _NUMBERS,
    "noise_spread": (_list_of(_or_none(_is_spread)), f"numbers from 0 to {_WIDEST}"),
    "group": (_list_of(_or_none(_is_whole)), "whole numbers"),
    "reasons": _TEXTS,
    "rejected": _TEXTS,
    "caveats": (_list_of(_is_text), "texts"),
    "center_weight": _NUMBER,
    "correlation": _TEXT,
    "effective_parties": _NUMBER,
    "seconds": _BY_NAME,
    "accuracy": _NUMBER,
    "metrics": _BY_NAME,
    "note": _TEXT,
}
