"""What one party can do to an estimator: nothing beyond what its model grants it."""

import numpy as np
import pytest

import consilience as cs
from rounds import never_falls

# These are the mean of everybody by their model: see docs/theory.md.
THE_MEAN = ("mean", "icov-mle")
ROBUST = [
    *(name for name in cs.methods() if name not in THE_MEAN),
    cs.ICOV(rank=1),
    cs.ICOV(rank=2, estimate="posterior-mean"),
    cs.ICOV(rank=2, posterior="joint"),
    cs.ICOV(posterior="joint"),
    cs.IVAR("vb", estimate="gls"),
]
FAR = pytest.mark.parametrize("far", [1e3, 1e8, 1e14, 1e30, 1e120])


def honest(parties=10, size=500, seed=0):
    """Updates with noise of one about a truth as large as it."""
    random = np.random.default_rng(seed)
    return random.standard_normal(size) + random.standard_normal((parties, size))


def distance(one, other):
    return np.sqrt(np.mean((one - other) ** 2))


def with_one_at(far, X, seed):
    wild = far * np.random.default_rng(seed).standard_normal(X.shape[1])
    return np.vstack([X, wild])


@FAR
@pytest.mark.parametrize("method", ROBUST, ids=str)
def test_one_party_moves_nobody(method, far):
    """However far away it is: by less than half the noise of an honest party."""
    X = honest()
    without = cs.aggregate(X, method)
    for seed in (1, 2):
        found = cs.aggregate(with_one_at(far, X, seed), method)
        assert distance(found.value, without.value) < 0.5
        noise = [found.noise[party] for party in without.parties]
        assert np.median(noise) < 2 * np.median(list(without.noise.values()))


@FAR
@pytest.mark.parametrize("rank", [1, 2])
def test_one_party_does_not_move_maximum_likelihood_with_noise_of_each_its_own(rank, far):
    """Its likelihood has no maximum, and it may settle on one party: an honest one."""
    method, X = cs.ICOV("mle", rank, "per-party"), honest()
    for seed in (1, 2):
        found = cs.aggregate(with_one_at(far, X, seed), method)
        assert distance(found.value, X.mean(axis=0)) < 1.5


@pytest.mark.parametrize("far", [1e3, 1e8, 1e14])
@pytest.mark.parametrize("posterior", ["joint", "factorized"])
def test_one_party_does_not_move_a_model_with_one_noise_level(posterior, far):
    """Where a hidden direction is left for it."""
    method, X = cs.ICOV(rank=2, noise="shared", posterior=posterior), honest()
    without = cs.aggregate(X, method).value
    for seed in (1, 2):
        assert distance(cs.aggregate(with_one_at(far, X, seed), method).value, without) < 0.5


@pytest.mark.parametrize("parties", [3, 4, 5])
@FAR
def test_one_of_few_moves_nobody(parties, far):
    X = honest(parties - 1)
    for method in ("geometric-median", "icov-full", "krum", "ivar-mle", "ivar-vb", "icov-vb"):
        found = cs.aggregate(with_one_at(far, X, 1), method).value
        assert min(distance(found, x) for x in X) < 1.5, method


@pytest.mark.parametrize("far", [1e8, 1e14, 1e30, 1e45])
@pytest.mark.parametrize("count", [1, 5, 9])
def test_less_than_half_do_not_set_the_scale_of_the_geometric_median(count, far):
    X = honest(10)
    wild = far * np.random.default_rng(1).standard_normal((count, 500))
    found = cs.aggregate(np.vstack([X, wild]), "geometric-median")
    assert distance(found.value, X.mean(axis=0)) < 1.0
    assert found.diagnostics["converged"]


def test_a_majority_that_agrees_exactly_is_the_geometric_median():
    X = np.tile(honest(1), (10, 1))
    X[8:] = [[1e8], [1e30]]
    found = cs.aggregate(X, "geometric-median")
    np.testing.assert_allclose(found.value, X[0], rtol=1e-5)


def test_a_majority_that_agrees_needs_the_samples_too():
    """Where the others have more of them, the median is amid the others."""
    X = np.array([[0.0], [0.0], [0.0], [5.0], [6.0]])
    counts = {"0": 1, "1": 1, "2": 1, "3": 10, "4": 11}
    found = cs.aggregate(X, "geometric-median", sample_counts=counts)
    assert 4.9 < found.value[0] < 6.1


