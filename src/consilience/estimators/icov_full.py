"""A full covariance between parties, by Proposition 1's joint iteration.

It alternates ŷ = XΦ⁻¹1 / 1ᵀΦ⁻¹1 (eq. icov:1) with Φ̂ = (X − ŷ1ᵀ)ᵀ(X − ŷ1ᵀ)/K (eq. phi), over many
rounds averaging each pair over the rounds it met in (the remark).

Alone, the iteration does not move. Φ̂ is singular along the weights w that made ŷ, since (X − ŷ1ᵀ)w
= ŷ − ŷ = 0, so Φ̂⁻¹ does not exist. With a vanishing ridge, full participation and K ≥ J − 1
coordinates, w is the only such direction, the next weights are w again, and *every* start is a
fixed point. With fewer coordinates there are other such directions and the weights move, but only
among those with Xw = ŷ. So whatever makes Φ̂ regular decides the result. Here it is an inverse
Wishart prior centred on T, the parties' residual variances about a point amid most parties
(`Block.central_weights`; about the plain mean one party could set them all), with weight γ:

    Φ = (1 − γ) Φ̂ + γ T.

Both steps maximise −log|Φ| − tr(Φ⁻¹[(1 − γ)Φ̂(y) + γT]), so it never falls. At its fixed points
with full participation Φw = γTw ∝ 1: the weights are those of T, the inverse residual variances,
and Φ adds the correlations that go with them. With partial participation the weights differ between
rounds, Φ̂ is no longer singular along each of them, and what was learnt in one round matters in
another. Averages over pairs need not be positive definite, so in units of T eigenvalues below the
prior's, γ, are raised to it, and the objective may then dip.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from consilience.arrays import Matrix, Vector
from consilience.beliefs import NOTHING, Beliefs, Given, with_centre
from consilience.estimators.average import gls_weights
from consilience.estimators.degenerate import infer_from_meetings
from consilience.estimators.positive import inverse
from consilience.evidence import Evidence, pooled_products, residual_products


@dataclass(frozen=True)
class FullCovariance:
    """Inverse covariance weighting with every entry of the covariance Φ free (Proposition 1).

    ``shrinkage`` is the weight of the prior that makes Φ regular: docs/theory.md has the formula.

    >>> import numpy as np
    >>> import consilience as cs
    >>> updates = np.array([[1.0, 2], [1, 3], [2, 2], [2, 3], [90, -90]])
    >>> round(cs.aggregate(updates, cs.FullCovariance()).weights["4"], 2)
    0.0
    """

    shrinkage: float = 0.1
    tolerance: float = 1e-10
    max_iterations: int = 500

    remembers = True
    follows = False

    def infer(self, evidence: Evidence, given: Given = NOTHING) -> Beliefs:
        """Return Φ and its weights. Sample counts are mere claims, and not used."""
        return infer_from_meetings(evidence, self._iterate)

    def _iterate(self, evidence: Evidence) -> Beliefs:
        weights = [block.central_weights for block in evidence.blocks]
        spread = np.diag(pooled_products(evidence, [with_centre(w) for w in weights]))
        prior = np.diag(np.maximum(spread, 1e-6 * evidence.least_noise))
        phi = prior
        objective: list[float] = []
        converged = False
        for _ in range(self.max_iterations):
            previous, weights = weights, [gls_weights(phi[np.ix_(m, m)]) for m in evidence.members]
            phi = self._covariance(evidence, weights, prior)
            objective.append(self._objective(evidence, weights, phi, prior))
            moves = [np.abs(w - p).max() for w, p in zip(weights, previous, strict=True)]
            if len(objective) > 1 and max(moves) <= self.tolerance:
                converged = True
                break
        return Beliefs(
            evidence,
            tuple(weights),
            np.sqrt(np.diag(phi)),
            phi,
            iterations=len(objective),
            converged=converged,
            objective=tuple(objective),
        )

    def _covariance(self, evidence: Evidence, weights: list[Vector], prior: Matrix) -> Matrix:
        """Return Φ given the truth: eq. (phi) with its remark, and the prior."""
        sample = pooled_products(evidence, [with_centre(w) for w in weights])
        phi: Matrix = (1 - self.shrinkage) * sample + self.shrinkage * prior
        # Products of variances may overflow, those of standard deviations do not.
        scale = np.sqrt(np.diag(prior))
        unit = np.outer(scale, scale)
        values, vectors = np.linalg.eigh(phi / unit)
        if values[0] < self.shrinkage * (1 - 1e-9):
            phi = (vectors * np.maximum(values, self.shrinkage)) @ vectors.T * unit
        return _definite(phi)

    def _objective(
        self, evidence: Evidence, weights: list[Vector], phi: Matrix, prior: Matrix
    ) -> float:
        total = 0.0
        for block, m, w in zip(evidence.blocks, evidence.members, weights, strict=True):
            at = np.ix_(m, m)
            sample = residual_products(block.gram[:-1, :-1], w)
            target = (1 - self.shrinkage) * sample + self.shrinkage * prior[at]
            inverted, log_determinant = inverse(phi[at])
            fit = float(log_determinant) - float((inverted * target).sum())
            total += 0.5 * block.count * fit
        return total


def _definite(phi: Matrix) -> Matrix:
    """Return an invertible covariance. Beside far larger values, rounding may leave one that is
    not: then all correlations are reduced a little, or in the end to zero."""
    alone = np.diag(np.diag(phi))
    for less in (0.0, 1e-9, 1e-6, 1e-3):
        some: Matrix = phi + less * (alone - phi)
        try:
            inverse(some)
        except np.linalg.LinAlgError:
            continue
        return some
    return alone
