"""Adversaries who train honestly, on bad data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np

from consilience.arrays import Array
from consilience.lab.attacks.registry import Attack, Knowledge, Poison, register


@register
def random_local(
    knowledge: Knowledge, replace: Literal["labels", "inputs", "both"] = "labels"
) -> Attack:
    """The paper's: an honest computation on random labels, random inputs, or both.

    Labels are uniform over the classes, or standard normal if they are numbers. Inputs are uniform
    over the vocabulary if they are codes, else normal with the mean and spread of the true ones, so
    that they are as large as honest inputs.
    """
    train, classes = trainer(knowledge, "random_local trains on random data"), knowledge.classes
    if replace not in ("labels", "inputs", "both"):
        raise ValueError(f"replace is 'labels', 'inputs' or 'both', not {replace!r}")

    def poison(inputs: Array, targets: Array, rng: np.random.Generator) -> tuple[Array, Array]:
        if replace != "labels":
            inputs = _noise_like(inputs, classes, rng)
        if replace != "inputs":
            targets = _noise_like(targets, classes, rng, standard=True)
        return inputs, targets

    def attack(honest: Array, count: int, rng: np.random.Generator) -> Array:
        return train(poison, count)

    return attack


@register
def label_flip(knowledge: Knowledge) -> Attack:
    """An honest computation on labels L − 1 − y, where L is the number of classes."""
    train, classes = trainer(knowledge, "label_flip trains on flipped labels"), knowledge.classes
    if classes is None:
        raise ValueError("label_flip flips classes: give Knowledge their number, classes")

    def poison(inputs: Array, targets: Array, rng: np.random.Generator) -> tuple[Array, Array]:
        return inputs, (classes - 1 - targets).astype(targets.dtype, copy=False)

    def attack(honest: Array, count: int, rng: np.random.Generator) -> Array:
        return train(poison, count)

    return attack


def trainer(knowledge: Knowledge, why: str) -> Callable[[Poison, int], Array]:
    """How adversaries train in this protocol; an error that says why it is needed, if unknown."""
    if knowledge.train is None:
        raise ValueError(f"{why}: give Knowledge a `train` function")
    return knowledge.train


def _noise_like(
    true: Array, classes: int | None, rng: np.random.Generator, standard: bool = False
) -> Array:
    if np.issubdtype(true.dtype, np.integer):
        if classes is None:
            raise ValueError("random classes are to be drawn: give Knowledge their number, classes")
        return rng.integers(classes, size=true.shape, dtype=true.dtype)
    mean, spread = (0.0, 1.0) if standard else (true.mean(), true.std())
    return rng.normal(mean, spread, true.shape).astype(true.dtype)
