"""ICOV by maximum likelihood: the covariance of the parties' noise has few latent factors.

The model (section ICOV of the paper): coordinate by coordinate x = y1 + δ, δ ~ N(0, Φ) with

    Φ = σ_u² k(V) + diag(σ²),     k(V)_jl = v_jᵀv_l, or any Mercer kernel of v_j and v_l.

The truth is profiled out, ŷ = XΦ⁻¹1 / 1ᵀΦ⁻¹1 (eq. icov:1), and the rest climbs the log-likelihood
Σ −log|Φ| − tr(Φ⁻¹R), R the residual products. R is J×J, so what was expensive is small algebra.

What the maximum is. With a linear kernel, one σ² and all parties in every round, write V = CA + 1b
with C orthogonal to 1. The likelihood depends on b only through log 1ᵀΦ⁻¹1, which is largest at
b = 0; then Φ1 ∝ 1 and the weights are **equal**: the maximum likelihood consensus is the plain
mean, whatever the parties sent. Only differences between parties are observed, and a common bias
cannot be told from the truth. The maximum has a closed form, from which the search starts: with l_d
the eigenvalues of R about the plain mean, largest first, σ² = Σ_{d>D} l_d / (J − D), and the
columns of V are the first D eigenvectors times sqrt(l_d − σ²). Partial participation, other
kernels, noise per party and a search that stops early all break this symmetry.

With a rank of J − 1 the likelihood is unbounded (σ² → 0), so the rank is at most J − 2. With noise
per party it is unbounded at any rank, as for IVAR: as y → x_j, v_j and σ_j → 0. The search then
often ends with a party at the floor, which takes over the consensus.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from consilience.arrays import Matrix, Vector
from consilience.beliefs import Beliefs, Latent, uniform, with_centre
from consilience.errors import ConsilienceError
from consilience.estimators.average import gls_weights
from consilience.estimators.ivar import LOG_2PI, typical_noise
from consilience.estimators.positive import inverse
from consilience.evidence import Evidence, pooled_products, residual_products

# A log-likelihood per coordinate that rises by less than this per unit of any parameter is flat.
FLAT = 1e-4


@dataclass(frozen=True)
class Kernel:
    """A Mercer kernel: a function from V, (J, D), to k(V), (J, J), and its gradient.

    ``backward`` takes V, k(V) and dE/dk and returns dE/dV, for any function E of k(V). Without it
    the gradient is computed by differences, at 2JD evaluations of the kernel each.

    >>> import consilience as cs
    >>> linear = cs.Kernel(lambda v: v @ v.T, lambda v, k, slope: (slope + slope.T) @ v)
    >>> cs.ICOV("mle", kernel=linear, rank=1).rank
    1
    """

    value: Callable[[Matrix], Matrix]
    backward: Callable[[Matrix, Matrix, Matrix], Matrix] | None = None

    def of(self, V: Matrix) -> Matrix:
        """Return k(V); raise if it is not a Mercer kernel."""
        k = np.array(self.value(V), float)  # a copy: the caller adds to it
        size = len(V)
        if k.shape != (size, size):
            raise ConsilienceError(
                f"the kernel returned shape {k.shape} for {size} parties, expected {(size, size)}"
            )
        if not np.isfinite(k).all():
            if not np.isfinite(V).all():
                raise np.linalg.LinAlgError("the search left the numbers")
            raise ConsilienceError("the kernel returned NaN or infinity; expected finite numbers")
        return k

    def slope(self, V: Matrix, k: Matrix, outer: Matrix) -> Matrix:
        """Return dE/dV, given dE/dk."""
        if self.backward is not None:
            return self.backward(V, k, outer)
        slopes = np.empty_like(V)
        for at in np.ndindex(*V.shape):
            step = np.zeros_like(V)
            step[at] = 6e-6 * (1.0 + abs(V[at]))  # about the cube root of the rounding error
            rise = outer * (self.of(V + step) - self.of(V - step))
            slopes[at] = rise.sum() / (2 * step[at])
        return slopes


def _rbf(V: Matrix) -> Matrix:
    squares = (V**2).sum(axis=1)
    kernel: Matrix = np.exp(-0.5 * np.maximum(squares[:, None] + squares - 2 * V @ V.T, 0.0))
    return kernel


def _rbf_backward(V: Matrix, kernel: Matrix, outer: Matrix) -> Matrix:
    pull = 2 * outer * kernel
    slope: Matrix = pull @ V - pull.sum(axis=1)[:, None] * V
    return slope


KERNELS = {
    "linear": Kernel(lambda V: V @ V.T, lambda V, _, outer: 2 * outer @ V),
    "rbf": Kernel(_rbf, _rbf_backward),
}


def kernel_of(chosen: Any) -> Kernel:
    """Return a kernel given by name, as a function or as such; refuse what is no Mercer kernel."""
    if isinstance(chosen, str) and chosen in KERNELS:
        return KERNELS[chosen]
    kernel = chosen if isinstance(chosen, Kernel) else Kernel(chosen)
    if not callable(kernel.value):
        raise ConsilienceError(
            f"kernel is one of {', '.join(KERNELS)}, a function of V or a Kernel; found {chosen!r}"
        )
    V = np.random.default_rng(0).standard_normal((5, 2))
    k = kernel.of(V)
    least = np.linalg.eigvalsh(0.5 * (k + k.T))[0]
    if not np.allclose(k, k.T) or least < -1e-8 * np.abs(k).max():
        raise ConsilienceError(
            "the kernel is no Mercer kernel: its matrix is not symmetric and positive semi-definite"
        )
    return kernel


@dataclass(frozen=True, eq=False)
class Parameters:
    """V, σ_u² and σ² (one per party; all equal if the noise is shared)."""

    V: Matrix  # (J, D)
    task_scale: float  # σ_u²
    own: Vector  # σ_j², (J,)

    def covariance(self, kernel: Kernel) -> Matrix:
        """Return Φ."""
        phi: Matrix = self.task_scale * kernel.of(self.V)
        phi[np.diag_indices_from(phi)] += self.own
        return phi


def gradients(
    parameters: Parameters, kernel: Kernel, products: Matrix
) -> tuple[float, Matrix, float, Vector]:
    """Return E_i of one round per coordinate, and its gradients in V, σ_u² and σ_j²: eq. (sgd).

    ``products`` is the mean of δδᵀ over coordinates for the current y. Since y maximises the
    likelihood given Φ, these are also the gradients with y profiled out.
    """
    k = kernel.of(parameters.V)
    phi = parameters.task_scale * k
    phi[np.diag_indices_from(phi)] += parameters.own
    inverted, log_determinant = inverse(phi)
    value = float(log_determinant) - float((inverted * products).sum())
    G = inverted @ products @ inverted - inverted
    outer = parameters.task_scale * G
    to_features = kernel.slope(parameters.V, k, outer)
    return value, to_features, float((G * k).sum()), np.diag(G).copy()


@dataclass(frozen=True, eq=False)
class Likelihood:
    """The likelihood of all rounds as a function of one vector: V, log σ_u², log σ²."""

    evidence: Evidence
    kernel: Kernel
    rank: int
    shared: bool

    def unpack(self, vector: Vector) -> Parameters:
        """Return the parameters of a vector."""
        size = len(self.evidence.parties)
        own = np.exp(vector[size * self.rank + 1 :])
        return Parameters(
            vector[: size * self.rank].reshape(size, self.rank),
            float(np.exp(vector[size * self.rank])),
            np.full(size, own[0]) if self.shared else own,
        )

    def pack(self, parameters: Parameters) -> Vector:
        """Return the vector of the parameters."""
        own = parameters.own[:1] if self.shared else parameters.own
        return np.concatenate([parameters.V.ravel(), [np.log(parameters.task_scale)], np.log(own)])

    def block(self, vector: Vector, b: int) -> tuple[float, Vector]:
        """Return one block's log-likelihood per coordinate and its gradient."""
        parameters, members = self.unpack(vector), self.evidence.members[b]
        part = Parameters(parameters.V[members], parameters.task_scale, parameters.own[members])
        gram = self.evidence.blocks[b].gram[:-1, :-1]
        products = residual_products(gram, gls_weights(part.covariance(self.kernel)))
        value, to_features, to_scale, to_own = gradients(part, self.kernel, products)
        V = np.zeros_like(parameters.V)
        V[members] = to_features
        own = np.zeros_like(parameters.own)
        own[members] = to_own * part.own
        tail = [own.sum()] if self.shared else own
        return value, np.concatenate([V.ravel(), [to_scale * part.task_scale], tail])

    def total(self, vector: Vector) -> tuple[float, Vector]:
        """Return the log-likelihood of all blocks, and its gradient."""
        value, slope = 0.0, np.zeros_like(vector)
        for b, block in enumerate(self.evidence.blocks):
            v, g = self.block(vector, b)
            value += 0.5 * block.count * (v - len(block.parties) * LOG_2PI)
            slope += 0.5 * block.count * g
        return value, slope


