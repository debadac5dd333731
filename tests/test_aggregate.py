"""aggregate(): the public interface, the sampled path, and what adversaries achieve."""

import inspect
from itertools import pairwise

import numpy as np
import pytest
import torch

import consilience as cs
from consilience.evidence import sampled_spans
from consilience.updates import parse

LARGE = 400_000
COORDINATEWISE = {"coordinate-median", "trimmed-mean"}
SELECTING = {"krum", "multi-krum"}


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
    expected = 1.0 if method == "krum" else 0.25
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
    with pytest.raises(cs.ConsilienceError, match=r"'median'; choose from mean, .*icov-full"):
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
    precision = torch.finfo(dtype).eps
    torch.testing.assert_close(
        flat.double(), torch.tensor(same), rtol=2 * precision, atol=4 * precision
    )


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
    """Put a value where the evidence does not look. A change there must not move the spans."""
    spans = sampled_spans(parse(X))
    at = between(spans)
    X[party, at] = value
    assert sampled_spans(parse(X)) == spans
    return at


@pytest.mark.parametrize("method", cs.methods())
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("form", [np.asarray, list], ids=["stack", "list"])
def test_no_nan_hides_between_the_spans(random, method, value, form):
    X = noisy(random, [1, 1, 1, 1, 1.2], LARGE, truth=1.0).astype(np.float32)
    X[2] = 1 + 0.3 * (X[2] - 1)  # so that Krum, too, would believe it
    at = hidden(X, 2, value)
    found = cs.aggregate(form(X), method)
    exact = cs.aggregate(form(X), method, exact=True)
    assert found.rejected == exact.rejected == {"2": f"the update holds {value} at position {at}"}
    without = cs.aggregate({str(j): X[j] for j in (0, 1, 3, 4)}, method)
    np.testing.assert_allclose(found.value, without.value, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("method", cs.methods())
@pytest.mark.parametrize("size", [1e4, 1e8, 1e30])
def test_no_huge_value_hides_between_the_spans(random, method, size):
    X = noisy(random, [1, 1, 1, 1, 1.2], LARGE, truth=1.0).astype(np.float32)
    hidden(X, 2, size)
    found = cs.aggregate(X, method)
    exact = cs.aggregate(X, method, exact=True)
    if method in SELECTING and not found.weights["2"]:
        return  # not selected, so what it hides is of no account
    if method in COORDINATEWISE:  # their values are exact, their weights told of a sample
        np.testing.assert_array_equal(found.value, exact.value)
        assert found.weights == pytest.approx(exact.weights, rel=0.05)
        return
    assert found.weights == exact.weights
    assert found.noise == exact.noise
    assert np.isfinite(list(found.noise.values())).all()
    np.testing.assert_array_equal(found.value, exact.value)


@pytest.mark.parametrize("form", [np.asarray, list], ids=["stack", "list"])
def test_a_huge_party_does_not_cover_what_another_hides(random, form):
    X = noisy(random, np.ones(12), LARGE).astype(np.float32)
    X[11] *= 1e15
    hidden(X, 2, 1e4)
    found = cs.aggregate(form(X))
    assert found.diagnostics["coordinates_seen"] == LARGE
    assert found.weights["2"] < 0.1 * found.weights["0"]


def test_sampling_is_reported(random):
    X = noisy(random, [1, 1, 1], LARGE).astype(np.float32)
    assert cs.aggregate(X).diagnostics["coordinates_seen"] < LARGE / 3
    assert cs.aggregate(X, exact=True).diagnostics["coordinates_seen"] == LARGE


@pytest.mark.parametrize(
    "method", [m for m in cs.methods() if m not in {*SELECTING, *COORDINATEWISE}]
)
@pytest.mark.parametrize("parties", [8, 40])
def test_sampled_weights_are_within_a_hundredth_of_exact_ones(random, method, parties):
    noise = np.linspace(0.5, 2, parties)
    X = noisy(random, noise, LARGE, truth=random.standard_normal(LARGE)).astype(np.float32)
    sampled, exact = (cs.aggregate(X, method, exact=exact) for exact in [False, True])
    assert sampled.diagnostics["coordinates_seen"] < exact.diagnostics["coordinates_seen"]
    assert sampled.weights == pytest.approx(exact.weights, rel=0.01)


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
