"""aggregate(): the public interface, the sampled path, and what adversaries achieve."""

import inspect
from functools import lru_cache
from itertools import pairwise

import numpy as np
import pytest
import torch

import consilience as cs
from consilience.passes.sampling import sampled_spans

LARGE = 400_000
SAMPLED = 1_700_000  # of five parties
SEED = 7
COORDINATEWISE = {"coordinate-median", "trimmed-mean"}
# Who chooses may choose otherwise after the least change.
SELECTING = {"krum", "multi-krum", "mda", "dnc", "caf", "nnm", "arc"}


def noisy(random, scales, size, truth=0.0):
    scales = np.asarray(scales)
    return truth + scales[:, None] * random.standard_normal((scales.size, size))


@pytest.fixture
def random():
    return np.random.default_rng(12)


def test_the_public_names():
    parameters = inspect.signature(cs.aggregate).parameters
    assert list(parameters)[:5] == ["updates", "method", "memory", "center", "sample_counts"]
    assert set(cs.__all__) <= set(dir(cs))
    paper = "mean geometric-median coordinate-median trimmed-mean krum multi-krum ivar-mle ivar-vb"
    assert {*paper.split(), "icov-mle", "icov-vb", "icov-full"} <= set(cs.methods())


@pytest.mark.parametrize("method", cs.methods())
def test_a_consensus_has_everything_promised(random, method):
    X = noisy(random, [1, 1, 1, 1, 5], 300, truth=2.0)
    updates = dict(zip(["e", "d", "c", "b", "a"], X, strict=True)) | {"bad": np.full(300, np.nan)}
    c = cs.aggregate(updates, method=method)
    assert c.value.shape == (300,)
    assert c.parties == ("e", "d", "c", "b", "a")  # as given
    assert list(c.weights) == list(c.noise) == list(updates)
    assert c.weights["bad"] == 0
    assert sum(c.weights.values()) <= 1 + 1e-9
    assert c.rejected == {"bad": "the update holds nan at position 0"}
    assert all(type(w) is float for w in c.weights.values())
    assert all(c.noise[p] >= 0 for p in c.parties)
    if c.covariance is not None:
        assert c.covariance.shape == (5, 5)
        np.testing.assert_allclose(np.sqrt(np.diag(c.covariance)), [c.noise[p] for p in c.parties])
    for key in ["iterations", "converged", "objective", "effective_parties", "seconds"]:
        assert key in c.diagnostics
    assert 1 <= c.diagnostics["effective_parties"] <= 5 + 1e-9
    assert (c.variance is not None) == method.endswith("-vb")
    if method not in COORDINATEWISE:
        weights = np.array([c.weights[p] for p in c.parties])
        np.testing.assert_allclose(c.value, weights @ X, rtol=1e-9, atol=1e-12)
    if method not in {"krum", "mean", "icov-mle"}:  # those, by design, treat "a" as an equal
        assert c.weights["a"] < max(c.weights[p] for p in "bcde")
        if method not in {"mda", "dnc", "nnm", "arc"}:  # those leave out more than one
            assert c.weights["a"] < min(c.weights[p] for p in "bcde")
        assert c.noise["a"] == max(c.noise[p] for p in c.parties)


@pytest.mark.parametrize("method", cs.methods())
@pytest.mark.parametrize(("parties", "size"), [(1, 5), (1, 1), (2, 5), (2, 1), (5, 1), (8, 3)])
def test_few_parties_and_few_coordinates(random, method, parties, size):
    X = random.standard_normal((parties, size))
    found = cs.aggregate(X, method)
    assert found.value.shape == (size,)
    assert np.isfinite(found.value).all()
    assert np.isfinite(list(found.weights.values())).all()
    if parties == 1:
        np.testing.assert_allclose(found.value, X[0], rtol=1e-12)
        assert np.isnan(found.noise["0"])


@pytest.mark.parametrize("method", cs.methods())
def test_equal_parties_are_their_own_consensus(method):
    found = cs.aggregate(np.full((4, 6), 0.1), method)
    np.testing.assert_allclose(found.value, 0.1, rtol=1e-15)
    expected = {"krum": 1.0, "mda": 1 / 3, "dnc": 1 / 3}.get(method, 0.25)
    assert found.weights["0"] == pytest.approx(expected)
    assert set(found.noise.values()) == {0.0}


@pytest.mark.parametrize(
    ("method", "instance"),
    [("ivar-mle", cs.IVAR("mle")), ("icov-vb", cs.ICOV()), ("trimmed-mean", cs.TrimmedMean(0.2))],
)
def test_a_method_by_name_or_by_class(random, method, instance):
    X = noisy(random, [1, 2, 3, 4], 50)
    np.testing.assert_array_equal(cs.aggregate(X, method).value, cs.aggregate(X, instance).value)


def test_an_unknown_method_lists_the_known(random):
    with pytest.raises(cs.ConsilienceError, match=r"'median': did you mean .*icov-full"):
        cs.aggregate(np.eye(3), "median")
    with pytest.raises(cs.ConsilienceError, match="found int"):
        cs.aggregate(np.eye(3), 3)


