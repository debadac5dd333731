"""What callers pass by mistake: understood, or refused in words."""

from dataclasses import replace

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch

import consilience as cs
from consilience.beliefs import Beliefs


@pytest.fixture
def X():
    random = np.random.default_rng(5)
    return random.standard_normal(20) + random.standard_normal((5, 20))


def same(found, X, names):
    expected = cs.aggregate(dict(zip(names, X, strict=True)))
    np.testing.assert_allclose(found.value, expected.value)
    assert found.weights == pytest.approx(expected.weights)
    assert found.parties == tuple(names)


def test_rows_of_a_data_frame_are_parties(X):
    same(cs.aggregate(pd.DataFrame(X)), X, "01234")
    named = pd.DataFrame(X, index=list("edcba"), columns=[f"c{k}" for k in range(20)])
    same(cs.aggregate(named), X, "edcba")
    same(cs.aggregate(pl.DataFrame(X)), X, "01234")
    assert cs.aggregate(pd.DataFrame(X.astype(np.float32))).value.dtype == np.float32
    numbers = pd.Series([1.0, 2.0, 6.0], index=["ann", "bob", "eve"])
    assert cs.aggregate(numbers, "mean").weights == pytest.approx(
        dict.fromkeys(numbers.index, 1 / 3)
    )
    assert cs.aggregate(numbers, "mean").value == pytest.approx(3.0)


def test_what_is_missing_in_a_data_frame_is_rejected_by_name(X):
    frame = pd.DataFrame(X, index=list("abcde")).astype("Float64")
    frame.loc["c", 3] = pd.NA
    assert list(cs.aggregate(frame).rejected) == ["c"]
    mixed = pd.DataFrame(X, index=list("abcde")).assign(flag=[True, False, None, True, False])
    assert list(cs.aggregate(mixed).rejected) == ["c"]


@pytest.mark.parametrize(
    "frame",
    [
        lambda X: pd.DataFrame(X).assign(who=list("abcde")),
        lambda X: pl.DataFrame(X).with_columns(who=pl.Series(list("abcde"))),
        lambda X: pa.table({"a": X[0], "b": X[1]}),
        lambda X: pl.DataFrame(X).lazy(),
        lambda X: pd.DataFrame(X).assign(when=pd.date_range("2020-01-01", periods=5)),
        lambda X: pd.DataFrame(X).assign(number=list("12345")),
    ],
    ids=["pandas", "polars", "arrow", "lazy", "dates", "digits"],
)
@pytest.mark.filterwarnings("ignore::polars.exceptions.PerformanceWarning")
def test_a_data_frame_that_is_not_all_numbers_is_refused(X, frame):
    with pytest.raises(cs.UpdateError, match="a row for each party"):
        cs.aggregate(frame(X))


def test_parties_of_the_same_name(X):
    with pytest.raises(cs.UpdateError, match="the id 'a'"):
        cs.aggregate(pd.DataFrame(X, index=list("aabcd")))


@pytest.mark.parametrize(
    "model",
    [
        torch.nn.Linear(3, 2),
        torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2)),
        torch.nn.BatchNorm1d(4),
        torch.nn.LayerNorm(4),
    ],
    ids=["linear", "two layers", "batch norm", "layer norm"],
)
def test_one_state_dict_is_not_a_round(model):
    with pytest.raises(cs.UpdateError, match=r"tensors of one model.*\{party: model\}"):
        cs.aggregate(model.state_dict())


@pytest.mark.parametrize("as_list", [True, False])
def test_one_plain_model_is_not_a_round(as_list):
    model = {"w1": np.ones((4, 8)), "b1": np.ones(8), "w2": np.ones((8, 2)), "b2": np.ones(2)}
    with pytest.raises(cs.UpdateError, match="tensors of one model"):
        cs.aggregate(list(model.values()) if as_list else model)


def test_layers_of_one_model_are_not_a_round():
    layers = {f"Dense_{n}": {"kernel": np.ones((n, 5)), "bias": np.ones(5)} for n in (1, 2, 3)}
    with pytest.raises(cs.UpdateError, match="tensors of one model"):
        cs.aggregate(layers)
    layers |= {"Dense_4": layers["Dense_1"]}
    assert len(cs.aggregate(layers, "mean").rejected) == 2


