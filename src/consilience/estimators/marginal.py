"""The distribution of the updates, with the truth and the latent factors integrated out.

A coordinate of the updates about the centre is x ~ N(0, Σ) with Σ = σ_y² 11ᵀ + VVᵀ + diag(σ²).
If the centre is far from parties that nearly agree, σ_y² exceeds σ_j² by more digits than a float
has, and Σ is singular to working precision. In units of the own noise, s = σ_j, it is s(I + LLᵀ)s
with L = s⁻¹[σ_y1, V]; the singular values of L then give everything without cancellation.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from consilience.arrays import Matrix, Vector
from consilience.evidence import Block


@dataclass(frozen=True, eq=False)
class Marginal:
    """Σ⁻¹ in factors: with L = P diag(l) Qᵀ it is s⁻¹ P diag(1/(1 + l²)) Pᵀ s⁻¹."""

    scale: Vector  # s, (J,)
    left: Matrix  # P, (J, J)
    shrink: Vector  # 1/(1 + l²), (J,): one beyond the rank of L
    inner: Matrix  # diag(l) Qᵀ, (J, 1+D): zero beyond the rank of L
    truth_scale: float  # σ_y

    @classmethod
    def of(cls, V: Matrix, own: Vector, prior: float) -> Marginal:
        """Return the marginal of parties with these parameters."""
        scale, truth_scale = np.sqrt(own), float(np.sqrt(prior))
        loadings = np.column_stack([np.full(own.size, truth_scale), V]) / scale[:, None]
        left, values, right = np.linalg.svd(loadings)
        inner = np.zeros_like(loadings)
        inner[: values.size] = values[:, None] * right[: values.size]
        shrink = np.ones(own.size)
        shrink[: values.size] = 1.0 / (1.0 + values**2)
        return cls(scale, left, shrink, inner, truth_scale)

    @property
    def precision(self) -> Matrix:
        """Return Σ⁻¹."""
        turned = self.left / self.scale[:, None]
        precision: Matrix = (turned * self.shrink) @ turned.T
        return precision

    @property
    def applied(self) -> Matrix:
        """Return Σ⁻¹[1, V], (J, 1+D)."""
        applied: Matrix = (self.left * self.shrink) @ self.inner / self.scale[:, None]
        applied[:, 0] /= self.truth_scale
        return applied

    def whitened(self, block: Block) -> Matrix:
        """Return the mean of zzᵀ for z = Σ^(−½)(x − centre), up to a rotation of z: close to the
        identity if the parameters explain the updates."""
        maps = np.empty((self.scale.size, self.scale.size + 1))
        maps[:, :-1] = self.left.T / self.scale
        maps[:, -1] = -self.inner[:, 0] / self.truth_scale  # s⁻¹1 lies in the span of L
        maps *= np.sqrt(self.shrink)[:, None]
        whitened: Matrix = maps @ block.gram @ maps.T
        return whitened
