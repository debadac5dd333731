"""Linear regression with parties of differing noise and overlapping data.

The paper's supplement with its set-up is lost; this one is ours. There is one pool of samples:
features x_s ~ N(0, I), true weights w ~ N(0, I), and a disturbance ε_s ~ N(0, 1) that belongs to
the sample. Party j holds a run of consecutive samples of the pool and sees the targets

    y_js = x_sᵀw + σ_j ε_s.

Two parties with the same sample saw the same event, one through a better instrument than the other.
So their errors are correlated, to a known degree: with o_jl the share of samples that parties j and
l have in common, the least-squares estimates have error covariance σ_j σ_l o_jl / n in each
coordinate, up to a factor common to all parties.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

NOISE = (1.0, 2.0, 3.0, 4.0, 5.0)
FRESH = 1000  # samples to predict


@dataclass(frozen=True)
class Regression:
    """Parties' data, and what nobody but the experimenter knows."""

    parties: dict[str, tuple[Array, Array]]  # features (n, K), targets (n,)
    truth: Array  # w, (K,)
    noise: Array  # σ, (J,)
    overlap: Array  # (J, J): the share of samples that two parties have in common
    fresh: tuple[Array, Array]  # features and targets nobody holds, noise 1

    @property
    def covariance(self) -> Array:
        """The covariance Φ_jl = σ_j σ_l o_jl of the parties' errors, (J, J), up to a factor."""
        return np.outer(self.noise, self.noise) * self.overlap

    def error(self, weights: Array) -> float:
        """The distance ‖ŵ − w‖ of estimated weights from the truth."""
        return float(np.linalg.norm(weights - self.truth))

    def prediction_error(self, weights: Array) -> float:
        """The root mean squared error on fresh samples, about √(‖ŵ − w‖² + 1)."""
        features, targets = self.fresh
        return float(np.sqrt(np.mean((features @ weights - targets) ** 2)))


def linear_regression(
    seed: int,
    noise: Sequence[float] = NOISE,
    overlap: float = 0.8,
    samples: int = 300,
    features: int = 100,
    starts: Sequence[int] | None = None,
) -> Regression:
    """Draw the parties' data.

    `overlap` is the share of samples a party has in common with the next; it decreases linearly
    with the distance between the two (0.8, 0.6, 0.4, 0.2). For another pattern give `starts`, the
    place in the pool where each party's samples begin: equal starts, equal samples.
    """
    if starts is None:
        if not 0 <= overlap <= 1:
            raise ValueError(f"overlap is a share of the samples, from 0 to 1, not {overlap}")
        starts = [party * round(samples * (1 - overlap)) for party in range(len(noise))]
    if len(starts) != len(noise):
        raise ValueError(f"{len(starts)} starts for {len(noise)} parties: give each party one")
    if min(starts) < 0:
        raise ValueError(f"a party's samples start at {min(starts)}: expected 0 or more")

    rng = np.random.default_rng(seed)
    truth = rng.standard_normal(features)
    pool = rng.standard_normal((max(starts) + samples, features))
    disturbance = rng.standard_normal(len(pool))
    parties = {}
    for index, (start, level) in enumerate(zip(starts, noise, strict=True)):
        held = np.arange(start, start + samples)
        parties[f"party{index}"] = (pool[held], pool[held] @ truth + level * disturbance[held])

    unseen = rng.standard_normal((FRESH, features))
    fresh = (unseen, unseen @ truth + rng.standard_normal(FRESH))
    apart = np.abs(np.subtract.outer(starts, starts))
    shared = np.clip(samples - apart, 0, None) / samples
    return Regression(parties, truth, np.asarray(noise, np.float64), shared, fresh)
