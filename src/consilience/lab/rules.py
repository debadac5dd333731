"""FLAME, FoolsGold and BRA, to compare with: rules for a `Federation`, (J, K) → (K,).

All are told nothing about the adversaries. They follow the formulas of their papers, with the
parameters recommended there. Updates are not screened, as theirs are not.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.cluster.hierarchy import linkage
from scipy.spatial.distance import pdist
from scipy.special import expit, logit

from consilience.arrays import Array, Vector

Rows = Array  # (J, K)


class Flame:
    """FLAME (Nguyen et al. 2022): the mean of a cluster by angle, clipped, with noise.

    The cluster is HDBSCAN's for clusters of more than half of the parties. Two such clusters cannot
    exist, so HDBSCAN returns what is left before the only one dissolves: the first component of
    single linkage, as the distance grows, with more than half of the parties. Each of its updates
    is clipped to the median length of all, and the noise is ``noise`` times that length.
    """

    def __init__(self, noise: float = 0.001, seed: int = 0) -> None:
        self.noise, self.random = noise, np.random.default_rng(seed)

    def __call__(self, updates: Rows) -> Array:
        """The value (K,)."""
        rows = updates.astype(np.float64)
        lengths = np.linalg.norm(rows, axis=1)
        bound = float(np.median(lengths))
        rows *= np.minimum(1.0, bound / lengths)[:, None]
        value: Array = rows[_majority(rows)].mean(0)
        value += self.noise * bound * self.random.standard_normal(len(value))
        return value.astype(updates.dtype)


def _majority(rows: Rows) -> list[int]:
    """The first component of single linkage by angle that holds more than half of the rows."""
    count = len(rows)
    components = [[row] for row in range(count)]
    for first, second, *_ in linkage(pdist(rows, "cosine"), "single"):
        components.append(components[int(first)] + components[int(second)])
        if len(components[-1]) > count // 2:
            break
    return components[-1]


class FoolsGold:
    """FoolsGold (Fung, Yoon and Beschastnikh 2020): whoever moves like another counts less.

    Parties are compared by the cosine of the sums of their updates over all rounds, so the same
    parties must be there in every round. The paper adds up the weighted updates; here the weights
    sum to one, for steps as long as those of a mean. Its weights for single features, which need to
    know the model's output layer, are left out.
    """

    def __init__(self) -> None:
        self.sums: Rows | float = 0.0

    def __call__(self, updates: Rows) -> Array:
        """The value (K,)."""
        self.sums = self.sums + updates.astype(np.float64)
        weights = _unlike(self.sums)
        total = weights.sum() or 1.0  # all of them move alike: no step
        return (weights / total @ updates).astype(updates.dtype)


def _unlike(sums: Rows) -> Vector:
    """The paper's α_j, (J,): from 0, another's double, to 1, unlike everybody."""
    directions = sums / np.linalg.norm(sums, axis=1, keepdims=True)
    alike = directions @ directions.T
    np.fill_diagonal(alike, -1.0)
    most = alike.max(axis=1)
    # Pardon: j's likeness to l counts less if l is still more like somebody else.
    pardoned = np.where(most > most[:, None], alike * most[:, None] / most, alike)
    np.fill_diagonal(pardoned, -1.0)
    own = np.clip(1.0 - pardoned.max(axis=1), 0.0, 1.0)
    own = np.minimum(own / (own.max() or 1.0), 0.99)
    with np.errstate(divide="ignore"):
        weights: Vector = np.clip(np.log(own / (1.0 - own)) + 0.5, 0.0, 1.0)
    return weights


class Bayesian:
    """Bayesian robust aggregation (Karakulev, Zafar, Toor and Singh 2025, arXiv 2505.02490).

    With probability ρ a party is honest, and its distance d_j from the truth is normal with
    variance σ². If it is not, whatever it sends has likelihood one. So the rule depends on the
    units of the updates: they are sent as they are. Steps of EM, from ρ = 0.95 and the mean:

        q_j = ρp_j/(ρp_j + 1 − ρ),  p_j = exp(−d_j²/2σ²)/√(2πσ²);  σ² = Σ qd²/Σ q;  y = Σ qx/Σ q

    and ρ the mean of q, but at least a half. They end when y moves by less than a thousandth.
    """

    least, steps, tolerance = 0.5, 100, 1e-3
    tiny = float(np.finfo(np.float32).eps)  # the least σ², and the least 1 − ρ

    def __call__(self, updates: Rows) -> Array:
        """The value (K,)."""
        rows = updates.astype(np.float64)
        gram = rows @ rows.T
        share, honest = 0.95, np.ones(len(rows))
        weights = honest / honest.sum()
        for _ in range(self.steps):
            squares = np.maximum(gram.diagonal() - 2 * gram @ weights + weights @ gram @ weights, 0)
            spread = max(float(weights @ squares), self.tiny)
            log_likelihood = -0.5 * (squares / spread + np.log(2 * np.pi * spread))
            honest = expit(log_likelihood + logit(share))
            share = float(np.clip(honest.mean(), self.least, 1 - self.tiny))
            before = weights
            weights = honest / (honest.sum() or 1.0)
            moved, length = weights - before, before @ gram @ before
            if moved @ gram @ moved <= self.tolerance**2 * length:
                break
        value: Array = (weights @ rows).astype(updates.dtype)
        return value


RULES: dict[str, Callable[[], Callable[[Rows], Array]]] = {
    "flame": Flame,
    "foolsgold": FoolsGold,
    "bra": Bayesian,
}
