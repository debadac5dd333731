"""MNIST in one round: five parties fit a logistic regression each, R adversaries send N(0, 1).

The parameters themselves are aggregated, once. Our choices: all 60,000 images are split evenly
among the five parties, and each party fits its share by L-BFGS with a weight decay of 10⁻³. The
second figure shows iterative methods that are stopped after t iterations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
from matplotlib.figure import Figure

from consilience import ICOV, IVAR, GeometricMedian, aggregate
from consilience.estimators.catalogue import Method
from consilience.lab import mnist
from consilience.lab.attacks import make
from consilience.lab.experiments import Scale, rank
from consilience.lab.figures import curves, lines
from consilience.lab.models import logistic_regression, torch
from consilience.lab.partitions import iid
from consilience.lab.runner import Cell, Row, Tick
from consilience.lab.training import Trainers, images

HONEST = 5
WEIGHT_DECAY = 1e-3
ITERATIONS = (1, 2, 3, 4, 5, 7, 10, 15, 20, 30, 50)
SHOWN = (5, 10)  # numbers of adversaries in the figure by iteration
ITERATED: dict[str, Callable[[int], Method]] = {
    "Geometric median": lambda t: GeometricMedian(max_iterations=t, tolerance=0),
    "IVAR-VB": lambda t: IVAR("vb", max_iterations=t, tolerance=0),
    "IVAR-MLE": lambda t: IVAR("mle", max_iterations=t, tolerance=0),
    "ICOV-VB": lambda t: ICOV("vb", rank=2, max_iterations=t, tolerance=0),
}


def cells(scale: Scale, seeds: int) -> list[Cell]:
    """Return one cell per seed: parties train once for all methods and numbers of adversaries."""
    return [
        Cell(
            "one-round",
            {
                "seed": seed,
                "adversaries": ",".join(map(str, scale.one_round_adversaries)),
                "methods": len(scale.methods),
            },
            partial(_run, seed, scale.one_round_adversaries, scale.methods),
        )
        for seed in range(seeds)
    ]


def _run(
    seed: int, adversaries: Sequence[int], methods: Mapping[str, str | Method], tick: Tick
) -> list[Row]:
    digits = mnist.load()
    test = images(digits.test_images, digits.test_labels)
    model = logistic_regression()
    rng = np.random.default_rng(seed)
    shards = {
        f"party{j}": images(digits.train_images[index], digits.train_labels[index])
        for j, index in enumerate(iid(len(digits.train_labels), HONEST, rng))
    }
    parties = Trainers(model, shards, seed, weight_decay=WEIGHT_DECAY)
    rows = []
    for done, party in enumerate(shards):
        rows.append(parties.local_parameters([party]).numpy()[0])
        tick(done + 1, HONEST + len(adversaries))
    honest = np.array(rows)

    def measure(updates: np.ndarray, method: str | Method) -> Row:
        consensus = aggregate(updates, method, seed=0)
        value = torch.from_numpy(np.asarray(consensus.value))
        return {"accuracy": model.accuracy(value, *test), "rank": rank(consensus)}

    records: list[Row] = []
    bad = make("gaussian")(honest, max(adversaries), np.random.default_rng([seed, 1]))
    for done, count in enumerate(adversaries):
        updates = np.vstack([honest, bad[:count]])
        for label, method in methods.items():
            records.append({"R": count, "method": label, **measure(updates, method)})
        for label, make_method in ITERATED.items() if count in SHOWN else ():
            for t in ITERATIONS:
                found = measure(updates, make_method(t))
                records.append({"R": count, "method": label, "iteration": t, **found})
        tick(HONEST + done + 1, HONEST + len(adversaries))
    return records


def figures(records: Sequence[Row]) -> dict[str, Figure]:
    """Return accuracy by number of adversaries, and by iteration for 5 and 10 of them."""
    final = [record for record in records if "iteration" not in record]
    paths = [record for record in records if "iteration" in record]
    titles = {count: f"{HONEST} honest parties, {count} adversaries" for count in SHOWN}
    return {
        "one-round": lines(final, "R", "accuracy", "adversaries", "test accuracy"),
        "one-round-convergence": curves(
            paths, "R", titles, "accuracy", "test accuracy", by="iteration"
        ),
    }
