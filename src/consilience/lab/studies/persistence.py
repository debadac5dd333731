"""Noise or data: what share of an honest party's error lasts, and the slack that results.

    python -m consilience.lab.studies.persistence [--out docs/data/persistence.json] [--seeds 3]

The robustness protocol on MNIST without adversaries: 10 honest parties, batches of 25. A row per
split, worker momentum, memory and round: the median over parties of the share that lasts, the
range, and the slack; means over seeds, and the largest slack. A memory with decay 0.99 would see
through momentum 0.9, but not within forty rounds.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np

from consilience import Memory, Pairwise
from consilience.estimators.persistence import lasting_shares
from consilience.lab.experiments.pictures import Pictures, shards
from consilience.lab.experiments.robustness import BATCH, RATE
from consilience.lab.federation import Federation, sgd
from consilience.lab.models import mlp
from consilience.lab.runner import write_rows
from consilience.lab.training import Trainers

KINDS = ("iid", "dirichlet-1", "dirichlet-0.1", "one-class")
CASES = ((0.0, 0.9), (0.9, 0.9), (0.9, 0.99))  # worker momentum, decay of the memory
ROUNDS = (1, 5, 6, 10, 11, 20, 40)


def watched(kind: str, momentum: float, decay: float, seed: int) -> dict[int, list[float]]:
    """Return the slack, and the median, least and largest lasting share, by round."""
    honest, _ = shards(Pictures(), kind, seed)
    model, memory = mlp(), Memory(decay, seed=seed)
    trainers = Trainers(model, honest, seed, BATCH, momentum)
    federation = Federation(trainers, list(honest), "pairwise", sgd(RATE), memory=memory)
    parameters, found = model.initial(seed), {}
    for round in range(max(ROUNDS)):
        parameters, consensus = federation.step(parameters, round)
        if round + 1 in ROUNDS and consensus is not None and consensus.beliefs is not None:
            past = None if memory.trails is None else memory.trails.evidence(len(honest))
            shares = np.ones(1) if past is None else lasting_shares(past, Pairwise().enough_rounds)
            slack = consensus.beliefs.slack or np.nan
            found[round + 1] = [slack, float(np.median(shares)), shares.min(), shares.max()]
    return found


def main() -> None:
    """Run all cases, print a table and save it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("docs/data/persistence.json"))
    parser.add_argument("--seeds", type=int, default=3)
    how = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for kind in KINDS:
        for momentum, decay in CASES:
            runs = [watched(kind, momentum, decay, seed) for seed in range(how.seeds)]
            for round in ROUNDS:
                means = np.mean([run[round] for run in runs], axis=0).round(3).tolist()
                told = dict(zip(("slack", "median", "least", "largest"), means, strict=True))
                settings = {"heterogeneity": kind, "momentum": momentum, "decay": decay}
                most = round_up(max(run[round][0] for run in runs))
                rows.append({**settings, "round": round, **told, "most_slack": most})
                print(*rows[-1].values(), flush=True)
    write_rows(how.out, rows)


def round_up(value: float) -> float:
    """Round up to three decimals."""
    return float(np.ceil(1000 * value) / 1000)


if __name__ == "__main__":
    main()
