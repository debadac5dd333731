"""The server: how much memory does its process take before, and at most?"""

from __future__ import annotations

import json
import resource
from pathlib import Path
from time import perf_counter

import numpy as np
from flwr.app import Array, ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from consilience.integrations.flower import ConsilienceStrategy

app = ServerApp()
TENSOR = 1 << 22  # numbers: 16 MB


def peak() -> float:
    """Return the most memory that this process ever had, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def random_model(count: int) -> ArrayRecord:
    """Return a model of so many numbers."""
    rng = np.random.default_rng(0)
    found = ArrayRecord()
    for start in range(0, count, TENSOR):
        found[str(start)] = Array(rng.standard_normal(min(TENSOR, count - start), np.float32))
    return found


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train, and write down what it took."""
    config = context.run_config
    folder = Path(str(config["folder"]))
    parties, count = int(config["parties"]), int(config["megabytes"]) * (1 << 20) // 4
    common = {
        "fraction_evaluate": 0.0,
        "min_train_nodes": parties,
        "min_available_nodes": parties,
    }
    kind = str(config["strategy"])
    strategy = FedAvg(**common)
    if kind != "fedavg":
        spool = folder / "spool" if kind == "spool" else None
        strategy = ConsilienceStrategy(**common, spool=spool, record=folder / f"{kind}.jsonl")
    base, started = peak(), perf_counter()
    strategy.start(grid, random_model(count), num_rounds=int(config["rounds"]), timeout=3600)
    found = {"base": base, "peak": peak(), "seconds": perf_counter() - started}
    (folder / f"{kind}.json").write_text(json.dumps(found))
