"""The server: Flower's usual one, with another strategy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flwr.app import Array, ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import Bulyan, FedAvg, FedMedian, Krum, Strategy

from consilience.integrations.flower import ConsilienceStrategy
from consilience.lab import softmax as task

app = ServerApp()

PEERS: dict[str, Callable[..., Strategy]] = {
    "fedavg": FedAvg,
    "fedmedian": FedMedian,
    "krum": Krum,
    "bulyan": Bulyan,
}


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train the model, and say how good it became."""
    config = context.run_config
    result = strategy(config).start(
        grid,
        ArrayRecord({name: Array(values) for name, values in task.initial().items()}),
        num_rounds=int(config["rounds"]),
        timeout=float(config["timeout"]),
        evaluate_fn=evaluate,
    )
    found = result.evaluate_metrics_serverapp
    print(f"accuracy after round {max(found)}: {found[max(found)]['accuracy']:.4f}")


def strategy(config: Any) -> FedAvg:
    """The strategy that the run's configuration names."""
    # Flower begins no round with fewer nodes than this: a dead one must not stop the others.
    least = int(config["honest"])
    if config["everybody"]:
        least += int(config["adversaries"])
    common = {"fraction_evaluate": 0.0, "min_train_nodes": 2, "min_available_nodes": least}
    name = str(config["strategy"])
    if name == "consilience":
        return ConsilienceStrategy(
            **common,
            method=str(config["method"]),
            party_key=str(config["party-key"]) or None,
            checkpoint=str(config["checkpoint"]) or None,
            record=str(config["record"]) or None,
        )
    if name in ("krum", "bulyan"):
        common["num_malicious_nodes"] = int(config["adversaries"])
    return PEERS[name](**common)


def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    """Test the global model."""
    model = {name: array.numpy() for name, array in arrays.items()}
    return MetricRecord({"accuracy": task.accuracy(model)})