def near_copies(seed, gap=1e-4):
    """Five parties with a bias in common, one of them nearly the copy of another."""
    random = np.random.default_rng(seed)
    truth, weights, bias = random.normal(size=100), random.normal(size=5), random.normal(size=100)
    X = truth + np.outer(weights, bias) + random.normal(size=(5, 100))
    X[1] = X[0] + gap * random.normal(size=100)
    return X


@pytest.mark.parametrize("gap", [1e-2, 1e-4, 1e-7])
@pytest.mark.parametrize("noise", ["per-party", "shared"])
@pytest.mark.parametrize("posterior", ["joint", "factorized"])
def test_near_copies_never_lower_the_free_energy(posterior, noise, gap):
    for seed in range(4):
        evidence = cs.Evidence.of(near_copies(seed, gap))
        for rank in (1, 2, 3):
            beliefs = cs.ICOV(rank=rank, posterior=posterior, noise=noise).infer(evidence)
            assert never_falls(beliefs.objective)
            assert np.isfinite(beliefs.weights[0]).all()


@pytest.mark.parametrize("gap", [1e-4, 1e-6, 1e-7, 1e-8, 1e-9])
@pytest.mark.parametrize("inference", ["vb", "mle"])
def test_near_copies_never_lower_the_objective_of_ivar(inference, gap):
    """Also where neither of the two is the party closest to its peers."""
    for seed in (11, 37, 57, 67, 82, 98):
        found = cs.aggregate(near_copies(seed, gap), cs.IVAR(inference))
        assert never_falls(found.diagnostics["objective"])
        assert sum(map(found.weights.get, "01")) == pytest.approx(1, abs=1e-3)


def test_the_near_copies_that_made_it_fall():
    """From 1.9e10 to -2579, with weights of -145 and 145."""
    X = near_copies(2)
    beliefs = cs.ICOV(rank=2, posterior="joint").infer(cs.Evidence.of(X))
    assert never_falls(beliefs.objective)
    assert max(beliefs.objective) < 1e4
    assert distance(beliefs.weights[0] @ X, X.mean(axis=0)) < 1.5


@pytest.mark.parametrize("gap", [1e-3, 1e-6, 1e-9])
def test_the_rank_is_not_judged_by_rounding(gap):
    """A near copy is one direction that needs no more explaining: all ranks can be compared."""
    for seed in range(5):
        X = near_copies(seed, gap)
        found = cs.aggregate(X, "icov-vb")
        assert np.abs(found.value).max() < 2 * np.abs(X).max()
        assert np.isfinite(found.diagnostics["objective"]).all()


@pytest.mark.parametrize("method", cs.methods())
@pytest.mark.parametrize("scale", [1e-300, 1e-120, 1e-49, 1e40, 1e49])
def test_numbers_of_any_size_are_judged_without_overflow(method, scale):
    """Beside one party that is as far away as can be."""
    X = np.vstack([scale * honest(6, 50), np.full((1, 50), 9e49)])
    found = cs.aggregate(X, method)
    assert np.isfinite(found.value).all()
    assert not found.rejected
    assert found.reasons is not None
    if method not in THE_MEAN and scale == 1e-49:  # below it all but one are equal
        assert np.abs(found.value).max() < 1e-3


@pytest.mark.parametrize("size", [50, 200_000])
def test_a_number_too_large_to_be_compared_costs_its_party_alone(size):
    X = honest(6, size)
    X[2, size // 3] = -1e60
    found = cs.aggregate(X)
    said = f"the update holds -1e+60 at position {size // 3}, beyond 1e+50"
    assert found.rejected == {"2": said}


@pytest.mark.parametrize("copies", [2, 3, 6])
def test_beside_copies_nobody_is_judged_by_a_length_of_zero(copies):
    x = np.arange(1.0, 6.0)
    found = cs.aggregate([*[x] * copies, 1.1 * x])
    assert not any("length" in reason for reason in found.reasons.values())
    assert 0 < found.weights[str(copies)] < found.weights["0"]  # those who agree are believed


@pytest.mark.parametrize("far", [1e4, 1e8, 1e14, 1e25])
def test_a_past_on_a_larger_scale_is_no_licence(far):
    """Where the remembered noise hides how far one party is now, this round's lengths do not."""
    random, memory = np.random.default_rng(0), cs.Memory()
    for _ in range(3):
        cs.aggregate(1e20 * random.standard_normal((7, 500)), memory=memory)
    X = random.standard_normal((7, 500))
    X[6] *= far
    assert distance(cs.aggregate(X, memory=memory).value, 0) < 1.5
