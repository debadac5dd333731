"""Combines what parties report about their training, so that no liar decides it."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from consilience.errors import UpdateError
from consilience.text import shown
from consilience.updates.votes import weighted_median

Values = NDArray[np.float64]

_MOST_SAMPLES = 1e15  # so that sums and ratios stay finite


def sample_counts(said: Mapping[str, Any], key: str) -> tuple[dict[str, float], dict[str, str]]:
    """Return each party's claimed sample count, and the parties with an invalid one, with reasons.

    If most say zero, as clients do that do not count, no counts are returned: a single party that
    names one must not take the weight of all others.
    """
    if 2 * sum(map(_is_zero, said.values())) > len(said):
        return {}, {}
    counts: dict[str, float] = {}
    bad: dict[str, str] = {}
    for party, found in said.items():
        try:
            counts[party] = _sample_count(found, key)
        except UpdateError as error:
            bad[party] = str(error)
    return counts, bad


def _is_zero(said: Any) -> bool:
    try:
        return isinstance(said, Real) and not isinstance(said, bool) and bool(said == 0)
    except Exception:  # a foreign number may raise anything
        return False


def _sample_count(said: Any, key: str) -> float:
    try:
        found = "missing" if said is None else shown(reprlib.repr(said))
        count = float(said) if isinstance(said, Real) and not isinstance(said, bool) else 0.0
        if 1 / _MOST_SAMPLES <= count <= _MOST_SAMPLES:
            return count
        found += ", which no data can have" if count > 0 else ""
    except Exception:  # too large for a float, or to be printed
        found = f"no usable {type(said).__name__}"
    raise UpdateError(f"its {key} is {found}, expected a positive number")


def typical_metrics(sent: Mapping[str, Any], weights: Mapping[str, float]) -> dict[str, Any]:
    """Return the weighted median of each number, or list, sent by parties with most of the weight.

    Not a mean, which the lightest party could set to anything. Not of fewer parties, as one could
    fill the log with metrics of its own.
    """
    total = sum(weights.get(party, 0.0) for party in sent)
    numbers = {party: _numbers(metrics) for party, metrics in sent.items()}
    found: dict[str, Any] = {}
    for key in dict.fromkeys(key for values in numbers.values() for key in values):
        by_shape: dict[tuple[int, ...], list[tuple[float, Values]]] = {}
        for party, values in numbers.items():
            if key in values:
                pair = weights.get(party, 0.0), values[key]
                by_shape.setdefault(values[key].shape, []).append(pair)
        for pairs in by_shape.values():
            if sum(weight for weight, _ in pairs) > total / 2:
                found[key] = _median(pairs).tolist()
    return found


def _numbers(metrics: Any) -> dict[str, Values]:
    """Return a party's metrics that are finite numbers, or lists of them, and have a name."""
    found: dict[str, Values] = {}
    try:
        for key, value in metrics.items():
            values = _values(value)
            if isinstance(key, str) and values is not None:
                found[key] = values
    except Exception:  # not metrics at all
        return {}
    return found


def _values(value: Any) -> Values | None:
    if not isinstance(value, Real | list | tuple | np.ndarray):
        return None
    try:
        values = np.asarray(value, np.float64)
    except Exception:  # words, nested lists, a number too large for a float
        return None
    return values if values.ndim <= 1 and np.isfinite(values).all() else None


def _median(pairs: Sequence[tuple[float, Values]]) -> Values:
    weights = np.array([weight for weight, _ in pairs])
    values = np.stack([value for _, value in pairs])  # (J, ...)
    return weighted_median(values, weights)
