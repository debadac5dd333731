"""Sample counts that are none: they cost their party, or nothing, and never the round."""

import numpy as np
import pandas as pd
import pytest

import consilience as cs
from consilience.lab.studies import hospitals


class Refusing:
    def __float__(self):
        raise RuntimeError("no")

    def __repr__(self):
        raise RuntimeError("no")


def sent(parties=5):
    random = np.random.default_rng(3)
    return random.standard_normal(200) + random.standard_normal((parties, 200))


@pytest.mark.parametrize("method", ["pairwise", "mean", "geometric-median", "trimmed-mean"])
@pytest.mark.parametrize(
    "count",
    [np.nan, "nan", 10**400, 10**5000, -np.inf, -1, 0, "many", [1], Refusing(), "x" * 10**6],
    ids=lambda count: type(count).__name__,
)
def test_a_count_that_is_none_leaves_with_its_party(method, count):
    X = sent()
    found = cs.aggregate(X, method, sample_counts=[1, 2, 3, 4, count])
    assert list(found.rejected) == ["4"]
    assert len(found.rejected["4"]) < 200
    expected = cs.aggregate(X[:4], method, sample_counts=[1, 2, 3, 4])
    np.testing.assert_allclose(found.value, expected.value, rtol=1e-9)


@pytest.mark.parametrize("method", ["pairwise", "mean", "geometric-median"])
def test_who_is_screened_out_takes_its_count_along(method):
    """A NaN is found after the counts have been looked at."""
    X = sent()
    X[0, 7] = np.nan
    counts = {"0": 1e9, "1": 1, "2": 2, "3": 3}  # nobody knows of 4
    found = cs.aggregate(X, method, sample_counts=counts)
    assert list(found.rejected) == ["0"]
    expected = cs.aggregate(X[1:], method, sample_counts=[1, 2, 3, 2])
    np.testing.assert_allclose(found.value, expected.value, rtol=1e-9)


def test_a_count_nobody_knows_is_the_median():
    found = cs.aggregate(sent(4), "mean", sample_counts={"0": 1, "1": 3, "2": 1e300})
    assert not found.rejected
    assert found.weights["3"] == found.weights["1"] > 0
    nobody = cs.aggregate(sent(4), "mean", sample_counts={"someone": 5})
    assert set(nobody.weights.values()) == {0.25}


def test_a_series_of_counts_is_read_by_its_index():
    updates = dict(zip("abcd", sent(4), strict=True))
    named = pd.Series([4.0, 3.0, 2.0, 1.0], index=list("dcba"))
    found = cs.aggregate(updates, "mean", sample_counts=named)
    assert found.weights == pytest.approx({"a": 0.1, "b": 0.2, "c": 0.3, "d": 0.4})
    places = cs.aggregate(updates, "mean", sample_counts=pd.Series([1, 2, 3, 4]))
    assert places.weights == pytest.approx(found.weights)


def test_where_everybody_has_none_nobody_counts():
    found = cs.aggregate(sent(4), "mean", sample_counts=[0, 0, 0, 0])
    assert not found.rejected
    assert set(found.weights.values()) == {0.25}


@pytest.mark.parametrize("method", ["pairwise", "mean", "geometric-median"])
@pytest.mark.parametrize(
    "counts", [[1.7e308] * 4, [5e-324] * 4, [5e-324, 1, 1e3, 1.7e308]], ids=str
)
def test_counts_at_the_ends_of_the_range(method, counts):
    found = cs.aggregate(sent(4), method, sample_counts=counts)
    assert not found.rejected
    assert np.isfinite(found.value).all()


@pytest.mark.parametrize("counts", [[1.7e308] * 4, [5e-324, 1, 1e3, 1.7e308]], ids=str)
def test_trusted_counts_at_the_ends_of_the_range(counts):
    found = cs.aggregate(sent(4), sample_counts=counts, trusted_counts=True)
    assert np.isfinite(found.value).all()
    assert max(found.weights.values()) <= 0.5 + 1e-12


def test_trusted_counts_of_parties_who_agree():
    counts, memory = {"a": 10, "b": 20, "c": 30}, cs.Memory(seed=0)
    random = np.random.default_rng(1)
    with np.errstate(all="raise", under="ignore"):
        for sent in (
            {p: random.standard_normal(50) for p in counts},
            dict.fromkeys(counts, np.ones(50)),
        ):
            found = cs.aggregate(sent, memory=memory, sample_counts=counts, trusted_counts=True)
    assert (found.value == 1).all()


@pytest.mark.parametrize("factor", [1000, -1000])
@pytest.mark.parametrize("seed", range(3))
def test_a_small_hospital_cannot_move_a_large_federation(seed, factor):
    """KatherLab/MediSwarm #566: 0.6 % of the data, times a thousand; norm clipping: 0.04 there."""
    errors = hospitals.errors(seed, 7, factor)
    assert errors["weighted mean"] > 5
    assert errors["pairwise, trusted counts"] < 0.015 < errors["pairwise"]
    if factor < 0:  # clipping undoes a mere scale
        assert errors["pairwise, trusted counts"] < errors["norm clipped"]


def test_a_large_hospital_cannot_either():
    errors = hospitals.errors(0, 0, -1000)
    assert errors["norm clipped"] > 1
    assert errors["pairwise, trusted counts"] < 1.05 * errors["weighted mean of the others"]


@pytest.mark.parametrize("method", ["pairwise", "mean"])
@pytest.mark.parametrize("drift", [0.0, 0.3, 1.0])
def test_sites_weigh_by_known_samples_and_nobody_is_blamed_for_few(monkeypatch, method, drift):
    monkeypatch.setattr(hospitals, "DRIFT", drift)
    X, counts = hospitals.honest(1), hospitals.SAMPLES
    found = cs.aggregate(X, method, sample_counts=counts, trusted_counts=True)
    assert found.reasons == {}
    shares = counts / counts.sum()
    assert np.abs(np.array(list(found.weights.values())) - shares).max() < 0.035
    if drift < 1:
        assert cs.aggregate(
            X, method, sample_counts=counts
        ).reasons  # a mere claim explains nothing


def test_large_sites_that_agree_are_no_copies():
    """With slack, a pair nearer than typical is taken for one voice, unless samples explain it."""
    counts = np.array([9e4, 9e4, *[1e3] * 8])
    random = np.random.default_rng(0)
    X = random.standard_normal((10, 5000)) * (1e3 / counts[:, None]) ** 0.5
    method = cs.Pairwise(slack=3.0)
    assert cs.aggregate(X, method, sample_counts=counts).groups
    found = cs.aggregate(X, method, sample_counts=counts, trusted_counts=True)
    assert not found.groups
    assert found.weights["0"] == pytest.approx(90 / 188, rel=0.02)


def test_trusted_counts_change_nothing_where_there_are_none():
    X = sent(6)
    for counts in (None, [7] * 6):
        found = cs.aggregate(X, sample_counts=counts, trusted_counts=True)
        assert found.weights == pytest.approx(cs.aggregate(X).weights, rel=0.05)
