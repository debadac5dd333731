"""IVAR: every party has a noise level of its own, and parties err independently.

The model (Assumption 2 with a diagonal Φ): in round i, coordinate by coordinate,

    x_ij = y_i + noise,   noise ~ N(0, σ_j²),   σ_j the same in every round and coordinate.

*Maximum likelihood* (Algorithm 1) alternates between the truth given the noise levels,
eq. (inverseVariance), and the noise levels given the truth, eq. (mle_sigma). Its likelihood is
unbounded: as y → x_j, σ_j → 0. The floor ε only keeps it finite: two parties that send the same
vector are trusted completely.

*Variational Bayes* puts a prior y_i ~ N(centre, τ²) on the truth and integrates it out, eqs.
(ind-vb-*). The prior acts as one more party, at the centre and with noise τ: that is why the centre
is a point of the evidence like the parties.

What is returned? Algorithm 1 returns the normalised mean of eq. (inverseVariance). About
variational Bayes the paper says that it "aggregates using the posterior mean ȳ", which the prior
shrinks to the centre: if updates are mostly noise it is close to zero. That has the least expected
error if the truth comes from the prior. But a gradient step needs its full length:
``estimate="gls"`` returns eq. (inverseVariance) with the inferred σ_j², weights that sum to one.

With two parties only the sum of the noise levels is observable, and maximum likelihood starts, and
stays, at equal weights; variational Bayes has the centre as a third point, and tells them apart by
their distance from it. With three, maximum likelihood converges slowly (its map has slope one).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from consilience.arrays import Vector
from consilience.beliefs import NOTHING, Beliefs, Given, Known, Latent, uniform
from consilience.errors import ConsilienceError
from consilience.estimators.average import least_squares
from consilience.estimators.degenerate import infer_from_meetings
from consilience.evidence import Evidence, residuals

Estimate = Literal["gls", "posterior-mean"]

LOG_2PI = float(np.log(2 * np.pi))
LEAST = float(np.finfo(float).tiny)  # the inverse of a smaller variance overflows


@dataclass(frozen=True)
class IVAR:
    """Inverse variance weighting: each party has its own noise.

    Args:
        inference: ``"vb"`` (variational Bayes) or ``"mle"`` (maximum likelihood, Algorithm 1).
        epsilon: the least σ_j², as a fraction of half the least positive squared distance between
            two parties: Algorithm 1's ε, made independent of units.
        prior_variance: fixes τ² (variational Bayes only); None learns it, eq. (ind-vb-truth-param).
        tolerance: iteration stops when no log σ_j² moves by more than this.
        max_iterations: the most iterations.
        estimate: what is returned: ``"gls"``, weights that sum to one, or ``"posterior-mean"``
            (variational Bayes only), where the centre has the rest of the weight. None is what the
            paper returns: ``"gls"`` for maximum likelihood, ``"posterior-mean"`` for variational
            Bayes.

    >>> import numpy as np
    >>> import consilience as cs
    >>> updates = np.array([[1.0, 2], [1, 3], [2, 2], [2, 3], [90, -90]])
    >>> round(cs.aggregate(updates, cs.IVAR("vb", estimate="gls")).weights["4"], 2)
    0.0
    """

    inference: Literal["mle", "vb"] = "vb"
    epsilon: float = 1e-6
    prior_variance: float | None = None
    tolerance: float = 1e-8
    max_iterations: int = 500
    estimate: Estimate | None = None

    remembers = True
    follows = False

    def __post_init__(self) -> None:
        if self.inference not in ("mle", "vb"):
            raise ConsilienceError(f"inference is 'mle' or 'vb', found {self.inference!r}")
        check_posterior(self.inference, self.estimate, self.prior_variance)

    def infer(self, evidence: Evidence, given: Given = NOTHING) -> Beliefs:
        """Return noise levels and weights. Sample counts are mere claims, and not used."""
        vb = self.inference == "vb"
        iterate = self._variational if vb else self._maximum_likelihood

        def infer(met: Evidence) -> Beliefs:
            beliefs = iterate(met, initial_noise(met, given.known))
            return least_squares(beliefs) if self.estimate == "gls" and vb else beliefs

        return infer_from_meetings(evidence, infer)

    def _maximum_likelihood(self, evidence: Evidence, variance: Vector) -> Beliefs:
        floor = self.epsilon * evidence.least_noise
        objective: list[float] = []
        for _ in range(self.max_iterations):
            weights = tuple(truth_weights(variance[m]) for m in evidence.members)
            errors = tuple(
                residuals(block.distances[:-1, :-1], w)
                for block, w in zip(evidence.blocks, weights, strict=True)
            )
            mean = mean_errors(evidence, errors)
            previous, variance = variance, np.maximum(floor, mean)
            objective.append(log_likelihood(evidence, mean, variance))
            change = np.abs(np.log(variance / previous)).max()
            if change <= self.tolerance:
                break
        return Beliefs(
            evidence,
            weights,
            np.sqrt(variance),
            np.diag(variance),
            Latent(np.zeros((variance.size, 0)), variance),
            iterations=len(objective),
            converged=bool(change <= self.tolerance),
            objective=tuple(objective),
        )

    def _variational(self, evidence: Evidence, variance: Vector) -> Beliefs:
        floor = self.epsilon * evidence.least_noise
        counts = np.array([block.count for block in evidence.blocks])
        coordinates = sum(block.count for block in evidence.blocks)
        prior = self.prior_variance or initial_prior(evidence)
        objective: list[float] = []
        for _ in range(self.max_iterations):
            truth_variances, weights, errors, about_centre = [], [], [], 0.0
            for block, members in zip(evidence.blocks, evidence.members, strict=True):
                precision = 1.0 / variance[members]
                truth_variance = 1.0 / (1.0 / prior + precision.sum())  # eq. (ind-vb-truth-var)
                w = truth_variance * precision  # eq. (ind-vb-truth-mean)
                r = block.residuals(np.append(w, truth_variance / prior)) + truth_variance
                truth_variances.append(truth_variance)
                weights.append(w)
                errors.append(r[:-1])
                about_centre += block.count * float(r[-1])
            if self.prior_variance is None:
                prior = max(floor, about_centre / coordinates)  # eq. (ind-vb-truth-param)
            mean = mean_errors(evidence, errors)
            previous, variance = variance, np.maximum(floor, mean)  # eq. (ind-vb-error-param)
            objective.append(
                log_likelihood(evidence, mean, variance)
                - 0.5 * (coordinates * (LOG_2PI + np.log(prior)) + about_centre / prior)
                + 0.5 * float(counts @ (LOG_2PI + 1 + np.log(truth_variances)))
            )
            change = np.abs(np.log(variance / previous)).max()
            if change <= self.tolerance:
                break
        return Beliefs(
            evidence,
            tuple(weights),
            np.sqrt(variance),
            np.diag(variance),
            Latent(np.zeros((variance.size, 0)), variance, prior_variance=prior),
            variance=np.array(truth_variances),
            iterations=len(objective),
            converged=bool(change <= self.tolerance),
            objective=tuple(objective),
        )


def check_posterior(inference: str, estimate: str | None, prior_variance: float | None) -> None:
    """Refuse options that only variational Bayes has, and meaningless values."""
    if estimate not in (None, "gls", "posterior-mean"):
        raise ConsilienceError(f"estimate is 'gls' or 'posterior-mean', found {estimate!r}")
    if prior_variance is not None and not 0 < prior_variance < np.inf:
        raise ConsilienceError(f"prior_variance is a positive number, found {prior_variance!r}")
    if inference == "mle" and (estimate == "posterior-mean" or prior_variance is not None):
        raise ConsilienceError(
            "maximum likelihood has no prior and no posterior; use inference='vb'"
        )


def truth_weights(variance: Vector) -> Vector:
    """Return the weights of the truth given the noise levels, eq. (inverseVariance)."""
    precision = 1.0 / variance
    weights: Vector = precision / precision.sum()
    return weights


def mean_errors(evidence: Evidence, errors: tuple[Vector, ...] | list[Vector]) -> Vector:
    """Average each party's squared error over its rounds: Algorithm 1, second line."""
    if len(errors) == 1:
        return errors[0]
    total = np.zeros(len(evidence.parties))
    for block, members, error in zip(evidence.blocks, evidence.members, errors, strict=True):
        total[members] += block.count * error
    mean: Vector = total / evidence.counts
    return mean


