"""Averages: weights that are given, not inferred.

If the noise is known there is nothing to infer: the maximum likelihood estimate of the truth is a
weighted mean with known weights (eqs. ind_mle, fedavg, icov:1, overlap).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from consilience.arrays import Matrix, Vector
from consilience.beliefs import NOTHING, Beliefs, Given, uniform, with_centre
from consilience.errors import ConsilienceError
from consilience.evidence import Block, Evidence, pooled_products


class BlockByBlock(ABC):
    """A rule without a noise model, which weighs the parties of each block separately."""

    remembers = False
    follows = False

    def infer(self, evidence: Evidence, given: Given = NOTHING) -> Beliefs:
        """Return the weights of each block's parties."""
        return about_consensus(evidence, tuple(self.weigh(block) for block in evidence.blocks))

    @abstractmethod
    def weigh(self, block: Block) -> Vector:
        """Return the weights of one block's parties."""


@dataclass(frozen=True)
class Mean:
    """The plain mean, or with sample counts the mean weighted by them, eq. (fedavg).

    >>> import consilience as cs
    >>> counts = {"ann": 3, "bob": 1}
    >>> cs.aggregate({"ann": [1.0], "bob": [5.0]}, cs.Mean(), sample_counts=counts).weights
    {'ann': 0.75, 'bob': 0.25}
    """

    remembers = False
    follows = False

    def infer(self, evidence: Evidence, given: Given = NOTHING) -> Beliefs:
        """Return the given weights."""
        weights = tuple(shares(block.parties, given.sample_counts) for block in evidence.blocks)
        return about_consensus(evidence, weights)


@dataclass(frozen=True, eq=False)
class GivenCovariance:
    """The maximum likelihood truth for a known covariance Φ of the parties' noise, eq. (icov:1).

    ``covariance`` is in the order of ``parties``. With a diagonal Φ this is inverse variance
    weighting with known variances.

    >>> import consilience as cs
    >>> method = cs.GivenCovariance([[1.0, 0.0], [0.0, 3.0]], ["ann", "bob"])
    >>> cs.aggregate({"ann": [1.0], "bob": [5.0]}, method).weights
    {'ann': 0.75, 'bob': 0.25}
    """

    covariance: npt.ArrayLike
    parties: Sequence[str]

    remembers = False
    follows = False

    def infer(self, evidence: Evidence, given: Given = NOTHING) -> Beliefs:
        """Return the weights that follow from Φ."""
        known = np.asarray(self.covariance, float)
        position = {party: j for j, party in enumerate(self.parties)}
        if known.shape != (len(position), len(position)):
            raise ConsilienceError(
                f"expected a covariance for {len(position)} parties, found shape {known.shape}"
            )
        unknown = [party for party in evidence.parties if party not in position]
        if unknown:
            raise ConsilienceError(f"no covariance was given for party {unknown[0]}")
        order = [position[party] for party in evidence.parties]
        covariance = known[np.ix_(order, order)]
        try:
            weights = tuple(gls_weights(covariance[np.ix_(m, m)]) for m in evidence.members)
        except np.linalg.LinAlgError:
            raise ConsilienceError("the covariance is singular: no unique weights follow") from None
        return Beliefs(evidence, weights, np.sqrt(np.diag(covariance)), covariance)


def gls_weights(covariance: Matrix) -> Vector:
    """Return Φ⁻¹1 / 1ᵀΦ⁻¹1: the weights of the truth given the covariance, eq. (icov:1)."""
    # In units of each party's own deviation, so that a large scale does not cost others' precision.
    variances = np.diag(covariance)
    if not (variances > 0).all():
        raise np.linalg.LinAlgError("a party without noise")
    scale = np.sqrt(variances)
    weights = np.linalg.solve(covariance / np.outer(scale, scale), 1.0 / scale) / scale
    shares: Vector = weights / weights.sum()
    return shares


def latent_gls(factors: Matrix, own: Vector) -> tuple[Vector, float]:
    """Return the weights of eq. (icov:1) for Φ = VVᵀ + diag(σ²), and 1/1ᵀΦ⁻¹1: the variance of
    their mean about the truth.

    By least squares in y and u, which is equivalent and never forms Φ: near copies, with tiny σ_j²,
    make Φ singular to working precision.
    """
    size, rank = factors.shape
    scale = np.sqrt(own)
    rows = np.zeros((size + rank, rank + 1))
    rows[:size, :rank], rows[:size, rank] = factors / scale[:, None], 1.0 / scale
    rows[size:, :rank] = np.eye(rank)
    order = np.argsort(-np.abs(rows).max(axis=1), kind="stable")  # precise for rows of any length
    turned, triangle = np.linalg.qr(rows[order])
    last = np.empty(size + rank)
    last[order] = turned[:, rank]
    weights = last[:size] / scale
    shares: Vector = weights / weights.sum()
    return shares, float(triangle[rank, rank]) ** -2


