"""What must not matter does not: order, names, origin, unit, chunks, splitting, dtype.

Every method is smooth in the updates except where it chooses: Krum and its like by scores, the
coordinate-wise rules by sorting, icov-vb by a test for one more hidden direction. There the answer
is continuous only in pieces. The examples keep away from the edges between the pieces: noise
levels are well apart, and coordinates enough for scores and tests to be clear.
"""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import consilience as cs
from consilience.deliberation import deliberate
from consilience.engines.in_process import InProcess
from consilience.estimators.catalogue import resolve
from consilience.updates.parsing import parse

SMOOTH = [
    *("mean", "geometric-median", "ivar-mle", "ivar-vb", "icov-mle", "icov-full", "icov-vb"),
    "pairwise",
]
LINEAR = [*SMOOTH, "krum", "multi-krum", "mda", "dnc", "caf", "centred-clipping", "nnm", "arc"]
CENTRED = ("ivar-vb", "icov-vb", "centred-clipping", "arc")  # the centre may have a weight
few = settings(
    max_examples=12,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@st.composite
def rounds(draw):
    """Return updates (J, K) and a centre: J noise levels, each at least 1.3 times another."""
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    count, size = draw(st.integers(4, 7)), draw(st.integers(200, 400))
    levels = random.permutation(1.3 ** np.arange(count)) * random.uniform(1.0, 1.05, count)
    truth = random.standard_normal(size)
    X = truth + levels[:, None] * random.standard_normal((count, size))
    return X, truth + random.standard_normal(size)


def named(X, order=None):
    parties = [f"p{j}" for j in range(len(X))]
    return {parties[j]: X[j] for j in (range(len(X)) if order is None else order)}


def assert_follows(found, expected, rtol=1e-6):
    """Same parties, same beliefs, same value."""
    assert found.weights == pytest.approx(expected.weights, rel=rtol, abs=rtol)
    assert found.noise == pytest.approx(expected.noise, rel=rtol)
    np.testing.assert_allclose(found.value, expected.value, rtol=rtol, atol=rtol)


@pytest.mark.parametrize("method", cs.methods())
@few
@given(data=rounds(), order=st.randoms(use_true_random=False))
def test_the_order_of_a_mapping_changes_no_bit(method, data, order):
    X, center = data
    turned = list(range(len(X)))
    order.shuffle(turned)
    expected = cs.aggregate(named(X), method, center=center)
    found = cs.aggregate(named(X, turned), method, center=center)
    np.testing.assert_array_equal(found.value, expected.value)
    assert found.weights == expected.weights
    assert found.noise == expected.noise
    assert found.parties == tuple(f"p{j}" for j in turned)
    if found.covariance is not None:
        at = np.ix_(turned, turned)
        np.testing.assert_array_equal(found.covariance, expected.covariance[at])


@pytest.mark.parametrize("method", cs.methods())
@few
@given(data=rounds(), order=st.randoms(use_true_random=False))
def test_permuted_rows_permute_the_answer(method, data, order):
    X, center = data
    turned = list(range(len(X)))
    order.shuffle(turned)
    expected = cs.aggregate(X, method, center=center)
    found = cs.aggregate(X[turned], method, center=center)
    np.testing.assert_allclose(found.value, expected.value, rtol=1e-6, atol=1e-6)
    for now, before in enumerate(turned):
        assert found.weights[str(now)] == pytest.approx(expected.weights[str(before)], abs=1e-6)
        assert found.noise[str(now)] == pytest.approx(expected.noise[str(before)], rel=1e-6)


@pytest.mark.parametrize("method", cs.methods())
@few
@given(data=rounds(), shift=st.floats(-1e3, 1e3), seed=st.integers(0, 99))
def test_translation(method, data, shift, seed):
    """Updates and centre moved together, by another distance in each coordinate."""
    X, center = data
    move = shift * np.random.default_rng(seed).standard_normal(center.size)
    expected = cs.aggregate(X, method, center=center)
    found = cs.aggregate(X + move, method, center=center + move)
    assert found.weights == pytest.approx(expected.weights, rel=1e-6, abs=1e-6)
    assert found.noise == pytest.approx(expected.noise, rel=1e-6)
    np.testing.assert_allclose(found.value - move, expected.value, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("method", cs.methods())
@few
@given(data=rounds(), exponent=st.floats(-12, 12), sign=st.sampled_from([-1, 1]))
def test_scaling(method, data, exponent, sign):
    X, center = data
    unit = sign * 10.0**exponent
    expected = cs.aggregate(X, method, center=center)
    found = cs.aggregate(unit * X, method, center=unit * center)
    assert found.weights == pytest.approx(expected.weights, rel=1e-6, abs=1e-6)
    noise = {party: level / abs(unit) for party, level in found.noise.items()}
    assert noise == pytest.approx(expected.noise, rel=1e-6)
    np.testing.assert_allclose(found.value / unit, expected.value, rtol=1e-6, atol=1e-6)
    if found.variance is not None:
        assert found.variance / unit**2 == pytest.approx(expected.variance, rel=1e-6)


@pytest.mark.parametrize("method", cs.methods())
@few
@given(data=rounds(), cuts=st.lists(st.integers(0, 200), max_size=6).map(sorted))
def test_splitting_into_tensors(method, data, cuts):
    X, center = data

    def split(x):
        return [part.reshape(-1, 1) for part in np.split(x, cuts)]

    expected = cs.aggregate(list(X), method, center=center)
    found = cs.aggregate([split(x) for x in X], method, center=split(center))
    assert found.weights == pytest.approx(expected.weights, rel=1e-6, abs=1e-6)
    assert found.noise == pytest.approx(expected.noise, rel=1e-6)
    flat = np.concatenate([part.reshape(-1) for part in found.value])
    np.testing.assert_allclose(flat, expected.value, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("method", cs.methods())
@few
@given(data=rounds(), widest=st.integers(1, 500), work=st.integers(1, 20_000))
def test_pieces_and_stripes(method, data, widest, work):
    """However many coordinates are read at once, and however many threads share them."""
    X, center = data
    expected = cs.aggregate(list(X), method, center=center)
    engine = InProcess(replace(parse(list(X), center), widest=widest))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("consilience.passes.parallel._LEAST_WORK", work)
        assert_follows(deliberate(engine, resolve(method)), expected)


@pytest.mark.parametrize("method", cs.methods())
@few
@given(data=rounds())
def test_widening_float32(method, data):
    """The same numbers in float64 give the same beliefs, and the value rounded."""
    X, center = (x.astype(np.float32) for x in data)
    narrow = cs.aggregate(X, method, center=center)
    wide = cs.aggregate(X.astype(float), method, center=center.astype(float))
    assert narrow.value.dtype == np.float32
    assert wide.value.dtype == np.float64
    assert_follows(narrow, wide, rtol=1e-5)


@pytest.mark.parametrize("method", cs.methods())
@few
@given(data=rounds())
def test_running_twice_changes_no_bit(method, data):
    X, center = data
    first, second = (cs.aggregate(X, method, center=center) for _ in range(2))
    np.testing.assert_array_equal(first.value, second.value)
    assert first.weights == second.weights


@pytest.mark.parametrize("method", LINEAR)
@few
@given(data=rounds())
def test_the_value_is_the_weighted_sum_stated(method, data):
    X, center = data
    found = cs.aggregate(X, method, center=center)
    weights = np.array(list(found.weights.values()))
    expected = weights @ X + (1 - weights.sum()) * center
    np.testing.assert_allclose(found.value, expected, rtol=1e-9, atol=1e-9)
    if method not in CENTRED:
        assert weights.sum() == pytest.approx(1)
