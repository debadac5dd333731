"""The loss of the example with adapters, examples/flower_adapters, by strategy and round.

    python -m benchmarks.federated_adapters [--rounds 5] [--out FILE]

Flower's own strategies and messages, PEFT's own adapters; only the wires between are missing. The
clean federation is the four honest parties alone, by the mean of what their factors make.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import tomllib
from pathlib import Path
from typing import Any

from flwr.app import Context, RecordDict
from rich.console import Console

HERE = Path(__file__).parents[1]
EXAMPLE = HERE / "examples" / "flower_adapters"
SAME = {"ranks": "8,8,8,8,8,8"}
WAYS: dict[str, dict[str, Any]] = {
    "clean, mean": {"parties": 4, "method": "mean"},
    "clean, FedAvg of A and B": {"parties": 4, "strategy": "fedavg", **SAME},
    "pairwise": {},
    "mean": {"method": "mean"},
    "FedAvg of A and B": {"strategy": "fedavg", **SAME},
}


def losses(config: dict[str, Any]) -> list[float]:
    """Run the example; return the loss before the first round and after each."""
    from adapters_under_attack import client_app, server_app

    from flower_local import LocalGrid, Party

    def party(number: int) -> Party:
        context = Context(1, number, {"partition-id": number}, RecordDict(), config)
        return Party(lambda message: client_app.train(message, context).content)

    grid = LocalGrid({11 + number: party(number) for number in range(config["parties"])})
    return [round(loss, 3) for loss in server_app.run(grid, config)]


def main() -> None:
    """Measure, print and save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=HERE / "docs/data/federated-adapters.json")
    asked = parser.parse_args()
    sys.path[:0] = [str(EXAMPLE), str(HERE / "tests")]
    from flower_local import in_a_run

    in_a_run()
    logging.getLogger("flwr").setLevel(logging.ERROR)
    config = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["tool"]["flwr"]["app"][
        "config"
    ]
    config["rounds"] = asked.rounds
    found = {way: losses(config | settings) for way, settings in WAYS.items()}
    Console().print(found)
    asked.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
