"""How certain an inferred noise level is.

With the truth and the latent factors integrated out, a coordinate of the updates about the centre
is x ~ N(0, Σ) with Σ = σ_y² 11ᵀ + VVᵀ + diag(σ²). The Fisher information of the parameters θ,

    I_ab = ½ n tr(Σ⁻¹ ∂_aΣ Σ⁻¹ ∂_bΣ)   summed over blocks of n coordinates,

gives their covariance for large n, and by the chain rule that of the noise levels, in logarithms,
so that an interval stays above zero. Rotations of V carry no information, hence the pseudo-inverse
where there is no inverse. It is taken in units of the diagonal, as V has the updates' unit and
logarithms have none.
"""

from __future__ import annotations

from statistics import NormalDist

import numpy as np

from consilience.arrays import Matrix, Positions, Vector
from consilience.beliefs import Beliefs, Latent
from consilience.errors import ConsilienceError
from consilience.estimators.marginal import Marginal

_SINGULAR = 1e-10  # least over largest eigenvalue of an information matrix without inverse


def noise_intervals(beliefs: Beliefs, level: float = 0.95) -> Matrix:
    """Return the lower and upper end of each party's noise, (J, 2), at the given level."""
    if not 0 < level < 1:
        raise ConsilienceError(f"a level lies between 0 and 1, found {level}")
    if beliefs.slack is not None:
        variance = _of_levels(beliefs, beliefs.slack)
    elif beliefs.variance is not None and beliefs.latent is not None:
        variance = _log_variance(beliefs, beliefs.latent)
    else:
        raise ConsilienceError(
            "no intervals: pairwise, ivar-vb and icov-vb have them, of parties that differ"
        )
    spread = NormalDist().inv_cdf(0.5 + level / 2) * np.sqrt(variance) / 2
    # A noise level at the floor may be anything below what was seen: wide, but no overflow.
    spread = np.minimum(spread, 300.0)
    ends: Matrix = beliefs.noise[:, None] * np.exp(np.outer(spread, [-1.0, 1.0]))
    return ends


def _of_levels(beliefs: Beliefs, slack: float) -> Vector:
    """Return the variance of each log level of `pairwise`: independent noise, about an unknown
    truth.

    With p_j the share of 1/s_j in their sum, I_jl = ½ n (δ_jl − √(p_j p_l))². Distances that misfit
    ρ² times as much as by chance are worth ρ⁴ times fewer coordinates.
    """
    size = len(beliefs.noise)
    information = np.zeros((size, size))
    for block, members in zip(beliefs.evidence.blocks, beliefs.evidence.members, strict=True):
        if members.size > 1 and (beliefs.noise[members] > 0).all():
            root = beliefs.noise[members].min() / beliefs.noise[members]
            root /= np.linalg.norm(root)
            part = (np.eye(members.size) - np.outer(root, root)) ** 2
            information[np.ix_(members, members)] += 0.5 * block.count * part / slack**4
    seen = np.diag(information) > 0
    found = np.full(size, np.nan)
    at = np.ix_(seen, seen)
    found[seen] = np.diag(_inverse(information[at]))
    return found


def _log_variance(beliefs: Beliefs, latent: Latent) -> Vector:
    """Return the variance of each log noise variance; NaN for a party that never met another."""
    size, rank = latent.factors.shape
    information = np.zeros((size * (rank + 1) + 1,) * 2)
    for block, members in zip(beliefs.evidence.blocks, beliefs.evidence.members, strict=True):
        if members.size > 1:
            at = _parameters(members, size, rank)
            part = _information(latent.factors[members], latent.own[members], latent.prior_variance)
            information[np.ix_(at, at)] += 0.5 * block.count * part
    known = np.isfinite(latent.own)
    slopes = np.zeros((size, len(information)))
    variance = beliefs.noise**2
    for j in np.flatnonzero(known):
        slopes[j, j * rank : (j + 1) * rank] = 2 * latent.factors[j] / variance[j]
        slopes[j, size * rank + j] = latent.own[j] / variance[j]
    if latent.shared:  # one parameter for all: its information is the sum over parties
        first = size * rank
        merge = np.zeros((len(information), size * rank + 2))
        merge[:first, :first] = np.eye(first)
        merge[first:-1, first] = merge[-1, -1] = 1.0
        information, slopes = merge.T @ information @ merge, slopes @ merge
    found: Vector = ((slopes @ _inverse(information)) * slopes).sum(axis=1)
    return np.where(known, np.maximum(found, 0.0), np.nan)


def _inverse(information: Matrix) -> Matrix:
    """Return the covariance of parameters: by a Cholesky decomposition if that is safe, several
    times as fast as the pseudo-inverse."""
    from scipy.linalg.lapack import dpocon, dpotrf, dpotri  # here, as they take long to import

    unit = np.sqrt(np.diag(information))
    unit[unit == 0] = 1.0
    units = np.outer(unit, unit)
    scaled = information / units
    factor, failed = dpotrf(scaled, lower=True)
    if failed or dpocon(factor, np.linalg.norm(scaled, 1), uplo="L")[0] < _SINGULAR:
        found = np.linalg.pinv(scaled, rcond=_SINGULAR, hermitian=True)
    else:
        lower = dpotri(factor, lower=True)[0]  # and zeros above
        found = lower + np.tril(lower, -1).T
    covariance: Matrix = found / units
    return covariance


def _parameters(members: Positions, size: int, rank: int) -> Positions:
    """Return the positions of a block's parameters: V row by row, log σ_j², log σ_y²."""
    factors = (members[:, None] * rank + np.arange(rank)).ravel()
    return np.concatenate([factors, size * rank + members, [size * (rank + 1)]])


def _information(V: Matrix, own: Vector, prior: float) -> Matrix:
    """Return tr(Σ⁻¹ ∂_aΣ Σ⁻¹ ∂_bΣ) for all pairs of parameters of one block, in closed form."""
    count, rank = V.shape
    marginal = Marginal.of(V, own, prior)
    H, HV, h = marginal.precision, marginal.applied[:, 1:], marginal.applied[:, 0]
    factors = 2 * (np.einsum("ld,je->jdle", HV, HV) + np.einsum("jl,de->jdle", H, V.T @ HV))
    factors_own = 2 * np.einsum("lj,ld->jdl", H, HV) * own  # with respect to log σ_l²
    factors_prior = 2 * prior * np.outer(h, HV.sum(axis=0))
    own_own = H**2 * np.outer(own, own)
    own_prior = prior * own * h**2
    at = count * rank
    total = np.empty((at + count + 1,) * 2)
    total[:at, :at] = factors.reshape(at, at)
    total[:at, at:-1] = factors_own.reshape(at, count)
    total[:at, -1] = factors_prior.ravel()
    total[at:-1, at:-1], total[at:-1, -1] = own_own, own_prior
    total[-1, -1] = (prior * h.sum()) ** 2
    upper = np.triu(total)
    symmetric: Matrix = upper + np.triu(total, 1).T
    return symmetric
