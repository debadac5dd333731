"""What corroboration costs where nobody attacks, and where it is on.

    python -m consilience.lab.studies.corroboration [--out docs/data/corroboration.json] [--seeds 3]

First honest parties with equal Gaussian noise: the squared error of the winsorised mean over that
of the plain mean, by headroom. Then MNIST without adversaries, ten parties, by gradient descent
(batches of 25, 300 rounds) and by federated averaging (30 rounds of 20 local steps): by split, the
share of rounds with corroboration, and the final accuracy less that of the same run without any, in
points; for the default, and for `always`. Also the share of rounds in which honest parties were
said to move together.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np

from consilience import Pairwise
from consilience.lab.experiments.backdoors import STEPS
from consilience.lab.experiments.pictures import HETEROGENEITY, Pictures, shards
from consilience.lab.experiments.robustness import BATCH, RATE
from consilience.lab.federation import Federation, Local, Watched, add, sgd
from consilience.lab.models import mlp
from consilience.lab.runner import write_rows
from consilience.lab.training import Trainers
from consilience.passes import loops

PARTIES = (3, 4, 5, 6, 7, 8, 10, 14)
ROOMS = (0.0, 1.0, 2.0)
COORDINATES = 100_000
RULES = {"never": False, "by default": None, "always": True}
ROUNDS = {"gradients": 300, "federated averaging": 30}


def efficiency(parties: int, room: float, seed: int = 0) -> float:
    """Return the squared error with corroboration over the mean's."""
    X = np.random.default_rng(seed).standard_normal((parties, COORDINATES))
    value, alone = np.empty(COORDINATES), np.zeros(parties)
    weights, witnesses = np.full(parties, 1 / parties), b"\1" * parties
    rule = (weights, witnesses, room, value, b"d", None, alone, True)
    loops.current.corroborate(list(X), b"d" * parties, *rule)
    return float(np.square(value).mean() / np.square(X.mean(axis=0)).mean())


def trained(protocol: str, split: str, rule: bool | None, seed: int) -> tuple[float, float, float]:
    """Return the final accuracy, and the shares of rounds with corroboration and with a group."""
    honest, test = shards(Pictures(), split, seed)
    model, seen = mlp(), []

    def watch(round: Watched) -> None:
        if round.consensus is not None:
            seen.append((bool(round.consensus.uncorroborated), bool(round.consensus.groups)))

    federation = Federation(
        Trainers(model, honest, seed, BATCH),
        list(honest),
        Pairwise(corroborate=rule),
        sgd(RATE) if protocol == "gradients" else add,
        local=None if protocol == "gradients" else Local(STEPS, RATE),
        watch=watch,
    )
    rounds = ROUNDS[protocol]
    records = federation.run(
        rounds, lambda p: {"accuracy": model.accuracy(p, *test)}, lambda *_: None, every=rounds
    )
    asked, grouped = np.mean(seen, axis=0)
    return float(records[-1]["accuracy"]), float(asked), float(grouped)


def main() -> None:
    """Measure both, print them and keep them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("docs/data/corroboration.json"))
    parser.add_argument("--seeds", type=int, default=3)
    how = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for parties in PARTIES:
        rows.append({"parties": parties})
        rows[-1] |= {f"room of {room:g}": round(efficiency(parties, room), 4) for room in ROOMS}
        print(*rows[-1].values(), flush=True)
    for protocol in ROUNDS:
        for split in HETEROGENEITY:
            found = {
                name: [trained(protocol, split, rule, seed) for seed in range(how.seeds)]
                for name, rule in RULES.items()
            }
            rows.append({"protocol": protocol, "heterogeneity": split} | told(found))
            print(*rows[-1].values(), flush=True)
    write_rows(how.out, rows)


def told(found: dict[str, list[tuple[float, float, float]]]) -> dict[str, list[float]]:
    """Return, seed by seed, the shares of rounds with corroboration and with groups, and the cost
    of corroboration in points."""
    accuracies = {name: [run[0] for run in runs] for name, runs in found.items()}
    result = {
        what: [round(run[place], 2) for run in found["by default"]]
        for place, what in ((1, "asked"), (2, "grouped"))
    }
    for name in ("by default", "always"):
        pairs = zip(accuracies[name], accuracies["never"], strict=True)
        result[name] = [round(100 * (mine - plain), 2) for mine, plain in pairs]
    return result


if __name__ == "__main__":
    main()
