"""Data drawn from the model: what was put in comes out, within its uncertainty."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

import consilience as cs
from consilience.estimators import icov_vb
from consilience.estimators.uncertainty import noise_intervals
from rounds import draw

OWN = np.array([0.2, 0.5, 0.5, 1.0, 1.0, 1.5, 2.0, 3.0, 0.7])
V = np.array(
    [[1.0, 1.5, -1.0, 0.8, 0.3, -0.4, 0.3, 0.5, -0.6],
     [0.3, -0.4, 0.5, -1.0, 1.5, 1.2, 2.0, 0.6, -0.5]]
).T  # fmt: skip


def standard_errors(beliefs):
    """Return those of the log noise: half the width of an interval of one standard error."""
    lower, upper = noise_intervals(beliefs, 0.6826894921).T
    return np.log(upper / lower) / 2


def partial_evidence(random, directions, size):
    """Four rounds of all nine parties but one or two."""
    total = cs.Evidence(())
    for absent in ([], [0], [4, 8], [2]):
        _, X = draw(directions, OWN, 2.0, size, random)
        total += cs.Evidence.of({f"{j}": X[j] for j in range(9) if j not in absent}, exact=True)
    return total


@pytest.mark.parametrize("seed", range(8))
def test_ivar_vb_finds_the_noise_levels(seed):
    random = np.random.default_rng(seed)
    beliefs = cs.IVAR("vb").infer(partial_evidence(random, np.zeros((9, 0)), 4000))
    errors = np.log(beliefs.noise / np.sqrt(OWN))
    assert standard_errors(beliefs).max() < 0.03
    assert (np.abs(errors) < 4 * standard_errors(beliefs)).all()
    assert_allclose(beliefs.latent.prior_variance, 2.0, rtol=0.06)


@pytest.mark.parametrize("seed", range(8))
def test_icov_vb_finds_the_rank_and_the_covariance(seed):
    random = np.random.default_rng(seed)
    size = 4000
    beliefs = cs.ICOV(posterior="joint").infer(partial_evidence(random, V, size))
    assert beliefs.latent.factors.shape == (9, 2)
    phi = V @ V.T + np.diag(OWN)
    errors = np.log(beliefs.noise / np.sqrt(np.diag(phi)))
    assert standard_errors(beliefs).max() < 0.06
    assert (np.abs(errors) < 4 * standard_errors(beliefs)).all()
    assert (np.abs(beliefs.covariance - phi) < 4 * covariance_errors(4 * size)).all()
    assert_allclose(beliefs.latent.prior_variance, 2.0, rtol=0.15)


def covariance_errors(count):
    """Return the standard errors of Φ's entries where all parties meet in ``count`` coordinates,
    from the Fisher information of Σ = σ_y² 11ᵀ + VVᵀ + diag(σ²); an absence or two changes little.
    """
    slopes, to_phi = [], []
    for j in range(9):
        for d in range(2):
            slope = np.zeros((9, 9))
            slope[j] += V[:, d]
            slope[:, j] += V[:, d]
            slopes.append(slope)
            to_phi.append(slope)
    for j in range(9):
        slope = np.zeros((9, 9))
        slope[j, j] = 1.0
        slopes.append(slope)
        to_phi.append(slope)
    slopes.append(np.ones((9, 9)))
    to_phi.append(np.zeros((9, 9)))
    inverse = np.linalg.inv(2.0 + V @ V.T + np.diag(OWN))
    whitened = np.array([(inverse @ slope).ravel() for slope in slopes])
    turned = np.array([(inverse @ slope).T.ravel() for slope in slopes])
    information = count / 2 * whitened @ turned.T
    covariance = np.linalg.pinv(information, rcond=1e-10, hermitian=True)
    flat = np.array(to_phi).reshape(len(slopes), -1)
    return np.sqrt(np.einsum("ax,ab,bx->x", flat, covariance, flat)).reshape(9, 9)


@pytest.mark.parametrize("rank", [0, 1, 3])
@pytest.mark.parametrize("seed", range(3))
def test_auto_rank_is_the_true_rank(rank, seed):
    random = np.random.default_rng(10 * rank + seed)
    directions = 1.5 * random.standard_normal((12, rank))
    _, X = draw(directions, random.uniform(0.5, 2, 12), 1.0, 1500, random)
    assert cs.ICOV(posterior="joint").infer(cs.Evidence.of(X)).latent.factors.shape[1] == rank


def test_a_direction_stands_out_until_it_is_explained():
    """Afterwards only by chance: a false alarm costs a fit of one rank more, and no more."""
    told = np.zeros((12, 3))
    for seed in range(12):
        evidence = partial_evidence(np.random.default_rng(seed), V, 2000)
        for rank in range(3):
            told[seed, rank] = icov_vb.stands_out(
                cs.ICOV(rank=rank, posterior="joint").infer(evidence)
            )
    assert told[:, :2].all()
    assert told[:, 2].mean() < 0.5


@pytest.mark.parametrize("seed", range(3))
def test_the_joint_posterior_finds_what_the_factorized_one_misses(seed):
    """Where parties err the same way, factorising q(y) q(u) takes their bias for the truth."""
    random = np.random.default_rng(seed)
    same_way = 1.0 + np.abs(random.standard_normal((8, 1)))
    _, X = draw(same_way, np.ones(8), 1.0, 4000, random)
    true = np.sqrt(same_way[:, 0] ** 2 + 1.0)
    ratios = {}
    for posterior in ("joint", "factorized"):
        beliefs = cs.ICOV(rank=1, posterior=posterior, max_iterations=3000).infer(cs.Evidence.of(X))
        ratios[posterior] = beliefs.noise / true
    assert_allclose(ratios["joint"], 1.0, atol=0.1)
    assert np.median(ratios["factorized"]) < 0.8


@pytest.mark.parametrize("seed", range(3))
def test_the_consensus_is_as_good_as_with_known_covariance(seed):
    truth, X = draw(V, OWN, 2.0, 4000, np.random.default_rng(seed))
    phi = V @ V.T + np.diag(OWN)
    names = [str(j) for j in range(9)]
    known = cs.aggregate(X, cs.GivenCovariance(phi, names)).value
    joint = cs.ICOV(posterior="joint")
    found, independent = cs.aggregate(X, joint).value, cs.aggregate(X, "ivar-vb").value
    best = np.mean((known - truth) ** 2)
    assert np.mean((found - truth) ** 2) < 1.05 * best
    assert np.mean((independent - truth) ** 2) > 1.1 * best
