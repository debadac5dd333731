"""What parties say of their own training, combined so that no liar decides it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]


def typical_metrics(
    sent: Mapping[str, Mapping[str, Any]], weights: Mapping[str, float]
) -> dict[str, Any]:
    """Return the weighted median of each number, or list, that parties with most weight sent.

    A median, since a mean could be made anything by the least of the parties; most of the weight,
    lest one party fills the log with metrics of its own.
    """
    total = sum(weights.get(party, 0.0) for party in sent)
    found: dict[str, Any] = {}
    for key in dict.fromkeys(key for metrics in sent.values() for key in metrics):
        by_shape: dict[tuple[int, ...], list[tuple[float, Values]]] = {}
        for party, metrics in sent.items():
            values = _numbers(metrics.get(key))
            if values is not None:
                by_shape.setdefault(values.shape, []).append((weights.get(party, 0.0), values))
        for pairs in by_shape.values():
            if sum(weight for weight, _ in pairs) > total / 2:
                found[str(key)] = _median(pairs).tolist()
    return found


def _numbers(value: Any) -> Values | None:
    try:
        values = np.asarray(value, np.float64)
    except (TypeError, ValueError):
        return None
    return values if values.ndim <= 1 and np.isfinite(values).all() else None


def _median(pairs: Sequence[tuple[float, Values]]) -> Values:
    weights = np.array([weight for weight, _ in pairs])
    values = np.stack([value for _, value in pairs])  # (J, ...)
    order = np.argsort(values, axis=0, kind="stable")
    passed = np.cumsum(weights[order], axis=0) >= weights.sum() / 2
    ranked = np.take_along_axis(values, order, axis=0)
    median: Values = np.take_along_axis(ranked, np.argmax(passed, axis=0)[None], axis=0)[0]
    return median
