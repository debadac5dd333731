"""No path returns a coordinate it did not compute, however large the numbers are."""

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import consilience as cs

NUMBERS = 8_500_000  # sampled from five parties on, and more than one stripe of work


@pytest.fixture(autouse=True)
def dirty(monkeypatch):
    """Fill what is not initialised with what would show; and form stripe after stripe."""
    clean = np.empty

    def empty(*args, **kwargs):
        out = clean(*args, **kwargs)
        if out.dtype.kind == "f":
            out.fill(np.nan)
        return out

    monkeypatch.setattr(np, "empty", empty)
    monkeypatch.setattr("consilience.passes.parallel.cores", lambda: 1)


def sent(parties, largest):
    X = np.random.default_rng(0).random((parties, NUMBERS // parties), np.float32) - np.float32(0.5)
    X[-1] *= np.float32(largest)
    return X


def expected(found, X, center=None):
    weights = np.array([found.weights[p] for p in map(str, range(len(X)))])
    y = weights @ X.astype(np.float64)
    return y if center is None else y + (1 - weights.sum()) * center


def check(found, X, center=None):
    y = expected(found, X, center)
    assert np.isfinite(found.value).all()
    scale = np.abs(X.astype(np.float64) * np.array(list(found.weights.values()))[:, None]).max()
    assert np.abs(found.value - y).max() <= 1e-5 * max(scale, 1e-30)


@pytest.mark.parametrize("form", ["rows", "apart"])
@pytest.mark.parametrize(
    ("method", "parties", "largest"),
    [
        ("mean", 11, 1e20),
        ("mean", 3, 1e37),
        ("geometric-median", 11, 1e25),
        ("ivar-mle", 11, 1e20),
        ("icov-mle", 5, 1e20),
        ("pairwise", 2, 1e20),
        (cs.Pairwise(corroborate=False), 11, 1e25),
        ("krum", 5, 1e20),
    ],
)
def test_a_square_that_overflows(method, parties, largest, form):
    X = sent(parties, largest)
    found = cs.aggregate(X if form == "rows" else list(X), method)
    assert not found.rejected
    check(found, X)


def test_a_square_that_overflows_where_witnesses_are_asked_for():
    X = sent(11, 1e25)
    plain = cs.aggregate(list(X), cs.Pairwise(corroborate=False))
    found = cs.aggregate(list(X))
    assert not found.rejected
    assert found.uncorroborated
    assert np.abs(found.value - plain.value).max() < 0.1


def test_one_very_precise_party():
    X = sent(11, 1.0)
    X[:10] *= np.float32(1e20)
    check(cs.aggregate(list(X), "ivar-mle"), X)


@pytest.mark.parametrize("method", ["ivar-vb", "mean"])
def test_about_a_centre(method):
    X = sent(5, 1e20)
    center = np.full(X.shape[1], 1e3, np.float32)
    check(cs.aggregate(list(X), method, center=center), X, center)


@pytest.mark.parametrize("method", ["coordinate-median", "trimmed-mean", cs.TrimmedMean(0)])
def test_coordinate_by_coordinate(method):
    X = sent(5, 1e20)
    found = cs.aggregate(list(X), method).value
    exact = np.sort(X.astype(float), axis=0)
    cut = {"coordinate-median": 2, "trimmed-mean": 1}.get(method, 0)
    np.testing.assert_allclose(found, exact[cut : 5 - cut].mean(axis=0), rtol=1e-5)


@pytest.mark.parametrize("method", cs.methods())
@pytest.mark.parametrize("size", [7, 1000])
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_the_largest_numbers_there_are(method, size, dtype):
    """A sum of them rounds to no more than the largest."""
    X = np.full((6, size), np.finfo(dtype).max)
    X[3] *= dtype(-0.9)
    X[4] = 0
    found = cs.aggregate(list(X), method)
    assert not found.rejected
    assert np.isfinite(found.value).all()
    assert not np.isnan(found.value).any()


@pytest.mark.parametrize("method", cs.methods())
def test_numbers_beyond_the_range_of_most(method):
    """One sends wider numbers than the others, whose dtype is the consensus's."""
    X = [np.ones(7, np.float16), np.zeros(7, np.float16), np.full(7, 1e30)]
    found = cs.aggregate(X, method).value
    assert found.dtype == np.float16
    assert np.isfinite(found).all()


def test_from_files(tmp_path):
    X = sent(5, 1e20)
    for j, x in enumerate(X):
        save_file({"w": x}, tmp_path / f"{j}.safetensors")
    paths = {str(j): tmp_path / f"{j}.safetensors" for j in range(len(X))}
    found = cs.aggregate_files(paths, tmp_path / "out.safetensors", "mean")
    np.testing.assert_allclose(load_file(found.value)["w"], expected(found, X), rtol=1e-5)