def quasi_newton(
    likelihood: Likelihood, start: Vector, *, floor: Vector, tolerance: float, max_iterations: int
) -> tuple[Vector, list[float], bool]:
    """Climb by L-BFGS; the likelihood never falls from iteration to iteration. ``floor`` is the
    least variance of each party."""
    from scipy.optimize import minimize  # here, as its import takes longer than all others

    features = len(likelihood.evidence.parties) * likelihood.rank
    # A variance far above the parties' differences explains nothing, and a wild step overflows.
    least = np.log(np.append(floor.min(), floor[: start.size - features - 1]))
    most = np.maximum(np.log(1e6 * typical_noise(likelihood.evidence)), least)
    start = np.append(start[:features], np.clip(start[features:], least, most))
    bounds: list[Any] = [(None, None)] * features + list(zip(least, most, strict=True))
    if likelihood.kernel is KERNELS["linear"]:
        bounds[features] = (start[features], start[features])  # σ_u² is redundant: V includes it
    objective = [likelihood.total(start)[0]]
    unit = 1.0 / sum(block.count for block in likelihood.evidence.blocks)

    def descend(vector: Vector) -> tuple[float, Vector]:
        value, slope = likelihood.total(vector)
        return -unit * value, -unit * slope

    def note(intermediate_result: Any) -> None:
        objective.append(-float(intermediate_result.fun) / unit)

    found = minimize(
        descend,
        start,
        jac=True,
        method="L-BFGS-B",
        bounds=bounds,
        callback=note,
        options={"maxiter": max_iterations, "ftol": tolerance, "gtol": tolerance},
    )
    return found.x, objective, bool(found.success)


