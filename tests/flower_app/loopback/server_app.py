import json
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp

from consilience import Require
from consilience.integrations.flower import ConsilienceStrategy

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    folder = Path(str(config["folder"]))
    settings = folder / "strategy.json"
    besides = json.loads(settings.read_text()) if settings.exists() else {}
    if "require" in besides:
        besides["require"] = Require(**besides["require"])
    strategy = ConsilienceStrategy(
        fraction_evaluate=0.0,
        min_available_nodes=int(config["parties"]),
        party_key=str(config["key"]) or None,
        checkpoint=folder / "checkpoint",
        record=folder / "record.jsonl",
        **besides,
    )
    model = {"weight": np.zeros((50, 40), np.float32), "bias": np.zeros(50, np.float32)}
    strategy.start(
        grid,
        ArrayRecord({name: Array(values) for name, values in model.items()}),
        num_rounds=int(config["rounds"]),
        timeout=float(config["timeout"]),
        evaluate_fn=evaluate,
    )


def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    print(f"after round {server_round}: {arrays['weight'].numpy().mean():.3f}", flush=True)
    return MetricRecord({"accuracy": 0.5})
