"""What can be promised at all where data differ: the accuracy up to which no rule can be stopped.

    python -m consilience.lab.studies.promised [--out docs/data/promised.json]

Let G² be the mean squared distance of n − f honest gradients from their mean μ. Whatever the rule,
and even if it is told f, there is a federation with this G in which f adversaries of n stop the
training at ‖μ‖² ≥ G²/4 · f/(n − 2f). (The proof takes two federations that look the same; see
docs/limits.md. Allouah et al. 2023 have the same bound.) So training can be promised to go on only
while ‖μ‖ is above that share of G.

Here the oracle trains in the robustness protocol: ten honest parties, no momentum. Both are
measured with the parties' whole data, so that no noise is in them, every tenth round. Up to which
accuracy is ‖μ‖ above the bound?
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from consilience.lab.experiments.pictures import HETEROGENEITY, HONEST, Pictures, shards
from consilience.lab.experiments.robustness import BATCH, RATE
from consilience.lab.models import Tensor, mlp
from consilience.lab.runner import write_rows
from consilience.lab.training import Samples, Trainers, gradients

ADVERSARIES = (1, 2, 4)
ROUNDS, EVERY = 300, 10
_CHUNK = 1000  # samples at a time


def bound(adversaries: int, honest: int = HONEST) -> float:
    """Return the least ‖μ‖/G at which any rule can be stopped.

    >>> round(bound(4), 3)
    0.408
    """
    return float(np.sqrt(adversaries / (honest - adversaries) / 4))


def watched(split: str, seed: int) -> list[dict[str, float]]:
    """Train with the honest mean; return round, accuracy and ‖μ‖/G every tenth round."""
    honest, test = shards(Pictures(), split, seed)
    model = mlp()
    parties = Trainers(model, honest, seed, BATCH)
    parameters, found = model.initial(seed), []
    for round in range(ROUNDS + 1):
        if round % EVERY == 0:
            accuracy = model.accuracy(parameters, *test)
            share = mean_over_spread([_gradient(parameters, data) for data in honest.values()])
            found.append({"round": round, "accuracy": round_to(accuracy), "share": round_to(share)})
        parameters = parameters - RATE * parties.gradients(parameters, round).mean(0)
    return found


def mean_over_spread(rows: Sequence[Tensor]) -> float:
    """Return ‖μ‖/G of the parties' gradients."""
    each = np.stack([row.double().numpy() for row in rows])
    mean = each.mean(axis=0)
    spread = np.sqrt(((each - mean) ** 2).sum(axis=1).mean())
    return float(np.linalg.norm(mean) / spread)


def _gradient(parameters: Tensor, data: Samples) -> Tensor:
    """Return the gradient on all of a party's samples, in parts that fit into a cache."""
    model, count = mlp(), len(data.targets)
    total = parameters.new_zeros(model.size)
    for start in range(0, count, _CHUNK):
        part = Samples(*(side[start : start + _CHUNK] for side in data))
        total += len(part.targets) / count * gradients(model, parameters, [part])[0]
    return total


def promised(rounds: Sequence[dict[str, float]], adversaries: int) -> float:
    """Return the accuracy at the last of the rounds before ‖μ‖ first falls below the bound."""
    reached = 0.0
    for row in rounds:
        if row["share"] < bound(adversaries):
            return reached
        reached = row["accuracy"]
    return reached


def round_to(number: float) -> float:
    """Return the number with four digits, as it is kept."""
    return float(f"{number:.4g}")


def main() -> None:
    """Run every split and seed; print and save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("docs/data/promised.json"))
    parser.add_argument("--seeds", type=int, default=3)
    how = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for split in HETEROGENEITY:
        for seed in range(how.seeds):
            seen = watched(split, seed)
            row: dict[str, Any] = {"split": split, "seed": seed, "final": seen[-1]["accuracy"]}
            row |= {f"promised, {f}": promised(seen, f) for f in ADVERSARIES}
            row["share"] = {f"{one['round']}": one["share"] for one in seen}
            rows.append(row)
            print(*list(row.values())[:-1], flush=True)
    write_rows(how.out, rows)


if __name__ == "__main__":
    main()
