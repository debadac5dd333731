"""What a consensus costs, in units of one BLAS weighted average of the same array.

    make bench        (or: python -m benchmarks.consensus [--out FILE])

Everything is timed alternately in one process, best of several, with nothing else running; the
figures are ratios and go to docs/data/consensus.json.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
from collections.abc import Callable
from pathlib import Path
from time import perf_counter

import numpy as np
from rich.console import Console
from rich.table import Table

import consilience as cs

PARTIES, COORDINATES = 10, 1_000_000
REPEATS = 25


def draw(correlated: bool) -> np.ndarray:
    """Return float32 updates of parties with noise 0.5 to 2; or four of them with a common bias."""
    rng = np.random.default_rng(0)
    noise = np.linspace(0.5, 2, PARTIES, dtype=np.float32)[:, None]
    updates = rng.standard_normal((PARTIES, COORDINATES), dtype=np.float32) * noise
    updates += rng.standard_normal(COORDINATES, dtype=np.float32)
    if correlated:
        updates[:4] += rng.standard_normal(COORDINATES, dtype=np.float32)
    return updates


def best(tasks: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Return each task's best time, taking turns so that a slow spell hits all alike."""
    times = dict.fromkeys(tasks, float("inf"))
    for _ in range(REPEATS):
        for name, task in tasks.items():
            started = perf_counter()
            task()
            times[name] = min(times[name], perf_counter() - started)
    return times


def costs(updates: np.ndarray) -> tuple[float, dict[str, dict[str, float]]]:
    """Return the unit in seconds, and per method its cost in units and its iterations."""
    weights = np.full(PARTIES, 1 / PARTIES, np.float32)
    chosen = {name: name for name in ("mean", "geometric-median", "ivar-mle", "ivar-vb")}
    chosen |= {name: name for name in ("icov-mle", "icov-vb", "icov-full", "pairwise")}
    chosen |= {"icov-vb, rank 2": cs.ICOV(rank=2), "ivar-vb, exact": "ivar-vb"}
    tasks: dict[str, Callable[[], object]] = {"unit": lambda: weights @ updates}
    for name, method in chosen.items():
        exact = name.endswith("exact")
        tasks[name] = lambda m=method, e=exact: cs.aggregate(updates, m, exact=e)
    times = best(tasks)
    unit = times.pop("unit")
    found = {
        name: {
            "units": round(seconds / unit, 2),
            "iterations": cs.aggregate(updates, chosen[name]).diagnostics["iterations"],
        }
        for name, seconds in times.items()
    }
    return unit, found


def product_kernels() -> dict[str, float]:
    """Return the cost of a Gram matrix of ten parties, in units: why evidence avoids A @ A.T."""
    chunk = np.random.default_rng(0).standard_normal((11, 8192), dtype=np.float32)
    weights = np.full(11, 1 / 11, np.float32)
    times = best(
        {
            "unit": lambda: weights @ chunk,
            "A @ A.T": lambda: chunk @ chunk.T,
            "A @ A[:-1].T": lambda: chunk @ chunk[:-1].T,
        }
    )
    return {name: round(seconds / times["unit"], 2) for name, seconds in times.items()}


def main() -> None:
    """Measure, print and save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("docs/data/consensus.json"))
    out = parser.parse_args().out
    record: dict[str, object] = {
        "parties": PARTIES,
        "coordinates": COORDINATES,
        "dtype": "float32",
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "numpy": np.__version__,
    }
    console = Console()
    for name, correlated in (("independent", False), ("correlated", True)):
        unit, found = costs(draw(correlated))
        record[name] = {"unit_milliseconds": round(1e3 * unit, 3), "methods": found}
        title = f"{name}: J={PARTIES}, K={COORDINATES:,}; one unit (w @ X) = {1e3 * unit:.2f} ms"
        table = Table("method", "units", "iterations", title=title)
        for method, cost in found.items():
            table.add_row(method, f"{cost['units']:.2f}", str(cost["iterations"]))
        console.print(table)
    record["gram_kernels"] = product_kernels()
    console.print("Gram matrix of one chunk, in units:", record["gram_kernels"])
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(record, indent=1) + "\n")
    console.print(f"written: {out}")


if __name__ == "__main__":
    main()
