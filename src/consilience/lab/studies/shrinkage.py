"""Posterior mean or least squares? How long is each method's step on MNIST, and whose is it?

    python -m consilience.lab.studies.shrinkage [--out docs/data/shrinkage.json]

Figure 2's protocol without adversaries and with five, 200 rounds, one seed: the sum of the weights
(the rest is the prior's, at zero, and shortens the step), and the effective number of parties.
"""

from __future__ import annotations

import argparse
import json
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np

import consilience as cs
from consilience.estimators.catalogue import Method
from consilience.lab.experiments import mnist_sgd
from consilience.lab.federation import Federation, Watched, sgd
from consilience.lab.models import mlp
from consilience.lab.training import Trainers

ROUNDS = 200
ADVERSARIES = (0, 5)
SHOWN = (0, 10, 50, 100, 199)
METHODS: dict[str, str | Method] = {
    "mean": "mean",
    "geometric-median": "geometric-median",
    "ivar-vb": "ivar-vb",
    "ivar-vb, gls": cs.IVAR("vb", estimate="gls"),
    "ivar-mle": "ivar-mle",
    "icov-vb": "icov-vb",
    "icov-vb, posterior mean": cs.ICOV(estimate="posterior-mean"),
}


def _append(seen: list[cs.Consensus], round: Watched) -> None:
    assert round.consensus is not None
    seen.append(round.consensus)


def main() -> None:
    """Train once by each method, print and save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("docs/data/shrinkage.json"))
    out = parser.parse_args().out
    shards, test = mnist_sgd._data(0)
    model, names = mlp(), list(shards)
    records = []
    for adversaries, (name, method) in product(ADVERSARIES, METHODS.items()):
        seen: list[cs.Consensus] = []
        federation = Federation(
            Trainers(model, shards, 0, mnist_sgd.BATCH),
            names[: mnist_sgd.HONEST],
            method,
            sgd(mnist_sgd.RATE, mnist_sgd.MOMENTUM),
            adversaries=names[mnist_sgd.HONEST : mnist_sgd.HONEST + adversaries],
            watch=partial(_append, seen),
        )
        end = federation.run(
            ROUNDS, lambda p: {"accuracy": model.accuracy(p, *test)}, lambda *_: None, ROUNDS
        )[-1]
        record = {
            "adversaries": adversaries,
            "method": name,
            "accuracy": round(end["accuracy"], 3),
            "rounds": SHOWN,
            "sum of weights": [round(sum(seen[r].weights.values()), 2) for r in SHOWN],
            "effective parties": [
                round(float(seen[r].diagnostics["effective_parties"]), 2) for r in SHOWN
            ],
        }
        print(record, flush=True)
        records.append(record)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(records, indent=0, default=np.ndarray.tolist) + "\n")


if __name__ == "__main__":
    main()
