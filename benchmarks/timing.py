"""Timing side by side: everything in turns in one process, best of several."""

from __future__ import annotations

import gc
import json
import os
import platform
from collections.abc import Callable
from pathlib import Path
from time import perf_counter, sleep

import numpy as np
from rich.console import Console

REPEATS, ENOUGH = 9, 3.0  # turns; seconds after which a task has had enough of them
PAUSE = 0.15  # seconds: OpenBLAS's threads spin for 0.1 after a task that used them

Tasks = dict[str, Callable[[], object]]


def best(tasks: Tasks, repeats: int = REPEATS, enough: float = ENOUGH) -> dict[str, float]:
    """Return each task's best time in seconds, taking turns so that a slow spell hits all alike."""
    times, spent = dict.fromkeys(tasks, float("inf")), dict.fromkeys(tasks, 0.0)
    for _ in range(repeats):
        for name, task in tasks.items():
            if spent[name] > enough:
                continue
            gc.collect()
            sleep(PAUSE)
            started = perf_counter()
            task()
            seconds = perf_counter() - started
            times[name], spent[name] = min(times[name], seconds), spent[name] + seconds
    return times


def machine() -> dict[str, object]:
    """Return what the figures depend on."""
    return {
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "numpy": np.__version__,
    }


def keep(record: dict[str, object], out: Path) -> None:
    """Print a record and write it, with what its figures depend on."""
    found = {**record, **machine()}
    Console().print(found)
    out.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")
