"""Sends the numbers of a round to TensorBoard or MLflow.

    strategy = ConsilienceStrategy(track=SummaryWriter())  # of torch.utils.tensorboard
    strategy = ConsilienceStrategy(track=mlflow)

A tracker has either `log_metrics(numbers, step=...)`, as the mlflow module and Lightning's loggers
do, or `add_scalar(name, number, step)`, as TensorBoard's writers do.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping
from typing import Any

from consilience.errors import ConsilienceError

_OTHERS = re.compile(r"[^A-Za-z0-9_. /-]")  # characters that MLflow does not allow in a name
_LONGEST = 200


def check(tracker: Any) -> None:
    """Raise unless numbers can be sent to a tracker, or there is none."""
    if tracker is not None and not (_takes_many(tracker) or hasattr(tracker, "add_scalar")):
        raise ConsilienceError(
            f"track is {type(tracker).__name__}, expected a TensorBoard writer (add_scalar) or "
            "the mlflow module (log_metrics)"
        )


def send(tracker: Any, numbers: Mapping[str, float], round: int) -> None:
    """Send the numbers of a round to a tracker, if there is one."""
    named = {f"consilience/{_name(key)}": float(value) for key, value in numbers.items()}
    if tracker is None:
        return
    if _takes_many(tracker):
        tracker.log_metrics(named, step=round)
        return
    for name, value in named.items():
        tracker.add_scalar(name, value, round)


def _takes_many(tracker: Any) -> bool:
    return hasattr(tracker, "log_metrics")


def _name(key: str) -> str:
    """Return a name that every tracker accepts. Different names stay different, so that no party
    can hide behind a similar name."""
    plain = _OTHERS.sub("_", key)[:_LONGEST]
    return plain if plain == key else f"{plain}-{zlib.crc32(key.encode(errors='replace')):08x}"
