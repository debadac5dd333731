"""The FLARE job of `benchmarks.spool`, and the client that runs in it.

python job.py KIND OUT PARTIES MEGABYTES THREADS
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

TENSOR = 1 << 22  # numbers: 16 MB
KEY = "numpy_key"  # under which FLARE's recipe for numpy keeps the one array that is the model


def client() -> None:
    """Send the model with noise."""
    import nvflare.client as flare

    flare.init()
    while flare.is_running():
        task = flare.receive()
        if task is None:
            return
        rng = np.random.default_rng(abs(hash(flare.get_site_name())) % 1000)
        values = task.params[KEY]
        for start in range(0, len(values), TENSOR):
            piece = values[start : start + TENSOR]
            piece += np.float32(0.1) * rng.standard_normal(len(piece), np.float32)
        flare.send(flare.FLModel(params={KEY: values}))


def server(kind: str, out: Path, parties: int, megabytes: int, threads: int) -> None:
    """Run one round in FLARE's simulator."""
    from nvflare.app_common.np.recipes.fedavg import NumpyFedAvgRecipe
    from nvflare.recipe import SimEnv

    from consilience.integrations.nvflare import ConsilienceAggregator

    start = out / "start.npy"
    np.save(start, np.random.default_rng(0).standard_normal(megabytes * (1 << 18), np.float32))
    settings = {"record": str(out / "run.jsonl")}
    settings |= {"spool": str(out / "spool")} if kind == "spool" else {}
    aggregator = {} if kind == "fedavg" else {"aggregator": ConsilienceAggregator(**settings)}
    recipe = NumpyFedAvgRecipe(
        name="large",
        model=None,
        initial_ckpt=str(start),
        min_clients=parties,
        num_rounds=1,
        train_script=__file__,
        **aggregator,
    )
    where = str(out / "work")
    recipe.execute(SimEnv(num_clients=parties, num_threads=threads, workspace_root=where))


if __name__ == "__main__":
    if len(sys.argv) == 6:
        server(sys.argv[1], Path(sys.argv[2]), *map(int, sys.argv[3:]))
    else:
        client()