def test_a_centre_pulls_what_a_prior_pulls(random):
    """With a prior this narrow the consensus stays close to the centre."""
    X, center = noisy(random, [1, 1, 1], 500, truth=5.0), random.standard_normal(500)
    method = cs.IVAR("vb", prior_variance=1e-3)
    free, held = cs.aggregate(X, "mean").value, cs.aggregate(X, method, center=center)
    share = sum(held.weights.values())
    assert share < 0.1
    expected = (1 - share) * center + sum(
        w * x for w, x in zip(held.weights.values(), X, strict=True)
    )
    np.testing.assert_allclose(held.value, expected, rtol=1e-12)
    assert np.abs(held.value - center).mean() < 0.1 * np.abs(free - center).mean()


@pytest.mark.parametrize("method", cs.methods())
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_torch_in_torch_out(random, method, dtype):
    X = torch.tensor(noisy(random, [1, 1, 1, 1, 4], 60)).to(dtype)
    updates = {str(j): {"w": x[:40].reshape(5, 8), "b": x[40:]} for j, x in enumerate(X)}
    found = cs.aggregate(updates, method).value
    same = cs.aggregate({str(j): x.double().numpy() for j, x in enumerate(X)}, method).value
    assert isinstance(found["w"], torch.Tensor)
    assert found["w"].dtype == found["b"].dtype == dtype
    assert found["w"].shape == (5, 8)
    flat = torch.cat([found["w"].reshape(-1), found["b"]])
    precision = 16 * torch.finfo(dtype).eps  # of sums that are cut where the tensors are
    torch.testing.assert_close(flat.double(), torch.tensor(same), rtol=precision, atol=precision)


@pytest.mark.parametrize("method", cs.methods())
@pytest.mark.parametrize("size", [500, LARGE])
def test_separate_arrays_equal_the_stack(random, method, size):
    X = noisy(random, [1, 1, 1, 1, 6], size, truth=1.0).astype(np.float32)
    stacked, apart = cs.aggregate(X, method), cs.aggregate(list(X), method)
    assert stacked.value.dtype == apart.value.dtype == np.float32
    np.testing.assert_allclose(stacked.value, apart.value, rtol=1e-5, atol=1e-6)
    assert stacked.weights == pytest.approx(apart.weights, rel=1e-6, abs=1e-12)


@pytest.mark.parametrize("method", cs.methods())
@pytest.mark.parametrize("dtype", [">f4", ">f8", "f2"])
def test_a_stack_of_any_dtype(random, method, dtype):
    X = noisy(random, [1, 1, 1, 5], 50).astype(dtype)
    found = cs.aggregate(X, method).value
    assert found.dtype == dtype
    expected = cs.aggregate(X.astype(float), method).value
    np.testing.assert_allclose(found.astype(float), expected, rtol=2e-3, atol=2e-3)


def between(spans):
    """Return a coordinate that no span covers."""
    return next(stop for (_, stop), (start, _) in pairwise(spans) if start > stop)


def hidden(X, party, value):
    """Put a value where the evidence does not look when it is told SEED."""
    at = between(sampled_spans(X.shape[1], len(X), np.random.default_rng(SEED)))
    X[party, at] = value
    return at


@lru_cache(1)
def five():
    X = noisy(np.random.default_rng(12), [1, 1, 1, 1, 1.2], SAMPLED, truth=1.0).astype(np.float32)
    X[2] = 1 + 0.3 * (X[2] - 1)  # so that Krum, too, would believe it
    return X


@pytest.mark.parametrize(
    ("method", "value"),
    [*((m, np.nan) for m in cs.methods()), ("pairwise", np.inf), ("trimmed-mean", -np.inf)],
)
def test_no_nan_hides_between_the_spans(method, value):
    X = five().copy()
    at = hidden(X, 2, value)
    found = cs.aggregate(X, method, seed=SEED)
    exact = cs.aggregate(X, method, exact=True)
    assert found.rejected == exact.rejected == {"2": f"the update holds {value} at position {at}"}
    without = cs.aggregate({str(j): X[j] for j in (0, 1, 3, 4)}, method)
    np.testing.assert_array_equal(found.value, without.value)


@pytest.mark.parametrize(
    ("method", "size"), [*((m, 1e4) for m in cs.methods()), ("mean", 1e30), ("trimmed-mean", 1e30)]
)
def test_no_huge_value_hides_between_the_spans(method, size):
    X = five().copy()
    hidden(X, 2, size)
    found = cs.aggregate(X, method, seed=SEED)
    exact = cs.aggregate(X, method, exact=True)
    assert np.isfinite(list(found.noise.values())).all()
    np.testing.assert_array_equal(found.value, exact.value)
    if method in COORDINATEWISE:  # their values are exact, their weights told of a sample
        assert found.weights == pytest.approx(exact.weights, rel=0.05)
        return
    assert found.diagnostics["coordinates_seen"] == SAMPLED
    assert found.weights == exact.weights
    assert found.noise == exact.noise


