"""Who holds which pictures: ten honest parties, adversaries beside them, and the test set.

The honest parties' data depend only on the seed and the heterogeneity. An adversary that trains has
an IID sample of a tenth of the training pictures.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from consilience.lab import fashion, mnist
from consilience.lab.partitions import (
    Indices,
    Labels,
    dirichlet,
    gamma_similarity,
    iid,
    one_class_per_party,
)
from consilience.lab.training import Samples, images

HONEST = 10
DATA = ("mnist", "fashion")
HETEROGENEITY = ("iid", "dirichlet-1", "dirichlet-0.1", "one-class")  # from least to most


@dataclass(frozen=True)
class Pictures:
    """Which pictures an experiment uses."""

    data: str = "mnist"  # one of DATA
    training_share: float = 1.0  # of the training pictures
    normalised: bool = False  # to mean 0 and variance 1 over all pixels of MNIST


@lru_cache(maxsize=1)  # it holds some hundred megabytes
def shards(pictures: Pictures, heterogeneity: str, seed: int) -> tuple[dict[str, Samples], Samples]:
    """Return the honest parties' shards, and the test set."""
    data, train = _training(pictures, seed)
    parts = divider(heterogeneity)(data.train_labels[train], np.random.default_rng([seed, 1]))
    honest = {f"party{j}": _shard(pictures, data, train[part]) for j, part in enumerate(parts)}
    test = images(data.test_images, data.test_labels)
    return honest, _normalised(test) if pictures.normalised else test


def adversary(pictures: Pictures, seed: int, number: int) -> Samples:
    """Return the shard of one adversary."""
    data, train = _training(pictures, seed)
    rng = np.random.default_rng([seed, 2, number])
    return _shard(pictures, data, rng.choice(train, len(train) // HONEST, replace=False))


def divider(name: str) -> Callable[[Labels, np.random.Generator], list[Indices]]:
    """Return the partition of that name: iid, one-class, dirichlet-ALPHA or gamma-SHARE."""
    kind, _, number = name.partition("-")
    if name == "iid":
        return lambda labels, rng: iid(len(labels), HONEST, rng)
    if name == "one-class":
        return lambda labels, rng: one_class_per_party(labels, HONEST)
    try:
        value = float(number)
    except ValueError:
        kind = ""
    if kind == "gamma":
        return lambda labels, rng: gamma_similarity(labels, HONEST, value, rng)
    if kind == "dirichlet":
        return lambda labels, rng: _nobody_empty(labels, value, rng)
    raise ValueError(
        f"no heterogeneity is called {name!r}; there are: iid, dirichlet-ALPHA, one-class, "
        "gamma-SHARE"
    )


def forget() -> None:
    """Drop the pictures that are kept for the next cell."""
    shards.cache_clear()
    _training.cache_clear()


@lru_cache(maxsize=1)
def _training(pictures: Pictures, seed: int) -> tuple[mnist.Mnist, Indices]:
    data = fashion.load() if pictures.data == "fashion" else mnist.load()
    count = len(data.train_labels)
    order = np.random.default_rng([seed, 0]).permutation(count)
    return data, np.sort(order[: round(pictures.training_share * count)])


def _shard(pictures: Pictures, data: mnist.Mnist, index: Indices) -> Samples:
    made = images(data.train_images[index], data.train_labels[index])
    return _normalised(made) if pictures.normalised else made


def _normalised(shard: Samples) -> Samples:
    return Samples((shard.inputs - 0.1307) / 0.3081, shard.targets)


def _nobody_empty(labels: Labels, alpha: float, rng: np.random.Generator) -> list[Indices]:
    # A party without samples has no gradient, so such a draw is repeated.
    while True:
        parts = dirichlet(labels, HONEST, alpha, rng)
        if all(len(part) for part in parts):
            return parts
