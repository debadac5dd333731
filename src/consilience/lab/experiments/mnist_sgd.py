"""Figure 2: MNIST by distributed gradient descent, 5 honest parties and 0, 5 or 10 adversaries.

The 784-100-10 network of Baruch et al.: ReLU, rate 0.1, server momentum 0.9, batches of 128 per
party. Adversaries send N(0, 1) instead of a gradient. The training images are split evenly among 15
parties.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial

import numpy as np
from matplotlib.figure import Figure

from consilience.lab import mnist
from consilience.lab.experiments import METHODS, Scale
from consilience.lab.federation import Federation, sgd
from consilience.lab.figures import curves
from consilience.lab.models import Tensor, mlp
from consilience.lab.partitions import iid
from consilience.lab.runner import Cell, Row, Tick
from consilience.lab.training import Samples, Trainers, images

HONEST = 5
ADVERSARIES = (0, 5, 10)
BATCH, RATE, MOMENTUM = 128, 0.1, 0.9


def cells(scale: Scale, seeds: int) -> list[Cell]:
    """Return one cell per number of adversaries, method and seed."""
    return [
        Cell(
            "fig2",
            {"R": count, "method": label, "seed": seed, "rounds": scale.mnist_rounds},
            partial(_run, count, label, seed, scale.mnist_rounds),
        )
        for seed in range(seeds)
        for count in ADVERSARIES
        for label in scale.methods
    ]


@cache
def _data(seed: int) -> tuple[dict[str, Samples], Samples]:
    digits = mnist.load()
    parts = iid(len(digits.train_labels), HONEST + max(ADVERSARIES), np.random.default_rng(seed))
    shards = {
        f"party{j:02}": images(digits.train_images[index], digits.train_labels[index])
        for j, index in enumerate(parts)
    }
    return shards, images(digits.test_images, digits.test_labels)


def _run(adversaries: int, label: str, seed: int, rounds: int, tick: Tick) -> list[Row]:
    shards, test = _data(seed)
    model, names = mlp(), list(shards)
    federation = Federation(
        Trainers(model, shards, seed, BATCH),
        names[:HONEST],
        METHODS[label],
        sgd(RATE, MOMENTUM),
        adversaries=names[HONEST : HONEST + adversaries],
    )

    def evaluate(parameters: Tensor) -> Row:
        return {"accuracy": model.accuracy(parameters, *test)}

    return federation.run(rounds, evaluate, tick, every=max(1, rounds // 25))


def figures(records: Sequence[Row]) -> dict[str, Figure]:
    """Return Figure 2: accuracy by round, a panel per number of adversaries."""
    titles = {count: f"{HONEST} honest parties, {count} adversaries" for count in ADVERSARIES}
    return {"fig2": curves(records, "R", titles, "accuracy", "test accuracy")}
