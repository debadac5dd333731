"""ICOV by variational Bayes: parties err together along a few latent factors.

The model (eq. latent_bias with the priors of the VB section), for each coordinate of each round:

    x_j = y + uᵀv_j + noise,      noise ~ N(0, σ_j²)  (or one σ² for all: the paper's text)
    y ~ N(centre, σ_y²),   u ~ N(0, σ_u² I),   v_j ~ N(0, σ_v² I).

The posterior is approximated by q(y) q(u) q(v), or by q(y, u) q(v), all Gaussian. Each coordinate
of a round is a separate task, so the covariance of (y, u) is shared by all coordinates of rounds
with the same parties, and its mean is linear in the updates: ȳ is a combination of the parties and
the centre with weights that sum to one, ū one with weights that sum to zero. All second moments
then follow from the J×J evidence.

Where this differs from the paper:

- Eq. (latent-vb-error-param2) swaps the covariances of u_i and v_j; here they are in place.
- Eqs. (latent-vb-truth-mean) and (latent-vb-party-mean) depend on each other and are solved
  together, not in turns. The fixed points are the same.

What is returned? Algorithm 2 iterates the equations in its line 3 and returns line 2,

    y = 1ᵀΣ⁻¹x / 1ᵀΣ⁻¹1    with Σ = σ_u² V̄V̄ᵀ + diag(σ²):

generalised least squares with the inferred Σ, weights that sum to one. That is ``estimate="gls"``.
It is not the posterior mean ȳ of the equations, which the prior shrinks to the centre: if the
updates are mostly noise ȳ is close to zero, and gradient steps are too short. ȳ has the least
expected error if the truth does come from the prior: ``estimate="posterior-mean"``.

Factorised or joint? What the parties share can be the truth or a common bias, so a posteriori y and
u are strongly correlated. The factorised posterior ignores that: on data drawn from the model it
understates the noise of parties that err the same way by a fifth and more, and so do its intervals,
while the joint posterior, exact given V, has the right noise and coverage
(tests/estimators/test_recovery.py). But the joint posterior trusts the model: if adversaries send
vectors with nothing of the truth in them, the likeliest explanation is that *they* are right about
a truth near the centre and the honest share a bias. The factorised posterior prefers directions
that cancel in the weighted mean, and stays with the honest. So the paper's is the default, and the
joint one is for sources that all mean well.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from consilience.arrays import Matrix, Positions, Vector
from consilience.beliefs import Beliefs, Latent, with_centre
from consilience.estimators.acceleration import Step, climb
from consilience.estimators.average import latent_gls
from consilience.estimators.ivar import IVAR, LOG_2PI, mean_errors
from consilience.estimators.marginal import Marginal
from consilience.estimators.positive import Cube, inverse
from consilience.evidence import Block, Evidence, pooled_products


@dataclass(frozen=True, eq=False)
class Settings:
    """Which variant of the model, and when to stop."""

    rank: int
    shared: bool  # one σ² for all parties
    joint: bool  # q(y, u), or the paper's q(y) q(u)
    floor: float  # the least variance
    tolerance: float  # of the consensus, as a fraction of the typical distance between parties
    max_iterations: int
    accelerate: bool = True
    least_squares: bool = True  # what is returned: line 2 of Algorithm 2, or ȳ
    prior: float | None = None  # σ_y², where it is not learned


@dataclass(frozen=True, eq=False)
class PartyBeliefs:
    """What all rounds have in common: q(v_j) = N(v̄_j, Ψ_j) and the hyperparameters."""

    mean: Matrix  # v̄, (J, D)
    spread: Cube  # Ψ, (J, D, D)
    own: Vector  # σ_j², (J,)
    prior: float  # σ_y²
    task_scale: float  # σ_u²
    party_scale: float  # σ_v²
    log_spread: float = 0.0  # Σ_j log|Ψ_j|

    @property
    def factors(self) -> Matrix:
        """V̄ σ_u: what Σ is made of."""
        factors: Matrix = self.mean * np.sqrt(self.task_scale)
        return factors

    @property
    def moment(self) -> float:
        """Σ_j E[v_jᵀv_j]."""
        return float((self.mean**2).sum() + np.trace(self.spread, axis1=1, axis2=2).sum())


@dataclass(frozen=True, eq=False)
class Tasks:
    """What is known about the coordinates of one block: q(y, u), as linear maps."""

    weights: Vector  # of ȳ, over the parties and the centre: they sum to one
    covariance: Matrix  # of (y, u), (1+D, 1+D); the paper's λ and Φ_i on its diagonal
    log_determinant: float  # of the covariance
    residuals: Matrix  # x − ȳ of the parties and the centre, (J+1, C): see Block.coordinates
    features: Matrix  # ū, (D, C)

    @property
    def feature_moment(self) -> Matrix:
        """E[uuᵀ], averaged over coordinates."""
        moment: Matrix = self.features @ self.features.T + self.covariance[1:, 1:]
        return moment

    @property
    def truth_moment(self) -> float:
        """E[(y − centre)²], averaged over coordinates."""
        return float(self.residuals[-1] @ self.residuals[-1] + self.covariance[0, 0])


def infer_vb(evidence: Evidence, model: Settings, start: PartyBeliefs | None = None) -> Beliefs:
    """Iterate eqs. (latent-vb-truth-var) to (latent-vb-error-param2) to a stable consensus."""

    def step(state: PartyBeliefs) -> Step[PartyBeliefs]:
        tasks = infer_all_tasks(evidence, state, model)
        watched = [
            weights @ block.coordinates / np.sqrt(block.typical or evidence.least_noise)
            for block, (weights, _) in zip(
                evidence.blocks, consensus(evidence, state, tasks, model), strict=True
            )
        ]
        state = infer_parties(evidence, tasks, state)
        errors = expected_errors(evidence, tasks, state)
        state = fit_scales(evidence, tasks, state, errors, model)
        return Step(state, free_energy(evidence, tasks, state, errors), np.concatenate(watched))

    found = climb(
        step,
        start or first_guess(evidence, model),
        pack=_pack,
        unpack=_unpack,
        tolerance=model.tolerance,
        max_iterations=model.max_iterations,
        depth=6 if model.accelerate else 0,
    )
    state = found.last.state
    ends = consensus(evidence, state, infer_all_tasks(evidence, state, model), model)
    latent = Latent(state.factors, state.own, model.shared, prior_variance=state.prior)
    covariance = latent.covariance
    return Beliefs(
        evidence,
        tuple(weights[:-1] for weights, _ in ends),
        np.sqrt(np.diag(covariance)),
        covariance,
        latent,
        variance=np.array([variance for _, variance in ends]),
        iterations=len(found.objective),
        converged=found.converged,
        objective=found.objective,
    )


def consensus(
    evidence: Evidence, state: PartyBeliefs, tasks: list[Tasks], model: Settings
) -> list[tuple[Vector, float]]:
    """Return each block's weights, of the parties and the centre, and the variance of the consensus
    about the truth: line 2 of Algorithm 2, or ȳ and λ."""
    if not model.least_squares:
        return [(task.weights, float(task.covariance[0, 0])) for task in tasks]
    found = [latent_gls(state.factors[m], state.own[m]) for m in evidence.members]
    return [(np.append(weights, 0.0), variance) for weights, variance in found]


def infer_all_tasks(evidence: Evidence, state: PartyBeliefs, model: Settings) -> list[Tasks]:
    """Return q(y, u) for every block."""
    return [
        infer_tasks(block, state, members, joint=model.joint)
        for block, members in zip(evidence.blocks, evidence.members, strict=True)
    ]


def infer_tasks(block: Block, state: PartyBeliefs, members: Positions, *, joint: bool) -> Tasks:
    """Return q(y, u) for a block's coordinates, given its parties.

    With ℓ_j = (1, v_j), the posterior precision of (y, u) is that of the priors plus
    Σ_j E[ℓ_j ℓ_jᵀ]/σ_j². Its diagonal blocks are the paper's 1/λ_i and Φ_i⁻¹, eqs.
    (latent-vb-truth-var) and (latent-vb-party-var).
    """
    mean, spread, precision = state.mean[members], state.spread[members], 1.0 / state.own[members]
    count, rank = mean.shape
    loadings = np.empty((count, rank + 1))
    loadings[:, 0], loadings[:, 1:] = 1.0, mean
    scaled = loadings * precision[:, None]
    joint_precision = scaled.T @ loadings
    joint_precision[1:, 1:] += (precision @ spread.reshape(count, -1)).reshape(rank, rank)
    diagonal = np.full(rank + 1, 1.0 / state.task_scale)
    diagonal[0] = 1.0 / state.prior
    joint_precision[np.diag_indices(rank + 1)] += diagonal
    covariance, log_determinant = inverse(joint_precision)
    # The means, as weights over the parties and the centre. The centre's follow from
    # C LᵀP1 = e₀ − C e₀/σ_y², without the cancellation in one minus a sum of weights.
    maps = np.empty((rank + 1, count + 1))
    maps[:, :-1] = covariance @ scaled.T
    maps[:, -1] = covariance[:, 0] / state.prior
    means = maps @ block.coordinates
    if not joint:
        covariance = np.zeros_like(covariance)
        covariance[0, 0] = 1.0 / joint_precision[0, 0]
        covariance[1:, 1:], log_determinant = inverse(joint_precision[1:, 1:])
        log_determinant = log_determinant + np.log(covariance[0, 0])
    return Tasks(
        maps[0], covariance, float(log_determinant), block.coordinates - means[0], means[1:]
    )


def infer_parties(evidence: Evidence, tasks: list[Tasks], state: PartyBeliefs) -> PartyBeliefs:
    """Return q(v_j), eqs. (latent-vb-task-var) and (latent-vb-task-mean)."""
    count, rank = state.mean.shape
    moments, errors = np.zeros((count, rank, rank)), np.zeros((count, rank))
    for block, members, task in zip(evidence.blocks, evidence.members, tasks, strict=True):
        moments[members] += block.count * task.feature_moment
        feature_errors = task.residuals[:-1] @ task.features.T  # mean of ū (x_j − ȳ), (J, D)
        errors[members] += block.count * (feature_errors - task.covariance[0, 1:])
    precision = 1.0 / state.own
    spread, log_spread = inverse(
        np.eye(rank) / state.party_scale + precision[:, None, None] * moments
    )
    mean = (spread @ (precision[:, None] * errors)[:, :, None])[:, :, 0]
    return replace(state, mean=mean, spread=spread, log_spread=float(log_spread.sum()))


def expected_errors(evidence: Evidence, tasks: list[Tasks], state: PartyBeliefs) -> Vector:
    """Return the mean of E[(x_j − y − uᵀv_j)²], eq. (latent-vb-error-param2) per party.

    A sum of squares: that of the mean residual x_j − ȳ − ūᵀv̄_j, plus the parts of q(y, u) and of
    q(v_j). Multiplied out, as in the paper, rounding makes it negative for near copies.
    """
    found = []
    for members, task in zip(evidence.members, tasks, strict=True):
        mean = state.mean[members]
        residuals = task.residuals[:-1] - mean @ task.features
        loadings = np.column_stack([np.ones(members.size), mean])
        found.append(
            (residuals**2).sum(axis=1)
            + ((loadings @ task.covariance) * loadings).sum(axis=1)
            + state.spread[members].reshape(members.size, -1) @ task.feature_moment.ravel()
        )
    return mean_errors(evidence, found)


def fit_scales(
    evidence: Evidence, tasks: list[Tasks], state: PartyBeliefs, errors: Vector, model: Settings
) -> PartyBeliefs:
    """Return the hyperparameters that maximise the free energy, eqs. (latent-vb-*-param)."""
    own = errors
    if model.shared:
        own = np.full_like(own, evidence.counts @ own / evidence.counts.sum())
    truth = features = total = 0.0
    for block, task in zip(evidence.blocks, tasks, strict=True):
        total += block.count
        truth += block.count * task.truth_moment
        features += block.count * float(np.trace(task.feature_moment))
    # Without latent factors their scales have no meaning, and any positive number will do.
    task_scale = features / (model.rank * total) if model.rank else 1.0
    party_scale = state.moment / state.mean.size if model.rank else 1.0
    return replace(
        state,
        own=np.maximum(model.floor, own),
        prior=model.prior or max(model.floor, truth / total),
        task_scale=task_scale,
        party_scale=party_scale,
    )


def free_energy(
    evidence: Evidence, tasks: list[Tasks], state: PartyBeliefs, errors: Vector
) -> float:
    """Return F(q) = E[log p(X, y, U, V)] − E[log q], which no iteration lowers."""
    count, rank = state.mean.shape
    total = -evidence.counts @ (LOG_2PI + np.log(state.own) + errors / state.own)
    for block, task in zip(evidence.blocks, tasks, strict=True):
        total += block.count * (
            1 + rank
            + task.log_determinant
            - np.log(state.prior)
            - task.truth_moment / state.prior
            - rank * np.log(state.task_scale)
            - np.trace(task.feature_moment) / state.task_scale
        )  # fmt: skip
    total += count * rank * (1 - np.log(state.party_scale))
    total += state.log_spread - state.moment / state.party_scale
    return float(0.5 * total)


def first_guess(evidence: Evidence, model: Settings) -> PartyBeliefs:
    """Start from the model without latent factors, then take these from its residuals."""
    own, prior, values, vectors = standardised_residuals(evidence, shared=model.shared)
    scale = np.sqrt(own)
    # The largest eigenvalues, less one for the noise of the standardised residuals.
    excess = np.sqrt(np.maximum(values[: model.rank] - 1.0, 0.01))
    mean = scale[:, None] * vectors[:, : model.rank] * excess
    left = np.maximum(own - (mean**2).sum(axis=1), 0.1 * own)
    if model.shared:
        left = np.full_like(left, left.mean())
    spread = np.zeros((own.size, model.rank, model.rank))
    return PartyBeliefs(
        mean,
        spread,
        np.maximum(model.floor, left),
        model.prior or prior,
        1.0,
        float(np.median(own)),
    )


def standardised_residuals(
    evidence: Evidence, *, shared: bool
) -> tuple[Vector, float, Vector, Matrix]:
    """Return σ_j² and σ_y² of the model without latent factors, and the eigenvalues (largest first)
    and vectors of its residual products in units of σ_j. If parties err independently, only chance
    makes one exceed one."""
    if shared:
        weights = [with_centre(block.central_weights) for block in evidence.blocks]
    else:
        independent = IVAR("vb").infer(evidence)
        weights = [with_centre(w) for w in independent.weights]
    products = pooled_products(evidence, weights)
    if shared:
        own = np.full(len(evidence.parties), np.median(np.diag(products)))
        distances = [b.residuals(w)[-1] for b, w in zip(evidence.blocks, weights, strict=True)]
        prior = max(
            float(np.average(distances, weights=[b.count for b in evidence.blocks])), own[0]
        )
    else:
        assert independent.latent is not None
        own, prior = independent.latent.own, independent.latent.prior_variance
    values, vectors = np.linalg.eigh(products / np.outer(np.sqrt(own), np.sqrt(own)))
    return own, prior, values[::-1], vectors[:, ::-1]


def stands_out(beliefs: Beliefs) -> bool:
    """Tell whether updates vary more, in some direction, than the beliefs explain.

    In units of the fitted covariance of x about the centre, the eigenvalues of its sample stay
    below the Marchenko–Pastur edge, (1 + sqrt(J/n))², unless the model lacks something.
    """
    latent = beliefs.latent
    assert latent is not None
    for block, members in zip(beliefs.evidence.blocks, beliefs.evidence.members, strict=True):
        marginal = Marginal.of(latent.factors[members], latent.own[members], latent.prior_variance)
        largest = np.linalg.eigvalsh(marginal.whitened(block))[-1]
        if largest > (1 + np.sqrt(members.size / block.count)) ** 2:
            return True
    return False


def _pack(state: PartyBeliefs) -> Vector:
    # In units of the parties' noise, so that extrapolation does not depend on the updates' unit.
    mean = state.mean / np.sqrt(state.own)[:, None]
    scales = np.log([state.prior, state.task_scale, state.party_scale])
    return np.concatenate([mean.ravel(), np.log(state.own), scales])


def _unpack(packed: Vector, like: PartyBeliefs) -> PartyBeliefs:
    mean = packed[: like.mean.size].reshape(like.mean.shape)
    # Bounded, so that a wild extrapolation is merely bad, and does not overflow.
    own, scales = np.split(np.exp(np.clip(packed[like.mean.size :], -600, 600)), [like.own.size])
    return PartyBeliefs(mean * np.sqrt(own)[:, None], like.spread, own, *map(float, scales))
