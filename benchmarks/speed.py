"""What a consensus costs, in units of one BLAS weighted average `w @ X` of the same float32 array.

    make bench          (or: python -m benchmarks.speed [--quick])

Writes docs/data/speed.json, docs/benchmarks.md and docs/figures/speed.svg. Run it with nothing
else on the machine: everything is timed in turns in one process, best of several, and the figures
are ratios. The most important ones are then measured once more beside one busy process.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

import consilience as cs
from benchmarks.page import write
from benchmarks.timing import Tasks, best, machine
from consilience.estimators.catalogue import resolve
from consilience.lab.peers import peer

SHAPES = ((10, 10_000_000), (50, 2_000_000), (200, 500_000))
QUICK = ((10, 1_000_000), (50, 200_000))
PARTIES = (3, 10, 30, 100, 300, 1000)  # where the cost of the inference is measured
COORDINATEWISE = ("coordinate-median", "trimmed-mean")
FEW = "mda"  # declines more than twenty parties
METHODS = tuple(name for name in cs.methods() if name not in (*COORDINATEWISE, FEW))
ADVERSARIES = 2  # what ByzFL's rules are told


def draw(parties: int, coordinates: int, together: int = 0) -> np.ndarray:
    """Return float32 updates with noise 0.5 to 2, the first few of them with a common error."""
    rng = np.random.default_rng(0)
    updates = rng.standard_normal((parties, coordinates), dtype=np.float32)
    updates *= np.linspace(0.5, 2, parties, dtype=np.float32)[:, None]
    updates += rng.standard_normal(coordinates, dtype=np.float32)
    if together:
        updates[:together] += rng.standard_normal(coordinates, dtype=np.float32)
    return updates


def ours(updates: Any) -> Tasks:
    """Every method at its default settings, and exact."""
    tasks: Tasks = {}
    for name in METHODS:
        tasks[name] = lambda m=name: cs.aggregate(updates, m)
    for name in COORDINATEWISE:
        tasks[name] = lambda m=name: cs.aggregate(updates, m)
    for name in METHODS:
        tasks[f"{name}, exact"] = lambda m=name: cs.aggregate(updates, m, exact=True)
    return tasks


def separate(updates: np.ndarray) -> dict[str, np.ndarray]:
    """Return an array of its own for each party: what users have."""
    return {f"p{j}": x.copy() for j, x in enumerate(updates)}


def state_dicts(updates: np.ndarray) -> dict[str, dict[str, np.ndarray]]:
    """Return models of 18 tensors, nine large ones and nine small ones."""
    size = updates.shape[1]
    edges = [0]
    for _ in range(9):
        edges += [edges[-1] + size // 9 - 512, edges[-1] + size // 9]
    edges[-1] = size
    return {
        f"p{j}": {f"t{t}": x[edges[t] : edges[t + 1]].copy() for t in range(18)}
        for j, x in enumerate(updates)
    }


def important(updates: np.ndarray) -> Tasks:
    """What is promised, beside what it is compared with."""
    weights = np.full(len(updates), 1 / len(updates), np.float32)
    arrays, dicts = separate(updates), state_dicts(updates)
    return {
        "unit": lambda: weights @ updates,
        "pairwise": lambda: cs.aggregate(arrays),
        "pairwise, state dicts of 18 tensors": lambda: cs.aggregate(dicts),
        "pairwise, rows of one array": lambda: cs.aggregate(updates),
        "pairwise, exact": lambda: cs.aggregate(arrays, exact=True),
        "pairwise, exact, state dicts": lambda: cs.aggregate(dicts, exact=True),
        "a += w * x": lambda: added(arrays, weights),
        **dict(flower(updates)),
    }


def added(arrays: dict[str, np.ndarray], weights: np.ndarray) -> np.ndarray:
    """What anybody would write first."""
    total = np.zeros_like(arrays["p0"])
    for w, x in zip(weights, arrays.values(), strict=True):
        total += w * x
    return total


@contextmanager
def busy_process() -> Iterator[None]:
    """Have another process compute all the time."""
    other = multiprocessing.get_context("spawn").Process(target=_spin, daemon=True)
    other.start()
    try:
        yield
    finally:
        other.kill()
        other.join()


def _spin() -> None:
    while True:
        sum(range(10_000))


def in_units(times: dict[str, float]) -> dict[str, float]:
    """Return all but the unit, in units."""
    unit = times.pop("unit")
    return {name: round(seconds / unit, 2) for name, seconds in times.items()}


def theirs(updates: np.ndarray) -> Iterator[tuple[str, Callable[[], object]]]:
    """What others do with the same updates."""
    yield "numpy: X.mean(0)", lambda: updates.mean(axis=0)
    yield "numpy: X @ X.T", lambda: updates @ updates.T
    yield "numpy: np.median(X, 0)", lambda: np.median(updates, axis=0)
    import torch

    rows = torch.from_numpy(updates)  # ByzFL's rules on torch tensors, without a copy
    for name in ("median", "trmean", "geometric-median", "krum", "multi-krum"):
        (step,) = peer(f"byzfl-{name}", ADVERSARIES).steps
        yield f"ByzFL (torch): {name}", lambda step=step: step(rows)


def flower(updates: np.ndarray) -> Iterator[tuple[str, Callable[[], object]]]:
    """Flower's aggregation of replies, and ours of the same arrays."""
    from flwr.app import Array, ArrayRecord, MetricRecord, RecordDict
    from flwr.serverapp.strategy.strategy_utils import aggregate_arrayrecords

    metrics = MetricRecord({"num-examples": 100})
    replies = [
        RecordDict({"arrays": ArrayRecord({"w": Array(x)}), "metrics": metrics}) for x in updates
    ]
    yield "Flower: FedAvg", lambda: aggregate_arrayrecords(replies, "num-examples")


