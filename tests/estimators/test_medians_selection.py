"""The geometric median, Krum and Multi-Krum, and the coordinate-wise rules."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.optimize import minimize

import consilience as cs
import naive
from consilience.beliefs import Given
from rounds import SCENARIOS, consensuses, evidence_of, never_falls, scenario


@pytest.mark.parametrize("iterations", [1, 2, 9])
@pytest.mark.parametrize("name", SCENARIOS[::2])
def test_the_geometric_median_is_smoothed_weiszfeld(name, iterations):
    rounds, _ = scenario(name)
    rounds = list({frozenset(updates): updates for updates in rounds}.values())
    counts = {party: 1.0 + j for j, party in enumerate(naive.everybody(rounds))}
    evidence = evidence_of(rounds)
    for smoothing in (1e-6, 0.9):
        method = cs.GeometricMedian(smoothing, tolerance=-1.0, max_iterations=iterations)
        beliefs = method.infer(evidence, Given(counts))
        for found, updates in zip(consensuses(beliefs, rounds), rounds, strict=True):
            total = sum(counts[party] for party in updates)
            shares = {party: counts[party] / total for party in updates}
            expected, objective = naive.weiszfeld(updates, shares, iterations, smoothing)
            assert_allclose(found, expected, rtol=1e-8)
        assert_allclose(-np.array(beliefs.objective), objective, rtol=1e-8)  # of the last round


@pytest.mark.parametrize("seed", range(4))
def test_the_geometric_median_has_the_least_mean_distance(seed):
    (updates,), _ = scenario("one round", size=4, seed=seed)
    X = np.array(list(updates.values()))
    beliefs = cs.GeometricMedian().infer(evidence_of([updates]))
    assert beliefs.converged
    assert never_falls(beliefs.objective, 1e-12)
    assert len(beliefs.objective) > 3

    def mean_distance(y):
        return np.mean(np.sqrt(np.mean((X - y) ** 2, axis=1)))

    best = minimize(
        mean_distance,
        X.mean(axis=0),
        method="Nelder-Mead",
        options={"xatol": 1e-9, "fatol": 1e-12, "maxiter": 5000},
    )
    found = mean_distance(consensuses(beliefs, [updates])[0])
    assert_allclose(found, best.fun, rtol=1e-6)
    assert_allclose(-beliefs.objective[-1], found, rtol=1e-6)


def test_the_geometric_median_may_rest_on_a_party():
    """Where one party's pull outweighs the others', the smoothing keeps the weights finite."""
    X = np.array([[0.0, 0.0], [1.0, 0.0], [-1.0, 0.1], [0.0, 1.0], [0.1, -1.0]])
    beliefs = cs.GeometricMedian().infer(cs.Evidence.of(X))
    assert never_falls(beliefs.objective, 1e-12)
    assert_allclose(beliefs.weights[0] @ X, [0, 0], atol=1e-3)


@pytest.mark.parametrize("adversaries", [0, 1])
@pytest.mark.parametrize("selected", [1, 3, None])
def test_krum_takes_the_least_scores(adversaries, selected):
    for seed in range(6):
        rounds, _ = scenario("partial", parties=6, seed=seed)
        rounds = [updates for updates in rounds if len(updates) >= 5]
        beliefs = cs.Krum(adversaries, selected).infer(evidence_of(rounds[:1]))
        expected = naive.multi_krum(rounds[0], adversaries, selected or 6 - adversaries)
        assert_allclose(consensuses(beliefs, rounds[:1])[0], expected, rtol=1e-8)


def test_krum_selects_in_each_block_by_itself():
    rounds, _ = scenario("partial", parties=6)
    rounds = list({frozenset(u): u for u in rounds if len(u) > 3}.values())
    assert len(rounds) == 3
    beliefs = cs.Krum(0).infer(evidence_of(rounds))
    for found, updates in zip(consensuses(beliefs, rounds), rounds, strict=True):
        assert_allclose(found, naive.multi_krum(updates, 0, 1), rtol=1e-8)


def test_krum_expects_the_most_adversaries_it_tolerates():
    """The largest f with 2f + 2 < J."""
    random = np.random.default_rng(0)
    for count, most in [(3, 0), (4, 0), (5, 1), (6, 1), (7, 2), (10, 3)]:
        updates = {str(j): x for j, x in enumerate(random.standard_normal((count, 6)))}
        found = cs.aggregate(updates, "krum").value
        assert_allclose(found, naive.multi_krum(updates, most, 1))
        found = cs.aggregate(updates, "multi-krum").value
        assert_allclose(found, naive.multi_krum(updates, most, count - most))
        with pytest.raises(cs.ConsilienceError, match=f"0 to {most}"):
            cs.aggregate(updates, cs.Krum(adversaries=most + 1))


def test_krum_leaves_far_copies_alone():
    random = np.random.default_rng(0)
    X = random.standard_normal((9, 20))
    X[6:] = 5.0 + 0.1 * random.standard_normal((3, 20))
    chosen = np.flatnonzero(cs.Krum(selected=6).infer(cs.Evidence.of(X)).weights[0])
    assert set(chosen) == set(range(6))


def test_equal_scores_go_to_the_earlier_party():
    X = np.array([[5.0], [0.0], [1.0]])
    assert_allclose(cs.Krum().infer(cs.Evidence.of(X)).weights[0], [0, 1, 0])
    by_name = {"z": [0.0], "a": [1.0], "m": [5.0]}  # parties with names are in their order
    assert cs.aggregate(by_name, "krum").weights == {"z": 0.0, "a": 1.0, "m": 0.0}


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 10])
@pytest.mark.parametrize("trim", [0.0, 0.1, 0.2, 0.4, 0.5])
def test_the_trimmed_mean_drops_a_share_at_either_end(count, trim):
    X = np.random.default_rng(0).standard_normal((count, 7))
    consensus = cs.aggregate(X, cs.TrimmedMean(trim))
    cut = min(round(trim * count * 1000) // 1000, (count - 1) // 2)
    for k in range(7):
        kept = sorted(X[:, k])[cut : count - cut]
        assert_allclose(consensus.value[k], sum(kept) / len(kept), rtol=1e-12)
    assert_allclose(sum(consensus.weights.values()), 1.0)
    if trim == 0.5:
        assert_allclose(consensus.value, np.median(X, axis=0))
        assert_allclose(cs.aggregate(X, "coordinate-median").value, np.median(X, axis=0))


def test_weights_of_a_coordinate_wise_rule_are_shares_of_what_was_kept():
    X = np.array([[0.0, 9.0, 2.0], [1.0, 1.0, 1.0], [2.0, 0.0, 9.0]])
    weights = cs.aggregate(X, "coordinate-median").weights
    assert_allclose(list(weights.values()), [1 / 3, 2 / 3, 0.0])
