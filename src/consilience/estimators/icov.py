"""ICOV: inverse covariance weighting, with a latent factor model of common errors.

The models and their equations are in `icov_vb` (variational Bayes) and `icov_mle` (maximum
likelihood); this module chooses between them, and chooses the rank.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from consilience.arrays import Matrix, Vector
from consilience.beliefs import NOTHING, Beliefs, Given, Known
from consilience.errors import ConsilienceError
from consilience.estimators import icov_mle, icov_vb
from consilience.estimators.degenerate import infer_from_meetings
from consilience.estimators.icov_mle import Kernel, kernel_of
from consilience.estimators.ivar import IVAR, LEAST, Estimate, check_posterior
from consilience.evidence import Evidence


@dataclass(frozen=True)
class ICOV:
    """Inverse covariance weighting: parties also err together, along latent factors.

    Args:
        inference: ``"vb"`` (variational Bayes, Algorithm 2) or ``"mle"`` (maximum likelihood).
        rank: the number of latent factors, the paper's D. ``"auto"`` adds one at a time while the
            evidence for it grows: the free energy of the joint posterior, or the BIC for maximum
            likelihood.
        noise: ``"per-party"`` (Algorithm 2) or ``"shared"``, one for all (the paper's text).
        posterior: of variational Bayes: ``"factorized"`` as in the paper, or ``"joint"`` in the
            truth and the latent factors. The joint one is exact and calibrated if every update
            holds the truth, and misled if some do not.
        estimate: what variational Bayes returns: ``"gls"``, line 2 of Algorithm 2 with weights that
            sum to one, or ``"posterior-mean"``, which the prior shrinks to the centre. None is what
            the paper returns, ``"gls"``.
        prior_variance: fixes σ_y² (variational Bayes only); None learns it.
        kernel: for maximum likelihood, as the three below: a name, a function from V, (J, D), to
            the (J, J) matrix of a Mercer kernel, or a `Kernel` that knows its gradient, too.
        optimizer: ``"sgd"`` climbs one block of evidence at a time. Rounds with the same parties
            are one block: with everybody in every round its steps are those of gradient ascent.
        rate: the step of ``"sgd"``.
        seed: the order in which ``"sgd"`` takes the blocks.
        epsilon: the least variance, as a fraction of half the least positive squared distance
            between two parties.

    >>> import numpy as np
    >>> import consilience as cs
    >>> updates = np.array([[1.0, 2], [1, 3], [2, 2], [2, 3], [90, -90]])
    >>> round(cs.aggregate(updates, cs.ICOV("vb", rank=1)).weights["4"], 2)
    0.0
    """

    inference: Literal["mle", "vb"] = "vb"
    rank: int | Literal["auto"] = "auto"
    noise: Literal["per-party", "shared"] = "per-party"
    posterior: Literal["joint", "factorized"] = "factorized"
    kernel: Literal["linear", "rbf"] | Kernel | Callable[[Matrix], Matrix] = "linear"
    optimizer: Literal["quasi-newton", "sgd"] = "quasi-newton"
    epsilon: float = 1e-6
    tolerance: float = 1e-6
    max_iterations: int = 300
    rate: float = 0.05
    seed: int = 0
    accelerate: bool = True
    estimate: Estimate | None = None
    prior_variance: float | None = None

    remembers = True
    follows = False

    def __post_init__(self) -> None:
        choices = {
            "inference": ("mle", "vb"),
            "noise": ("per-party", "shared"),
            "posterior": ("joint", "factorized"),
            "optimizer": ("quasi-newton", "sgd"),
        }
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                raise ConsilienceError(
                    f"{name} is one of {', '.join(allowed)}; found {getattr(self, name)!r}"
                )
        if self.rank != "auto" and not (isinstance(self.rank, int) and self.rank >= 0):
            raise ConsilienceError(f"rank is 'auto' or a number from 0 up; found {self.rank!r}")
        kernel_of(self.kernel)
        check_posterior(self.inference, self.estimate, self.prior_variance)
        if self.kernel != "linear" and self.inference == "vb":
            raise ConsilienceError(
                "variational Bayes has a linear kernel only; use inference='mle'"
            )

    def infer(self, evidence: Evidence, given: Given = NOTHING) -> Beliefs:
        """Return Φ and its weights. Sample counts are mere claims, and not used."""
        return infer_from_meetings(evidence, lambda met: self._infer(met, given.known))

    def _infer(self, evidence: Evidence, start: Known | None) -> Beliefs:
        # With more factors the likelihood has no maximum; see icov_mle.
        most = max(0, len(evidence.parties) - (2 if self.inference == "mle" else 1))
        if self.rank != "auto":
            return self._fit(evidence, min(self.rank, most), start)
        if self.inference == "mle" or self.posterior == "joint":
            return self._grow(evidence, most, start)[1]
        # The factorised free energy grows with every factor that eases the factorisation. So the
        # joint one, a tighter bound on the same evidence, decides on the rank.
        judge = replace(self, posterior="joint", tolerance=max(self.tolerance, 1e-4))
        rank, independent = judge._grow(evidence, most, start)
        return self._fit(evidence, rank, start) if rank else independent

    def _grow(self, evidence: Evidence, most: int, start: Known | None) -> tuple[int, Beliefs]:
        """Return the rank with the best score and its fit, adding factors until the score falls."""
        best = self._fit(evidence, 0, start)
        for rank in range(1, most + 1):
            if self.inference == "vb" and not icov_vb.stands_out(best):
                return rank - 1, best
            richer = self._fit(evidence, rank, start)
            if _score(richer, rank) <= _score(best, rank - 1):
                return rank - 1, best
            best = richer
        return most, best

    def _fit(self, evidence: Evidence, rank: int, start: Known | None) -> Beliefs:
        """Fit a rank, or the next lower one that is numerically possible: no party's extremes may
        end a round."""
        fit = self._maximum_likelihood if self.inference == "mle" else self._variational
        try:
            return fit(evidence, rank, start)
        except np.linalg.LinAlgError:
            if rank == 0:
                raise
            return self._fit(evidence, rank - 1, start)

    def _variational(self, evidence: Evidence, rank: int, start: Known | None) -> Beliefs:
        if rank == 0 and self.noise == "per-party":
            independent = IVAR(
                "vb",
                epsilon=self.epsilon,
                prior_variance=self.prior_variance,
                estimate=self.estimate or "gls",
            )
            return independent.infer(evidence, Given(known=start))
        model = icov_vb.Settings(
            rank,
            shared=self.noise == "shared",
            joint=self.posterior == "joint",
            floor=self.epsilon * evidence.least_noise,
            tolerance=self.tolerance,
            max_iterations=self.max_iterations,
            accelerate=self.accelerate,
            least_squares=self.estimate != "posterior-mean",
            prior=self.prior_variance,
        )
        known = _known(evidence, rank, start)
        if known is None:
            return icov_vb.infer_vb(evidence, model)
        guess = icov_vb.first_guess(evidence, model)
        factors, own = known
        warm = icov_vb.PartyBeliefs(factors, guess.spread, own, guess.prior, 1.0, guess.party_scale)
        return icov_vb.infer_vb(evidence, model, warm)

    def _maximum_likelihood(self, evidence: Evidence, rank: int, start: Known | None) -> Beliefs:
        shared = self.noise == "shared"
        likelihood = icov_mle.Likelihood(evidence, kernel_of(self.kernel), rank, shared=shared)
        guess = icov_mle.closed_form(evidence, rank) if shared else _amid(evidence, rank)
        # A smaller one would make Φ singular to working precision.
        squares = (guess.V**2).sum(axis=1)
        floor = np.maximum(
            self.epsilon * evidence.least_noise, 1e-13 * (squares.sum() if shared else squares)
        ) * np.ones(len(squares))
        known = _known(evidence, rank, start) if self.kernel == "linear" else None
        if known is not None:
            guess = icov_mle.Parameters(known[0], 1.0, known[1])
        # σ_u² has the unit of the updates and V has none, so that no step depends on it.
        unit = float(np.median(guess.own))
        guess = icov_mle.Parameters(guess.V / np.sqrt(unit), unit, guess.own)
        if known is None and self.optimizer == "sgd":
            random = np.random.default_rng(self.seed)
            guess = replace(guess, V=random.standard_normal(guess.V.shape))
        vector = likelihood.pack(guess)
        if self.optimizer == "sgd":
            found = icov_mle.stochastic_gradient(
                likelihood,
                vector,
                floor=floor,
                rate=self.rate,
                steps=self.max_iterations,
                seed=self.seed,
            )
        else:
            found = icov_mle.quasi_newton(
                likelihood,
                vector,
                floor=floor,
                tolerance=1e-10,
                max_iterations=self.max_iterations,
            )
        return icov_mle.beliefs_of(likelihood, *found)


def _amid(evidence: Evidence, rank: int) -> icov_mle.Parameters:
    """Return where to start with noise per party: amid most parties. The closed form for shared
    noise is about the plain mean, which one party can put anywhere."""
    model = icov_vb.Settings(rank, False, False, floor=0.0, tolerance=0.0, max_iterations=1)
    guess = icov_vb.first_guess(evidence, model)
    return icov_mle.Parameters(guess.mean, 1.0, guess.own)


def _score(beliefs: Beliefs, rank: int) -> float:
    """Return how well a rank explains: the free energy, or for maximum likelihood the BIC."""
    if beliefs.variance is not None:
        return beliefs.objective[-1]
    size = len(beliefs.parties)
    free = size * rank - rank * (rank - 1) / 2
    count = sum(block.count for block in beliefs.evidence.blocks)
    return beliefs.objective[-1] - 0.5 * free * float(np.log(max(count, 2.0)))


def _known(evidence: Evidence, rank: int, start: Known | None) -> tuple[Matrix, Vector] | None:
    """Return V and σ_j² from earlier beliefs of the same rank; newcomers start like the median."""
    latent = None if start is None else start.latent
    if start is None or latent is None or latent.factors.shape[1] != rank:
        return None
    position = {party: j for j, party in enumerate(start.parties)}
    factors = np.zeros((len(evidence.parties), rank))
    own = np.full(len(evidence.parties), np.nan)
    for j, party in enumerate(evidence.parties):
        at = position.get(party)
        if at is not None and LEAST <= latent.own[at] < np.inf:
            factors[j], own[j] = latent.factors[at], latent.own[at]
    if not np.isfinite(own).any():
        return None
    return factors, np.where(np.isfinite(own), own, np.nanmedian(own))