def costs(parties: int, coordinates: int) -> dict[str, Any]:
    """Return the costs of one shape in units, how far sampled weights are off, and memory."""
    updates = draw(parties, coordinates)
    tasks = important(updates)
    times = best({**tasks, **ours(separate(updates)), **dict(theirs(updates))})
    milliseconds = round(1e3 * times["unit"], 2)
    with busy_process():
        busy = best(tasks, repeats=15)
    return {
        "parties": parties,
        "coordinates": coordinates,
        "unit_milliseconds": milliseconds,
        "units": in_units(times),
        "busy": in_units(busy),
        "off": {name: off(updates, name) for name in METHODS},
        "megabytes": {name: memory(updates, name) for name in ("pairwise", *COORDINATEWISE)},
    }


def off(updates: np.ndarray, method: str) -> float:
    """Return by how much, relatively, the weights differ from the exact ones; worst party."""
    exact = cs.aggregate(updates, method, exact=True).weights
    found = cs.aggregate(updates, method).weights
    return max(abs(found[p] / w - 1) for p, w in exact.items() if abs(w) > 1e-6)


def memory(updates: np.ndarray, method: str) -> float:
    """Return the most memory at any time during a consensus, beyond the updates and the output."""
    tracemalloc.start()
    cs.aggregate(updates, method)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return round((peak - updates[0].nbytes) / 2**20, 1)


def inference(parties: int) -> dict[str, float]:
    """Return the milliseconds each method takes between the passes."""
    evidence = {
        "": cs.Evidence.of(draw(parties, 20_000)),
        ", some err together": cs.Evidence.of(draw(parties, 20_000, together=parties // 3)),
    }
    tasks: Tasks = {}
    for name in METHODS:
        for how, found in evidence.items():
            if parties > 30 and (name.startswith("icov") or name == "caf"):
                continue  # seconds to minutes
            tasks[name + how] = lambda m=name, e=found: resolve(m).infer(e)
    return {name: round(1e3 * s, 3) for name, s in best(tasks, repeats=3).items()}


def main() -> None:
    """Measure, save, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small shapes")
    parser.add_argument("--out", type=Path, default=Path("docs"))
    chosen = parser.parse_args()
    console = Console()
    record: dict[str, Any] = {"machine": machine(), "shapes": [], "inference": {}}
    for shape in QUICK if chosen.quick else SHAPES:
        found = costs(*shape)
        record["shapes"].append(found)
        console.print(f"J={shape[0]}, K={shape[1]:,}: unit {found['unit_milliseconds']} ms")
        console.print(found["units"], found["busy"], found["off"], found["megabytes"])
    for parties in PARTIES[:3] if chosen.quick else PARTIES:
        record["inference"][str(parties)] = inference(parties)
        console.print(parties, record["inference"][str(parties)])
    data = chosen.out / "data" / "speed.json"
    data.parent.mkdir(parents=True, exist_ok=True)
    data.write_text(json.dumps(record, indent=1) + "\n")
    console.print(f"written: {write(record, chosen.out)}")


if __name__ == "__main__":
    main()