def least_squares(beliefs: Beliefs) -> Beliefs:
    """Return beliefs whose consensus is the generalised least squares estimate with the inferred
    covariance, line 2 of Algorithm 2, instead of the posterior mean."""
    latent = beliefs.latent
    assert latent is not None
    found = [latent_gls(latent.factors[m], latent.own[m]) for m in beliefs.evidence.members]
    return replace(
        beliefs,
        weights=tuple(weights for weights, _ in found),
        variance=np.array([variance for _, variance in found]),
    )


def overlap_covariance(overlaps: npt.ArrayLike, variance: float = 1.0) -> Matrix:
    """Return Φ where parties average samples that overlap, eq. (overlap).

    ``overlaps[j, l]`` is the number of samples that parties j and l have in common; the diagonal is
    each party's own number. ``variance`` is that of one sample.

    >>> overlap_covariance([[2, 1], [1, 2]]).tolist()
    [[0.5, 0.25], [0.25, 0.5]]
    """
    shared = np.asarray(overlaps, float)
    if shared.ndim != 2 or shared.shape[0] != shared.shape[1] or not (shared == shared.T).all():
        raise ConsilienceError("overlaps must be a symmetric (J, J) matrix of sample counts")
    sizes = np.diag(shared)
    if (sizes <= 0).any() or (shared > np.minimum.outer(sizes, sizes)).any() or (shared < 0).any():
        raise ConsilienceError("an overlap must lie between zero and both parties' sample counts")
    covariance: Matrix = variance * shared / np.outer(sizes, sizes)
    return covariance


def precision_weighted_mean(
    updates: Sequence[npt.ArrayLike], precisions: Sequence[npt.ArrayLike]
) -> npt.NDArray[Any]:
    """Return the maximum likelihood truth for known noise covariances Σ_j, eq. (ind_mle).

    Each update is a vector of K coordinates; its precision Σ_j⁻¹ is a number, a vector of K (a
    diagonal), or a (K, K) matrix. For least squares on local data (the paper's Example 2) it is
    H_jᵀH_j, up to a common factor.

    >>> precision_weighted_mean([[1.0, 2.0], [3.0, 4.0]], [1, 3]).tolist()
    [2.5, 3.5]
    """
    vectors = [np.asarray(update, float).reshape(-1) for update in updates]
    matrices = [np.asarray(precision, float) for precision in precisions]
    if not vectors or len(vectors) != len(matrices):
        raise ConsilienceError(f"{len(vectors)} updates but {len(matrices)} precisions")
    size = vectors[0].size
    for j, (vector, matrix) in enumerate(zip(vectors, matrices, strict=True)):
        if vector.size != size or matrix.shape not in {(), (size,), (size, size)}:
            raise ConsilienceError(
                f"party {j}: an update of {vector.size} coordinates with a precision of shape "
                f"{matrix.shape}; expected {size} and (), ({size},) or ({size}, {size})"
            )
    if all(matrix.ndim < 2 for matrix in matrices):
        total = sum(matrices, np.zeros(size))
        return sum((m * v for m, v in zip(matrices, vectors, strict=True)), np.zeros(size)) / total
    full = [m if m.ndim == 2 else np.diag(np.broadcast_to(m, size)) for m in matrices]
    pulled = sum((m @ v for m, v in zip(full, vectors, strict=True)), np.zeros(size))
    return np.linalg.solve(sum(full, np.zeros((size, size))), pulled)


def shares(parties: Sequence[str], sample_counts: Mapping[str, float] | None) -> Vector:
    """Return each party's share of the samples, or equal shares if no counts are given."""
    if sample_counts is None:
        return uniform(len(parties))
    counts = np.array([sample_counts[party] for party in parties], float)
    counts /= counts.max()  # the sum of claimed counts may overflow
    share: Vector = counts / counts.sum()
    return share


def about_consensus(evidence: Evidence, weights: tuple[Vector, ...], **how: Any) -> Beliefs:
    """Return beliefs for a method without a noise model: residuals about the consensus."""
    products = pooled_products(evidence, [with_centre(w) for w in weights])
    noise = np.sqrt(np.maximum(np.diag(products), 0.0))
    if all(len(block.parties) == 1 for block in evidence.blocks):
        noise = np.full_like(noise, np.nan)
    return Beliefs(evidence, weights, noise, **how)