def stochastic_gradient(
    likelihood: Likelihood, start: Vector, *, floor: Vector, rate: float, steps: int, seed: int
) -> tuple[Vector, list[float], bool]:
    """Climb as the paper does: a step along eq. (sgd) for one round at a time, drawn by its size.

    The steps are in log σ², so that it stays positive, with a rate that decreases as 1/(1 + t/100).
    Rounds with the same parties are one block of the evidence and one step; with full participation
    that is all of it, and this is plain gradient ascent. It has converged when the log-likelihood
    per coordinate of all rounds is flat: no slope above `FLAT`.
    """
    random = np.random.default_rng(seed)
    counts = np.array([block.count for block in likelihood.evidence.blocks])
    vector, objective = start.copy(), [likelihood.total(start)[0]]
    features = len(likelihood.evidence.parties) * likelihood.rank
    least = np.log(floor[: start.size - features - 1])
    drawn = random.choice(counts.size, size=steps, p=counts / counts.sum())
    for t, b in enumerate(drawn):
        vector += rate / (1 + t / 100) * likelihood.block(vector, int(b))[1]
        vector[features + 1 :] = np.maximum(vector[features + 1 :], least)
        value, slope = likelihood.total(vector)
        objective.append(value)
        slope[features + 1 :][(vector[features + 1 :] <= least) & (slope[features + 1 :] < 0)] = 0.0
        if np.abs(slope).max() <= FLAT * counts.sum():
            return vector, objective, True
    return vector, objective, False


def closed_form(evidence: Evidence, rank: int) -> Parameters:
    """Return the maximum for a linear kernel, one σ² and full participation (see above)."""
    products = pooled_products(evidence, [with_centre(uniform(m.size)) for m in evidence.members])
    values, vectors = np.linalg.eigh(products)
    values, vectors = values[::-1], vectors[:, ::-1]
    noise = max(float(values[rank:].sum()) / (values.size - rank), 1e-12 * float(values[0]))
    excess = np.sqrt(np.maximum(values[:rank] - noise, 1e-3 * noise))
    return Parameters(vectors[:, :rank] * excess, 1.0, np.full(values.size, noise))


def beliefs_of(
    likelihood: Likelihood, vector: Vector, objective: list[float], converged: bool
) -> Beliefs:
    """Return the beliefs that follow from the parameters."""
    parameters = likelihood.unpack(vector)
    phi = parameters.covariance(likelihood.kernel)
    latent = None
    if likelihood.kernel is KERNELS["linear"]:
        factors = parameters.V * np.sqrt(parameters.task_scale)
        latent = Latent(factors, parameters.own, likelihood.shared)
    members = likelihood.evidence.members
    return Beliefs(
        likelihood.evidence,
        tuple(gls_weights(phi[np.ix_(m, m)]) for m in members),
        np.sqrt(np.diag(phi)),
        phi,
        latent,
        iterations=len(objective) - 1,
        converged=converged,
        objective=tuple(objective),
    )
