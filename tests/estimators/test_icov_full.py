"""A full covariance by Proposition 1: the iteration, and the documented facts about it."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

import consilience as cs
import naive
from rounds import SCENARIOS, consensuses, evidence_of, never_falls, scenario


@pytest.mark.parametrize("iterations", [1, 2, 6])
@pytest.mark.parametrize("shrinkage", [0.1, 0.5])
@pytest.mark.parametrize("name", SCENARIOS)
def test_it_is_proposition_1_with_its_remark_and_the_prior(name, shrinkage, iterations):
    rounds, centres = scenario(name)
    evidence = evidence_of(rounds, centres)
    method = cs.FullCovariance(shrinkage, tolerance=-1.0, max_iterations=iterations)
    beliefs = method.infer(evidence)
    names = list(evidence.parties)
    truths, phi = naive.full_covariance(rounds, names, iterations, shrinkage)
    for found, truth in zip(consensuses(beliefs, rounds), truths, strict=True):
        assert_allclose(found, truth, rtol=1e-8)
    assert_allclose(beliefs.covariance, phi, rtol=1e-8, atol=1e-10)
    assert_allclose(beliefs.noise, np.sqrt(np.diag(phi)), rtol=1e-8)
    assert beliefs.iterations == iterations


def test_pairs_that_never_met_count_as_uncorrelated():
    """And averages over pairs need not be positive definite: their eigenvalues are raised."""
    random = np.random.default_rng(0)
    a, b, c, d = random.standard_normal((4, 8))
    rounds = [{"a": a, "b": a + 0.1 * b}, {"b": c, "c": c + 0.1 * d}, {"a": b, "c": -b + 0.1 * d}]
    evidence = evidence_of(rounds)
    beliefs = cs.FullCovariance(0.1, tolerance=-1.0, max_iterations=4).infer(evidence)
    truths, phi = naive.full_covariance(rounds, ["a", "b", "c"], 4, 0.1)
    assert_allclose(beliefs.covariance, phi, rtol=1e-8)
    assert np.linalg.eigvalsh(beliefs.covariance)[0] > 0
    rounds = rounds[:2]
    beliefs = cs.FullCovariance(0.1, tolerance=-1.0, max_iterations=4).infer(evidence_of(rounds))
    truths, phi = naive.full_covariance(rounds, ["a", "b", "c"], 4, 0.1)
    assert_allclose(beliefs.covariance, phi, rtol=1e-8, atol=1e-12)
    for found, truth in zip(consensuses(beliefs, rounds), truths, strict=True):
        assert_allclose(found, truth, rtol=1e-8)


def test_the_bare_iteration_goes_nowhere():
    """Φ̂ has no variance along the weights that made it. With a vanishing ridge they come back
    whatever they were if K ≥ J − 1; with fewer coordinates other weights do, of the same truth."""
    random = np.random.default_rng(2)
    for size in (2, 4, 30):
        (updates,), _ = scenario("one round", size=size)
        for _ in range(5):
            A = random.standard_normal((5, 5))
            start = A @ A.T + 0.1 * np.eye(5)
            weights = np.linalg.inv(start).sum(axis=0) / np.linalg.inv(start).sum()
            truth = naive.icov_truth(updates, start)
            phi = naive.pair_covariance([updates], [truth], list(updates))
            assert abs(np.linalg.eigvalsh(phi)[0]) < 1e-12
            for nudge in (1e-4, 1e-8):
                inverse = np.linalg.inv(phi + nudge * np.eye(5))
                moved = np.abs(inverse.sum(axis=0) / inverse.sum() - weights).max()
                assert (moved < 100 * nudge) == (size >= 4)
                again = naive.icov_truth(updates, phi + nudge * np.eye(5))
                assert_allclose(again, truth, atol=100 * nudge)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", ["one round", "many rounds"])
def test_its_fixed_point_weighs_by_the_residual_variance_about_the_middle(name, seed):
    rounds, centres = scenario(name, size=12, seed=seed)
    beliefs = cs.FullCovariance().infer(evidence_of(rounds, centres))
    assert beliefs.converged
    errors = naive.party_errors(rounds, naive.central_points(rounds))
    precision = 1 / np.array([errors[party] for party in beliefs.parties])
    assert_allclose(beliefs.weights[0], precision / precision.sum(), rtol=1e-8)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", ["one round", "many rounds"])
def test_its_objective_never_falls_with_full_participation(name, seed):
    rounds, centres = scenario(name, size=12, seed=seed)
    method = cs.FullCovariance(tolerance=-1.0, max_iterations=20)
    assert never_falls(method.infer(evidence_of(rounds, centres)).objective, 1e-12)


def test_its_objective_is_the_penalised_likelihood():
    (updates,), _ = scenario("one round", size=12)
    beliefs = cs.FullCovariance(0.2).infer(evidence_of([updates]))
    names, phi = list(beliefs.parties), beliefs.covariance
    truth = consensuses(beliefs, [updates])[0]
    middle = naive.central_points([updates])
    prior = np.diag(np.diag(naive.pair_covariance([updates], middle, names)))
    target = 0.8 * naive.pair_covariance([updates], [truth], names) + 0.2 * prior
    expected = -12 / 2 * (np.linalg.slogdet(phi)[1] + np.trace(np.linalg.inv(phi) @ target))
    assert_allclose(beliefs.objective[-1], expected, rtol=1e-9)
    assert_allclose(phi, target, rtol=1e-8, atol=1e-12)
