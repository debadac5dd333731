"""Why IVAR learns MNIST more slowly than the mean when nobody attacks: how long, and of whom, is
its step?

    python -m benchmarks.shrinkage [--out docs/data/shrinkage.json]

Figure 2's protocol without adversaries, 200 rounds, one seed: the sum of the weights (what is
left goes to the prior at zero, and shortens the step), and the effective number of parties.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np

import consilience as cs
from consilience.lab.experiments import mnist_sgd
from consilience.lab.federation import Federation, sgd
from consilience.lab.models import mlp
from consilience.lab.training import Parties

ROUNDS = 200
SHOWN = (0, 10, 50, 100, 199)
METHODS = {
    "mean": "mean",
    "ivar-vb": "ivar-vb",
    "ivar-vb, wide prior": cs.IVAR("vb", prior_variance=1e6),
    "ivar-mle": "ivar-mle",
    "icov-vb": "icov-vb",
}


def main() -> None:
    """Train once by each method, print and save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("docs/data/shrinkage.json"))
    out = parser.parse_args().out
    shards, test = mnist_sgd._data(0)
    model, honest = mlp(), list(shards)[: mnist_sgd.HONEST]
    records = []
    for name, method in METHODS.items():
        seen: list[cs.Consensus | None] = []
        federation = Federation(
            Parties(model, shards, 0, mnist_sgd.BATCH),
            honest,
            method,
            sgd(mnist_sgd.RATE, mnist_sgd.MOMENTUM),
            watch=lambda round, seen=seen: seen.append(round.consensus),
        )
        end = federation.run(
            ROUNDS, lambda p: {"accuracy": model.accuracy(p, *test)}, lambda *_: None, ROUNDS
        )[-1]
        record = {
            "method": name,
            "accuracy": round(end["accuracy"], 3),
            "rounds": SHOWN,
            "sum of weights": [round(sum(seen[r].weights.values()), 2) for r in SHOWN],
            "effective parties": [
                round(float(seen[r].diagnostics["effective_parties"]), 2) for r in SHOWN
            ],
        }
        print(record)
        records.append(record)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(records, indent=0, default=np.ndarray.tolist) + "\n")


if __name__ == "__main__":
    main()
