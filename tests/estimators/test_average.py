"""Weights that follow from what is given: sample counts, precisions, covariances, overlaps."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

import consilience as cs
import naive
from consilience.beliefs import Given
from rounds import SCENARIOS, consensuses, evidence_of, scenario


@pytest.mark.parametrize("name", SCENARIOS)
def test_mean_is_fedavg(name):
    rounds, _ = scenario(name)
    counts = {party: 3.0 + 2 * j for j, party in enumerate(naive.everybody(rounds))}
    weighted = cs.Mean().infer(evidence_of(rounds), Given(counts))
    plain = cs.Mean().infer(evidence_of(rounds))
    for i, updates in enumerate(rounds):
        expected = naive.fedavg(updates, counts)
        assert_allclose(consensuses(weighted, rounds)[i], expected, rtol=1e-8)
        uniform = naive.fedavg(updates, dict.fromkeys(updates, 1))
        assert_allclose(consensuses(plain, rounds)[i], uniform, rtol=1e-8)


@pytest.mark.parametrize("name", SCENARIOS)
def test_mean_reports_residuals_about_the_consensus(name):
    rounds, _ = scenario(name)
    beliefs = cs.Mean().infer(evidence_of(rounds))
    expected = naive.party_errors(rounds, naive.plain_means(rounds))
    assert_allclose(beliefs.noise**2, [expected[p] for p in beliefs.parties], rtol=1e-8)


@pytest.mark.parametrize("name", SCENARIOS)
def test_given_covariance_is_icov_1(name):
    rounds, _ = scenario(name)
    names = naive.everybody(rounds)[::-1]
    A = np.random.default_rng(5).standard_normal((len(names), len(names)))
    phi = A @ A.T + np.eye(len(names))
    beliefs = cs.GivenCovariance(phi, names).infer(evidence_of(rounds))
    found = consensuses(beliefs, rounds)
    for value, updates in zip(found, rounds, strict=True):
        expected = naive.icov_truth(updates, naive.covariance_among(phi, names, updates))
        assert_allclose(value, expected, rtol=1e-8)
    order = [names.index(party) for party in beliefs.parties]
    assert_allclose(beliefs.covariance, phi[np.ix_(order, order)])
    assert_allclose(beliefs.noise, np.sqrt(np.diag(phi))[order])


def test_given_covariance_needs_every_party():
    with pytest.raises(cs.ConsilienceError, match="party c"):
        cs.aggregate({"a": [1.0], "c": [2.0]}, cs.GivenCovariance(np.eye(2), ["a", "b"]))
    with pytest.raises(cs.ConsilienceError, match="shape"):
        cs.aggregate({"a": [1.0]}, cs.GivenCovariance(np.eye(2), ["a"]))
    with pytest.raises(cs.ConsilienceError, match="singular"):
        cs.aggregate({"a": [1.0], "b": [2.0]}, cs.GivenCovariance(np.zeros((2, 2)), ["a", "b"]))


def test_precision_weighted_mean_is_ind_mle():
    random = np.random.default_rng(0)
    vectors = list(random.standard_normal((4, 3)))
    factors = random.standard_normal((4, 3, 3))
    full = [A @ A.T + 0.1 * np.eye(3) for A in factors]
    expected = naive.ind_mle(vectors, full)
    found = cs.precision_weighted_mean(vectors, [np.linalg.inv(sigma) for sigma in full])
    assert_allclose(found, expected, rtol=1e-8)

    diagonal = list(random.uniform(0.1, 3, (4, 3)))
    expected = naive.ind_mle(vectors, [np.diag(d) for d in diagonal])
    assert_allclose(
        cs.precision_weighted_mean(vectors, [1 / d for d in diagonal]), expected, rtol=1e-8
    )

    mixed = [full[0], np.diag(diagonal[1]), 0.7 * np.eye(3), full[3]]
    precisions = [np.linalg.inv(full[0]), 1 / diagonal[1], 1 / 0.7, np.linalg.inv(full[3])]
    found = cs.precision_weighted_mean(vectors, precisions)
    assert_allclose(found, naive.ind_mle(vectors, mixed), rtol=1e-8)


def test_precisions_of_least_squares_give_the_pooled_solution():
    """The paper's Example 2: with Σ_j⁻¹ ∝ HᵀH the consensus is the fit to everybody's data."""
    random = np.random.default_rng(1)
    designs = [random.standard_normal((n, 3)) for n in (5, 9, 20)]
    targets = [random.standard_normal(len(H)) for H in designs]
    fits = [np.linalg.lstsq(H, z, rcond=None)[0] for H, z in zip(designs, targets, strict=True)]
    pooled = np.linalg.lstsq(np.vstack(designs), np.concatenate(targets), rcond=None)[0]
    assert_allclose(cs.precision_weighted_mean(fits, [H.T @ H for H in designs]), pooled, rtol=1e-8)


def test_precision_weighted_mean_names_what_does_not_fit():
    with pytest.raises(cs.ConsilienceError, match="party 1"):
        cs.precision_weighted_mean([[1.0, 2.0], [1.0, 2.0]], [1.0, np.ones(3)])
    with pytest.raises(cs.ConsilienceError, match="2 updates but 1"):
        cs.precision_weighted_mean([[1.0], [2.0]], [1.0])


def test_overlap_covariance_is_eq_overlap():
    samples = [{1, 2, 3}, {3, 4}, {2, 3, 4, 5, 6}, {9}]
    shared = [[len(a & b) for b in samples] for a in samples]
    expected = naive.overlap(samples, 2.5)
    assert_allclose(cs.overlap_covariance(shared, 2.5), expected, rtol=1e-12)


def test_overlap_covariance_is_that_of_averages_of_common_samples():
    """cov(Aᵀg) for averages of shared samples, exactly: rows of A average each party's samples."""
    samples = [[0, 1, 2], [2, 3], [1, 2, 3, 4]]
    A = np.zeros((3, 5))
    for j, mine in enumerate(samples):
        A[j, mine] = 1 / len(mine)
    shared = [[len(set(a) & set(b)) for b in samples] for a in samples]
    assert_allclose(cs.overlap_covariance(shared, 3.0), 3.0 * A @ A.T, rtol=1e-12)


def test_without_overlap_the_covariance_gives_fedavg():
    updates = {"a": np.array([1.0, 2.0]), "b": np.array([3.0, -1.0])}
    phi = cs.overlap_covariance(np.diag([3, 7]))
    found = cs.aggregate(updates, cs.GivenCovariance(phi, ["a", "b"])).value
    assert_allclose(found, naive.fedavg(updates, {"a": 3, "b": 7}), rtol=1e-12)


@pytest.mark.parametrize("shared", [[[2, 3], [3, 5]], [[2, 1], [0, 5]], [[0, 0], [0, 5]], [[2, 1]]])
def test_impossible_overlaps_are_refused(shared):
    with pytest.raises(cs.ConsilienceError, match="overlap"):
        cs.overlap_covariance(shared)
