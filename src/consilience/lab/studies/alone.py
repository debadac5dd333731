"""A lone voice: can a method tell what one party alone knows from what one party makes up?

    python -m consilience.lab.studies.alone [--out docs/data/alone.json] [--seeds 3]

Federated averaging on MNIST as in the backdoor experiment: ten parties, and an eleventh with
mirrored sevens, which no other party has. It labels them sevens, as they are (knowledge), or ones
(backdoor). By split and method: the share of mirrored sevens in the test set that the final model
classifies as that party says; and the same share if nobody teaches it.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

from consilience import Pairwise
from consilience.estimators.catalogue import Method
from consilience.lab.attacks import register
from consilience.lab.attacks.backdoors import MIRRORED
from consilience.lab.attacks.poisoned import trainer
from consilience.lab.attacks.registry import Attack, Knowledge
from consilience.lab.experiments.backdoors import BATCH, PLAN, RATE, STEPS, Evaluation
from consilience.lab.experiments.pictures import Pictures, adversary, shards
from consilience.lab.federation import Federation, Local, add
from consilience.lab.models import mlp
from consilience.lab.runner import write_rows
from consilience.lab.training import Trainers

SPLITS = ("iid", "dirichlet-1", "dirichlet-0.1")
METHODS: dict[str, str | Method] = {
    "pairwise": "pairwise",
    "pairwise, always corroborated": Pairwise(corroborate=True),
    "pairwise, never": Pairwise(corroborate=False),
    "coordinate-median": "coordinate-median",
    "mean": "mean",
}
# How the eleventh party labels mirrored sevens.
SAYS = {"knowledge": replace(MIRRORED, name="knowledge", target=7), "backdoor": MIRRORED}


@register
def teaches(knowledge: Knowledge, what: str) -> Attack:
    """Train as everybody does, but half of each batch is what it alone says."""
    train = trainer(knowledge, "it trains")
    return lambda honest, count, rng: train(SAYS[what].poison, count)


def believed(method: str | Method, split: str, what: str, seed: int, alone: int = 1) -> float:
    """Return the share of mirrored sevens that are classified as the eleventh party says."""
    honest, test = shards(Pictures(), split, seed)
    bad = {f"eleventh{k}": adversary(Pictures(), seed, k) for k in range(alone)}
    model = mlp()
    federation = Federation(
        Trainers(model, {**honest, **bad}, seed, BATCH),
        list(honest),
        method,
        add,
        adversaries=list(bad),
        attack="teaches",
        settings={"what": what},
        local=Local(STEPS, RATE),
    )
    evaluate = Evaluation(model, test, [SAYS[what]])
    records = federation.run(PLAN.rounds, evaluate, lambda *_: None, every=PLAN.rounds)
    return float(records[-1][SAYS[what].name])


def main() -> None:
    """Measure, print and save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("docs/data/alone.json"))
    parser.add_argument("--seeds", type=int, default=3)
    how = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for split in SPLITS:
        cases = [(name, method, 1) for name, method in METHODS.items()] + [("nobody", "mean", 0)]
        for name, method, alone in cases:
            rows.append({"heterogeneity": split, "method": name})
            for what in SAYS:
                shares = [believed(method, split, what, seed, alone) for seed in range(how.seeds)]
                rows[-1][what] = [round(share, 3) for share in shares]
            print(*rows[-1].values(), flush=True)
    write_rows(how.out, rows)


if __name__ == "__main__":
    main()
