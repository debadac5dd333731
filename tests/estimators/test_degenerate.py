"""Rounds that say little: few parties, equal parties, few coordinates. For every method."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

import consilience as cs
from consilience.estimators.catalogue import resolve
from rounds import evidence_of

METHODS = pytest.mark.parametrize("method", cs.methods())
BY_EVIDENCE = pytest.mark.parametrize(
    "method", [name for name in cs.methods() if name not in ("coordinate-median", "trimmed-mean")]
)
WITH_A_PRIOR = ("ivar-vb", "icov-vb")
SELECTING = ("krum",)
LEAVING_OUT = ("krum", "multi-krum", "mda", "dnc")


def updates_of(parties, size, seed=0, centre=1.0):
    return centre + np.random.default_rng(seed).standard_normal((parties, size))


def check_finite(consensus):
    assert np.isfinite(consensus.value).all()
    assert np.isfinite(list(consensus.weights.values())).all()
    assert np.isfinite(list(consensus.noise.values())).all()
    if consensus.covariance is not None:
        assert np.isfinite(consensus.covariance).all()
        assert np.linalg.eigvalsh(consensus.covariance)[0] > -1e-9
    if consensus.variance is not None:
        assert consensus.variance > 0
        assert np.isfinite(list(consensus.noise_intervals().values())).all()


@METHODS
@pytest.mark.parametrize("size", [1, 5])
def test_one_party_is_the_consensus_and_its_noise_unknown(method, size):
    X = updates_of(1, size)
    consensus = cs.aggregate(X, method)
    assert_allclose(consensus.value, X[0])
    assert consensus.weights == {"0": 1.0}
    assert np.isnan(consensus.noise["0"])


@METHODS
@pytest.mark.parametrize("size", [1, 2, 50])
def test_two_parties(method, size):
    X = updates_of(2, size)
    consensus = cs.aggregate(X, method)
    check_finite(consensus)
    if method in SELECTING:
        assert_allclose(consensus.value, X[0])
    elif method not in WITH_A_PRIOR:
        assert_allclose(consensus.value, X.mean(axis=0), rtol=1e-6)
    else:
        weights = np.array(list(consensus.weights.values()))
        assert (weights > -1e-9).all()
        assert weights.sum() <= 1 + 1e-9


@METHODS
@pytest.mark.parametrize("parties", [2, 3, 7])
@pytest.mark.parametrize("size", [1, 4])
def test_equal_parties_get_equal_weights_and_no_noise(method, parties, size):
    X = np.tile(updates_of(1, size), (parties, 1))
    consensus = cs.aggregate(X, method)
    assert_allclose(consensus.value, X[0], rtol=1e-12)
    assert_allclose(list(consensus.noise.values()), 0.0, atol=1e-12)
    if method not in LEAVING_OUT:
        assert_allclose(list(consensus.weights.values()), 1 / parties)


@METHODS
@pytest.mark.parametrize("centre", [0.0, 1.0, 1e6])
@pytest.mark.parametrize("spread", [1.0, 1e-6])
def test_two_equal_among_many(method, centre, spread):
    X = centre + spread * np.random.default_rng(0).standard_normal((7, 40))
    X[4] = X[1]
    consensus = cs.aggregate(X, method)
    check_finite(consensus)
    if method not in SELECTING:
        assert_allclose(consensus.weights["4"], consensus.weights["1"], atol=1e-6)
    if method not in WITH_A_PRIOR:
        assert np.abs(consensus.value - centre).max() < 5 * spread


@METHODS
@pytest.mark.parametrize(("parties", "size"), [(3, 1), (6, 1), (6, 2), (12, 5), (6, 5)])
def test_fewer_coordinates_than_parties(method, parties, size):
    for seed in range(4):
        X = updates_of(parties, size, seed)
        consensus = cs.aggregate(X, method)
        check_finite(consensus)
        assert np.abs(consensus.value).max() < 1.001 * np.abs(X).max()


@METHODS
def test_parties_far_from_the_centre_and_near_each_other(method):
    """The centre a million standard deviations away: no digits are lost to it."""
    noise = np.random.default_rng(0).standard_normal((6, 200))
    near, far = cs.aggregate(1e3 + noise, method), cs.aggregate(1e9 + noise, method)
    check_finite(far)
    assert_allclose(list(far.noise.values()), list(near.noise.values()), rtol=1e-2)
    assert_allclose(list(far.weights.values()), list(near.weights.values()), atol=1e-2)


@BY_EVIDENCE
def test_a_party_that_was_always_alone(method):
    """Its update is its round's consensus, its noise unknown; the others are inferred as usual."""
    X = updates_of(5, 30)
    meeting = dict(zip("abcde", X, strict=True))
    memory = cs.Memory(decay=1.0)
    alone = cs.aggregate({"z": X[0]}, method, memory)
    assert_allclose(alone.value, X[0])
    met = cs.aggregate(meeting, method, memory)
    expected = cs.aggregate(meeting, method)
    assert_allclose(list(met.weights.values()), list(expected.weights.values()), atol=1e-6)
    assert_allclose(list(met.noise.values()), list(expected.noise.values()), rtol=1e-5)
    again = cs.aggregate({"z": X[0]}, method, memory)
    assert_allclose(again.value, X[0])
    assert np.isnan(again.noise["z"])
    if method in WITH_A_PRIOR:
        assert np.isnan(again.noise_intervals()["z"]).all()
        assert np.isfinite(list(met.noise_intervals().values())).all()


@BY_EVIDENCE
def test_parties_that_only_ever_agreed(method):
    """Two pairs, each equal in its own round: no noise, equal weights."""
    rounds = [{"a": np.ones(3), "b": np.ones(3)}, {"c": np.zeros(3), "d": np.zeros(3)}]
    beliefs = resolve(method).infer(evidence_of(rounds))
    assert_allclose(beliefs.noise, 0.0)
    for weights in beliefs.weights:
        assert_allclose(weights, [1, 0] if method in SELECTING else [0.5, 0.5])
