"""The server: Flower's usual one, with another strategy."""

from __future__ import annotations

from typing import Any

from flwr.app import Array, ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

import consilience as cs
from adapters_under_attack import task
from consilience.integrations.flower import ConsilienceStrategy

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train the adapter, and say how good it became."""
    losses = run(grid, context.run_config)
    print("loss by round:", ", ".join(f"{loss:.3f}" for loss in losses))


def run(grid: Grid, config: Any) -> list[float]:
    """Run the rounds; return the loss before the first and after each."""
    base = int(config["base-steps"])

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        sent = {name: array.numpy() for name, array in arrays.items()}
        return MetricRecord({"loss": task.loss(sent, base)})

    start = task.adapter(task.with_adapter(task.RANK, base))
    result = strategy(config).start(
        grid,
        ArrayRecord({name: Array(values) for name, values in start.items()}),
        num_rounds=int(config["rounds"]),
        evaluate_fn=evaluate,
    )
    return [float(found["loss"]) for found in result.evaluate_metrics_serverapp.values()]


def strategy(config: Any) -> FedAvg:
    """The strategy that the run's configuration names."""
    # FedAvg counts the nodes it will ask before it waits for the rest: without min_train_nodes a
    # party that connects a moment late would be missing in the first round.
    everybody = int(config["parties"])
    common = {
        "fraction_evaluate": 0.0,
        "min_train_nodes": everybody,
        "min_available_nodes": everybody,
    }
    if config["strategy"] == "fedavg":
        return FedAvg(**common)
    return ConsilienceStrategy(
        **common,
        adapters=cs.LoRA(task.ALPHA),
        method=str(config["method"]),
        party_key="partition-id",
        record=str(config["record"]) or None,
    )