def test_a_round_is_not_taken_for_a_model():
    """As long as more agree than do otherwise, or each party sends a tree, or there is a centre."""
    bare = {"a": np.ones(3), "b": np.ones(3), "c": np.ones(4), "d": np.ones(5)}
    assert list(cs.aggregate(bare, "mean").rejected) == ["c", "d"]
    trees = {p: {"w": np.ones(n)} for n, p in enumerate("abcde", 1)}
    assert len(cs.aggregate(trees, "mean").rejected) == 4
    assert len(cs.aggregate(list(map(np.ones, (3, 4, 5))), "mean", center=np.ones(5)).rejected) == 2
    assert not cs.aggregate({"bias": np.ones(2), "ann": np.ones(2)}, "mean").rejected


@pytest.mark.parametrize("method", [cs.IVAR, cs.TrimmedMean, cs.Pairwise])
def test_a_class_is_no_method(X, method):
    with pytest.raises(
        cs.ConsilienceError, match=rf"the class {method.__name__}, write {method.__name__}\(\)"
    ):
        cs.aggregate(X, method)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_an_estimator_of_ones_own_that_fails(X, value):
    class Mine:
        remembers = follows = False

        def infer(self, evidence, given=None):
            weights = np.array([0.5, value, 0.5, 0, 0])
            return Beliefs(evidence, (weights,), np.ones(5))

        def __repr__(self):
            return "Mine()"

    memory = cs.Memory()
    with pytest.raises(
        cs.ConsilienceError, match=r"Mine\(\) gave party 1 a weight that is not finite"
    ):
        cs.aggregate(X, Mine(), memory=memory)
    assert memory.rounds == 0


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (lambda e: None, "returned NoneType: expected Beliefs"),
        (lambda e: Beliefs(e, (np.ones(4),), np.ones(5)), r"weights of shapes \[\(4,\)\]"),
        (lambda e: Beliefs(e, (), np.ones(5)), r"weights of shapes \[\]: expected \[\(5,\)\]"),
        (
            lambda e: Beliefs(e, (np.ones(5),), np.ones(4)),
            r"noise of shape \(4,\): expected \(5,\)",
        ),
    ],
)
def test_an_estimator_of_ones_own_that_returns_something_else(X, made, reason):
    class Mine(cs.Mean):
        def infer(self, evidence, *given):
            return made(evidence)

    with pytest.raises(cs.ConsilienceError, match=reason):
        cs.aggregate(X, Mine())


def test_an_estimator_of_ones_own_says_whether_it_remembers_and_may_return_lists(X):
    class Mine:
        def infer(self, evidence, given=None):
            return Beliefs(evidence, ([0.2] * 5,), [1] * 5)

    with pytest.raises(cs.ConsilienceError, match="does not say whether it remembers"):
        cs.aggregate(X, Mine())
    Mine.remembers = Mine.follows = False
    assert cs.aggregate(X, Mine()).weights["3"] == 0.2


class Nobody(cs.Mean):
    """An estimator that believes nobody."""

    def infer(self, evidence, *given):
        beliefs = super().infer(evidence, *given)
        return replace(beliefs, weights=tuple(np.zeros_like(w) for w in beliefs.weights))


@pytest.mark.parametrize("center", [None, 3.0])
def test_where_nobody_is_believed_the_centre_is_left(center):
    around = None if center is None else np.full(5, center)
    found = cs.aggregate(np.ones((4, 5)), Nobody(), center=around)
    np.testing.assert_array_equal(found.value, np.full(5, center or 0.0))
    assert found.diagnostics["effective_parties"] == 0


def test_weights_too_small_to_square_are_counted():
    X = np.random.default_rng(0).standard_normal((6, 50))
    found = cs.aggregate(X, cs.IVAR("vb", prior_variance=1e-200), center=np.ones(50))
    assert 0 < found.weights["0"] < 1e-190
    assert 1 <= found.diagnostics["effective_parties"] <= 6
    np.testing.assert_allclose(found.value, 1)
