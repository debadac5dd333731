"""Adversaries who look at nobody's update: noise, nothing, and malformed updates."""

from __future__ import annotations

from typing import Any

import numpy as np

from consilience.arrays import Array
from consilience.lab.attacks.registry import Attack, Knowledge, register, send


@register
def gaussian(knowledge: Knowledge, scale: float = 1.0) -> Attack:
    """The paper's: N(0, scale²) in every coordinate, instead of the update."""

    def attack(honest: Array, count: int, rng: np.random.Generator) -> Array:
        drawn = rng.standard_normal((count, honest.shape[1]), dtype=np.float32)
        return (scale * drawn).astype(honest.dtype, copy=False)

    return attack


@register
def huge(knowledge: Knowledge, scale: float = 1e30) -> Attack:
    """N(0, scale²) in every coordinate, clipped to the range of the dtype: always finite."""

    def attack(honest: Array, count: int, rng: np.random.Generator) -> Array:
        return send(scale * rng.standard_normal((count, honest.shape[1])), honest, count)

    return attack


@register
def zero(knowledge: Knowledge) -> Attack:
    """Zero in every coordinate: the party that does no work."""
    return _constant(0.0)


@register
def inf(knowledge: Knowledge) -> Attack:
    """Infinity in every coordinate."""
    return _constant(np.inf)


@register
def nan(knowledge: Knowledge) -> Attack:
    """NaN in every coordinate."""
    return _constant(np.nan)


@register
def wrong_shape(knowledge: Knowledge, extra: int = 1) -> Attack:
    """Arrays of zeros that are this many coordinates too long, or too short if negative."""
    if extra == 0:
        raise ValueError("extra is how many coordinates too many there are: not 0")

    def attack(honest: Array, count: int, rng: np.random.Generator) -> list[Any]:
        length = max(honest.shape[1] + extra, 0)
        return [np.zeros(length, honest.dtype) for _ in range(count)]

    return attack


@register
def missing_tensor(knowledge: Knowledge) -> Attack:
    """A mapping of names to tensors with none in it."""

    def attack(honest: Array, count: int, rng: np.random.Generator) -> list[Any]:
        return [{} for _ in range(count)]

    return attack


def _constant(value: float) -> Attack:
    def attack(honest: Array, count: int, rng: np.random.Generator) -> Array:
        return np.full((count, honest.shape[1]), value, honest.dtype)

    return attack