def log_likelihood(evidence: Evidence, errors: Vector, variance: Vector) -> float:
    """Return log p(X | y, σ²) for the parties' mean squared errors, or its expectation if these are
    expected ones."""
    total = evidence.counts @ (LOG_2PI + np.log(variance) + errors / variance)
    return float(-0.5 * total)


def initial_noise(evidence: Evidence, start: Known | None) -> Vector:
    """Return σ_j² to start from: equal for a first round, else what is known about a party.

    A newcomer starts at the median of the known.
    """
    if start is not None and start.latent is not None:
        known = dict(zip(start.parties, start.latent.own, strict=True))
        here = np.array([known.get(party, np.nan) for party in evidence.parties])
        here[here < LEAST] = np.nan
        if np.isfinite(here).any():
            return np.where(np.isfinite(here), here, np.nanmedian(here))
    return np.full(len(evidence.parties), typical_noise(evidence))


def typical_noise(evidence: Evidence) -> float:
    """Return the mean squared residual from the plain mean: the noise if it is equal for all."""
    errors = [residuals(b.distances[:-1, :-1], uniform(len(b.parties))) for b in evidence.blocks]
    return float(np.mean(mean_errors(evidence, errors)))


def initial_prior(evidence: Evidence) -> float:
    """Return τ² to start from: the mean squared distance of the plain mean from the centre."""
    total = count = 0.0
    for block in evidence.blocks:
        plain = np.append(uniform(len(block.parties)), 0.0)
        total += block.count * float(residuals(block.distances, plain)[-1])
        count += block.count
    return max(total / count, evidence.least_noise)