def test_a_huge_party_does_not_cover_what_another_hides(random):
    X = noisy(random, np.ones(12), 720_000).astype(np.float32)
    X[11] *= 1e15
    hidden(X, 2, 1e4)
    found = cs.aggregate(X, seed=SEED)
    assert found.diagnostics["coordinates_seen"] == 720_000
    assert found.weights["2"] < 0.1 * found.weights["0"]


@lru_cache(1)
def twelve():
    """Ten honest parties and two more that look like them, with the truth."""
    random = np.random.default_rng(3)
    truth = random.standard_normal(1_000_000, dtype=np.float32)
    return truth + random.standard_normal((12, truth.size), dtype=np.float32), truth


def unsampled(size, parties, seed):
    where = np.ones(size, bool)
    for start, stop in sampled_spans(size, parties, np.random.default_rng(seed)):
        where[start:stop] = False
    return np.flatnonzero(where)


@pytest.mark.parametrize(("count", "push"), [(1000, 30.0), (100_000, 3.0), (None, 2.0)])
@pytest.mark.parametrize("right", [False, True], ids=["wrong", "right"])
def test_two_adversaries_who_guess_where_nobody_looks_gain_nothing(count, push, right):
    """They put something large into coordinates that they believe unsampled. A wrong guess shows in
    the sample; and were it right, it would show while the sum is formed."""
    X, truth = twelve()
    X = X.copy()
    places = unsampled(truth.size, 12, SEED)
    places = places if count is None else np.random.default_rng(0).choice(places, count, False)
    X[10:, places] += np.float32(push)
    found = cs.aggregate(X, seed=SEED if right else None)
    exact = cs.aggregate(X, exact=True)
    # How much of it the sample sees is chance, up to what is a surprise: a few hundredths of a
    # distance, which may be a tenth of what was put there. Over all coordinates nothing shows.
    for where, tolerance in ((places, 0.2), (slice(None), 0.01)):
        error, least = (
            root_mean_square(consensus.value[where] - truth[where]) for consensus in (found, exact)
        )
        assert error == pytest.approx(least, rel=tolerance)
    if right:
        assert found.diagnostics["coordinates_seen"] == truth.size
        assert found.weights == exact.weights


def test_sampling_is_reported():
    X, _ = twelve()
    assert cs.aggregate(X).diagnostics["coordinates_seen"] < X.shape[1] / 3
    assert cs.aggregate(X, exact=True).diagnostics["coordinates_seen"] == X.shape[1]


def test_the_sample_is_secret_unless_a_seed_is_given():
    X, _ = twelve()
    one, other = (cs.aggregate(X) for _ in range(2))
    assert one.weights != other.weights
    assert one.weights == pytest.approx(other.weights, rel=0.05)  # by chance a hundredth
    one, other = (cs.aggregate(X, seed=4) for _ in range(2))
    assert one.weights == other.weights
    assert one.value.tobytes() == other.value.tobytes()


@lru_cache(1)
def levels(parties, size):
    random = np.random.default_rng(12)
    X = noisy(random, np.linspace(0.5, 2, parties), size, truth=random.standard_normal(size))
    return X.astype(np.float32)


@pytest.mark.parametrize(("parties", "size"), [(8, 1_100_000), (40, LARGE)])
@pytest.mark.parametrize(
    "method", [m for m in cs.methods() if m not in {*SELECTING, *COORDINATEWISE}]
)
def test_sampled_weights_are_about_a_hundredth_off(method, parties, size):
    """The sample is made for a largest error of 0.7 %: some draws have more, of eight up to 1.2."""
    X = levels(parties, size)
    sampled, exact = (cs.aggregate(X, method, exact=exact, seed=1) for exact in [False, True])
    assert sampled.diagnostics["coordinates_seen"] < exact.diagnostics["coordinates_seen"]
    assert sampled.weights == pytest.approx(exact.weights, rel=0.015)


def root_mean_square(x):
    return float(np.sqrt(np.mean(np.square(x))))


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("strength", [3.0, 30.0])
@pytest.mark.parametrize("centre", [False, True])
def test_gaussian_adversaries_are_outweighed(seed, strength, centre):
    """10 honest parties, 5 that add independent noise."""
    random = np.random.default_rng(seed)
    truth = random.standard_normal(5000)
    X = noisy(random, [1.0] * 10 + [strength] * 5, truth.size, truth)
    honest = root_mean_square(X[:10].mean(axis=0) - truth)
    guess = truth + random.standard_normal(truth.size) if centre else None

    def error(method):
        return root_mean_square(cs.aggregate(X, method, center=guess).value - truth) / honest

    assert error("mean") > 1.2 * max(1.0, strength / 6)
    # Adversaries with little noise are worth listening to a little: better than without them.
    assert error("ivar-vb") < 1.03
    assert error("icov-vb") < 1.03
