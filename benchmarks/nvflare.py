"""What a round costs a FLARE server, by FLARE's own averaging and by our aggregator.

    python -m benchmarks.nvflare [--repeats 15]   # docs/data/nvflare-cost.json; on an idle machine

FLARE's is the weighted mean of its FedAvg (`WeightedAggregationHelper`). The results of the clients
are FLARE's own models; only the wires between are missing.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter, sleep
from typing import Any

import numpy as np
from nvflare.apis.fl_constant import FLMetaKey
from nvflare.apis.fl_context import FLContextManager
from nvflare.app_common.abstract.fl_model import FLModel
from nvflare.app_common.abstract.model import make_model_learnable
from nvflare.app_common.app_constant import AppConstants
from nvflare.app_common.workflows.base_fedavg import BaseFedAvg

from benchmarks.timing import PAUSE, machine
from consilience.integrations.nvflare import ConsilienceAggregator

DATA = Path(__file__).parent.parent / "docs" / "data"
SHAPES = ((1024, 1024),) * 9 + ((62_514,),) * 9  # ten million coordinates in 18 tensors


def results(parties: int) -> tuple[dict[str, Any], list[FLModel]]:
    """Return a model, and what the clients make of it: all of them good."""
    rng = np.random.default_rng(0)
    model = {f"t{k}": rng.standard_normal(shape, np.float32) for k, shape in enumerate(SHAPES)}
    sent = []
    for j in range(parties):
        params = {
            name: tensor + np.float32(0.1) * rng.standard_normal(tensor.shape, np.float32)
            for name, tensor in model.items()
        }
        meta = {"client_name": f"site-{j}", FLMetaKey.NUM_STEPS_CURRENT_ROUND: 100}
        sent.append(FLModel(params_type="FULL", params=params, meta=meta, current_round=0))
    return model, sent


def ours(model: dict[str, Any], sent: list[FLModel]) -> FLModel:
    """Do with the results of a round what FLARE's FedAvg does with an aggregator."""
    aggregator = ConsilienceAggregator()
    aggregator.fl_ctx = FLContextManager().new_context()
    aggregator.fl_ctx.set_prop(AppConstants.GLOBAL_MODEL, make_model_learnable(model, {}))
    aggregator.reset_stats()
    for result in sent:
        aggregator.accept_model(result)
    return aggregator.aggregate_model()


def megabytes(task: Callable[[], object]) -> float:
    """Return the most memory at any time, beyond the results; it slows what it measures."""
    tracemalloc.start()
    task()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return round(peak / 2**20, 1)


def cost(parties: int, repeats: int) -> dict[str, Any]:
    """Return time and memory of both, measured in turns, and their ratios."""
    model, sent = results(parties)
    tasks = {
        "FedAvg": lambda: BaseFedAvg.aggregate_fn(sent),
        "consilience": lambda: ours(model, sent),
    }
    memory = {name: megabytes(task) for name, task in tasks.items()}
    times: dict[str, list[float]] = {name: [] for name in tasks}
    for _ in range(repeats):
        for name, task in tasks.items():
            gc.collect()
            sleep(PAUSE)
            started = perf_counter()
            task()
            times[name].append(perf_counter() - started)
    seconds = {name: round(median(found), 4) for name, found in times.items()}
    found = {"seconds": seconds, "megabytes": memory}
    return {
        "parties": parties,
        "tensors": len(SHAPES),
        "coordinates": sum(tensor.size for tensor in model.values()),
        "repeats": repeats,
        "machine": machine(),
        **found,
        "ratio_to_FedAvg": {k: round(v["consilience"] / v["FedAvg"], 2) for k, v in found.items()},
    }


def main() -> None:
    """Measure, print and save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parties", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--out", type=Path, default=DATA / "nvflare-cost.json")
    asked = parser.parse_args()
    logging.getLogger("consilience").setLevel(logging.CRITICAL)
    text = json.dumps(cost(asked.parties, asked.repeats), indent=1)
    asked.out.write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
