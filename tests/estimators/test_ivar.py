"""IVAR: Algorithm 1, and its variational form."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

import consilience as cs
import naive
from consilience.beliefs import Given
from rounds import SCENARIOS, by_party, consensuses, draw, evidence_of, never_falls, scenario

CASES = pytest.mark.parametrize(
    ("name", "centred"), [(name, centred) for name in SCENARIOS for centred in (False, True)]
)


@CASES
@pytest.mark.parametrize("iterations", [1, 2, 7])
def test_mle_is_algorithm_1(name, centred, iterations):
    rounds, centres = scenario(name, centred=centred)
    method = cs.IVAR("mle", tolerance=0.0, max_iterations=iterations)
    beliefs = method.infer(evidence_of(rounds, centres))
    truths, variance, likelihoods = naive.ivar_mle(
        rounds, iterations, 1e-6 * naive.least_noise(rounds)
    )
    assert beliefs.iterations == iterations
    for found, expected in zip(consensuses(beliefs, rounds), truths, strict=True):
        assert_allclose(found, expected, rtol=1e-8)
    for party, noise in by_party(beliefs, beliefs.noise).items():
        assert_allclose(noise**2, variance[party], rtol=1e-8)
    assert_allclose(beliefs.objective, likelihoods, rtol=1e-8)


@CASES
@pytest.mark.parametrize("iterations", [1, 2, 7])
def test_vb_is_the_papers_equations(name, centred, iterations):
    rounds, centres = scenario(name, centred=centred)
    method = cs.IVAR("vb", tolerance=0.0, max_iterations=iterations)
    beliefs = method.infer(evidence_of(rounds, centres))
    expected = naive.ivar_vb(rounds, centres, iterations)
    for found, truth in zip(consensuses(beliefs, rounds, centres), expected.truths, strict=True):
        assert_allclose(found, truth, rtol=1e-8)
    for updates, lam in zip(rounds, expected.variances, strict=True):
        assert_allclose(beliefs.variance[beliefs.evidence.find(updates)], lam, rtol=1e-8)
    for party, noise in by_party(beliefs, beliefs.noise).items():
        assert_allclose(noise**2, expected.noise[party], rtol=1e-8)
    assert_allclose(beliefs.latent.prior_variance, expected.prior, rtol=1e-8)
    assert_allclose(beliefs.objective, expected.free_energies, rtol=1e-8)


def test_vb_keeps_a_prior_variance_that_is_given():
    rounds, centres = scenario("partial")
    method = cs.IVAR("vb", prior_variance=0.3, tolerance=0.0, max_iterations=4)
    beliefs = method.infer(evidence_of(rounds, centres))
    expected = naive.ivar_vb(rounds, centres, 4, fixed_prior=0.3)
    assert beliefs.latent.prior_variance == 0.3
    assert_allclose(beliefs.objective, expected.free_energies, rtol=1e-8)
    for found, truth in zip(consensuses(beliefs, rounds, centres), expected.truths, strict=True):
        assert_allclose(found, truth, rtol=1e-8)


@CASES
def test_vb_returns_the_posterior_mean_as_the_paper_says_or_the_normalised_one(name, centred):
    """Of the variances found last, eq. (inverseVariance)."""
    rounds, centres = scenario(name, centred=centred)
    evidence = evidence_of(rounds, centres)
    method = cs.IVAR("vb", estimate="gls", tolerance=0.0, max_iterations=5)
    beliefs = method.infer(evidence)
    same = cs.IVAR("vb", tolerance=0.0, max_iterations=5).infer(evidence)
    assert_allclose(beliefs.noise, same.noise)
    variance = naive.ivar_vb(rounds, centres, 5).noise
    for updates, found in zip(rounds, consensuses(beliefs, rounds), strict=True):
        phi = np.diag([variance[party] for party in updates])
        assert_allclose(found, naive.icov_truth(updates, phi), rtol=1e-8)
        expected = 1 / np.sum(1 / np.diag(phi))
        assert_allclose(beliefs.variance[evidence.find(updates)], expected, rtol=1e-8)
    for mine, theirs in zip(beliefs.weights, same.weights, strict=True):
        assert_allclose(mine.sum(), 1.0, rtol=1e-12)
        assert theirs.sum() < 1.0


@pytest.mark.parametrize(
    "wrong",
    [
        {"inference": "map"}, {"estimate": "mode"}, {"prior_variance": 0.0},
        {"prior_variance": -1.0}, {"prior_variance": float("inf")},
        {"inference": "mle", "prior_variance": 1.0},
        {"inference": "mle", "estimate": "posterior-mean"},
    ],
)  # fmt: skip
def test_unknown_choices_are_refused(wrong):
    with pytest.raises(cs.ConsilienceError):
        cs.IVAR(**wrong)


def test_a_run_away_needs_no_equal_vectors_where_coordinates_are_few():
    """A variance below a twentieth of the true one: often with 10 coordinates, not with 100
    (docs/theory.md)."""
    own, found = np.linspace(0.5, 2.0, 5) ** 2, {}
    for size in (10, 100):
        random = np.random.default_rng(0)
        draws = [draw(np.zeros((5, 0)), own, 1.0, size, random)[1] for _ in range(50)]
        noises = [cs.IVAR("vb").infer(cs.Evidence.of(X)).noise for X in draws]
        found[size] = sum((noise**2 / own).min() < 0.05 for noise in noises)
    assert found[10] > 5
    assert found[100] == 0


def test_rounds_that_list_their_parties_in_different_orders():
    """A sequence keeps its order, names are sorted: 10 follows 9 in one, precedes 2 in another."""
    random = np.random.default_rng(0)
    X = random.standard_normal((2, 12, 5)) * np.linspace(0.5, 2, 12)[:, None]
    rounds = [{str(j): x for j, x in enumerate(updates)} for updates in X]
    evidence = cs.Evidence.of(X[0]) + cs.Evidence.of(rounds[1])
    beliefs = cs.IVAR("mle", tolerance=0.0, max_iterations=5).infer(evidence)
    _, variance, _ = naive.ivar_mle(rounds, 5)
    assert beliefs.parties[2] == "2"
    for party, noise in by_party(beliefs, beliefs.noise).items():
        assert_allclose(noise**2, variance[party], rtol=1e-8)


def test_the_floor_of_algorithm_1_is_epsilon():
    rounds, _ = scenario("one round")
    rounds[0]["bob"] = rounds[0]["eve"].copy()
    epsilon = 0.01 * naive.least_noise(rounds)
    beliefs = cs.IVAR("mle", epsilon=0.01, tolerance=0.0, max_iterations=30).infer(
        evidence_of(rounds)
    )
    _, variance, _ = naive.ivar_mle(rounds, 30, epsilon)
    assert variance["bob"] == epsilon
    for party, noise in by_party(beliefs, beliefs.noise).items():
        assert_allclose(noise**2, variance[party], rtol=1e-8)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("inference", ["mle", "vb"])
@pytest.mark.parametrize("name", SCENARIOS)
def test_the_objective_never_falls(name, inference, seed):
    rounds, centres = scenario(name, size=20, seed=seed)
    beliefs = cs.IVAR(inference, tolerance=1e-12).infer(evidence_of(rounds, centres))
    assert beliefs.iterations > 5
    assert never_falls(beliefs.objective)


@pytest.mark.parametrize("seed", range(5))
def test_the_free_energy_at_convergence_is_the_evidence_for_the_noise(seed):
    """q is the exact posterior, so F = log p(X | σ, τ): the updates' marginal density, which is
    also the largest that scipy can find."""
    from scipy.optimize import minimize
    from scipy.stats import multivariate_normal

    random = np.random.default_rng(seed)
    own = np.array([0.5, 1.0, 1.5, 2.0])
    _, X = draw(np.zeros((4, 0)), own, 1.5, 60, random)

    def log_density(theta):
        sigma = np.exp(theta[-1]) + np.diag(np.exp(theta[:-1]))
        return multivariate_normal.logpdf(X.T, np.zeros(4), sigma).sum()

    beliefs = cs.IVAR("vb", tolerance=1e-12, max_iterations=5000).infer(cs.Evidence.of(X))
    theta = np.log([*beliefs.noise**2, beliefs.latent.prior_variance])
    assert_allclose(beliefs.objective[-1], log_density(theta), rtol=1e-9)
    best = -minimize(lambda theta: -log_density(theta), np.log([*own, 1.5])).fun
    assert_allclose(beliefs.objective[-1], best, rtol=1e-8)


def test_two_parties_are_told_apart_by_the_centre_alone():
    """Maximum likelihood keeps equal weights. The prior gives VB a third witness: σ_j² is what x_j
    varies more than both have in common, E[x₁x₂] = τ²."""
    _, X = draw(np.zeros((2, 0)), [0.5, 2.0], 3.0, 400, np.random.default_rng(0))
    assert_allclose(cs.IVAR("mle").infer(cs.Evidence.of(X)).weights[0], [0.5, 0.5])
    beliefs = cs.IVAR("vb", tolerance=1e-13, max_iterations=5000).infer(cs.Evidence.of(X))
    common = np.mean(X[0] * X[1])
    assert_allclose(beliefs.latent.prior_variance, common, rtol=1e-6)
    assert_allclose(beliefs.noise**2, np.mean(X**2, axis=1) - common, rtol=1e-6)


def test_mle_believes_two_equal_parties_outright():
    random = np.random.default_rng(0)
    X = random.standard_normal((8, 50))
    X[1] = X[0]
    beliefs = cs.IVAR("mle").infer(cs.Evidence.of(X))
    assert_allclose(beliefs.weights[0][:2], [0.5, 0.5], atol=1e-5)


def test_what_is_known_of_a_party_is_where_the_next_round_starts():
    rounds, centres = scenario("one round")
    evidence = evidence_of(rounds, centres)
    settled = cs.IVAR("vb", tolerance=1e-12, max_iterations=5000).infer(evidence)
    again = cs.IVAR("vb", max_iterations=1, tolerance=1e-3).infer(
        evidence, Given(known=settled.known)
    )
    fresh = cs.IVAR("vb", max_iterations=1, tolerance=1e-3).infer(evidence)
    assert not fresh.converged
    gap = np.abs(again.weights[0] - settled.weights[0]).max()
    assert gap < 0.1 * np.abs(fresh.weights[0] - settled.weights[0]).max()
