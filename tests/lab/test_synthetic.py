import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from consilience.lab.synthetic import linear_regression


def rows(features):
    return {row.tobytes() for row in features}


@given(
    seed=st.integers(0, 2**32),
    starts=st.lists(st.integers(0, 60), min_size=1, max_size=5),
)
def test_overlap_is_the_share_of_samples_in_common(seed, starts):
    data = linear_regression(seed, [1.0] * len(starts), samples=30, features=3, starts=starts)
    held = [rows(features) for features, _ in data.parties.values()]
    shared = [[len(a & b) / 30 for b in held] for a in held]
    assert np.allclose(data.overlap, shared)


def test_defaults_are_five_parties_of_300_samples():
    data = linear_regression(0)
    assert list(data.parties) == [f"party{j}" for j in range(5)]
    assert all(X.shape == (300, 100) and y.shape == (300,) for X, y in data.parties.values())
    assert data.truth.shape == (100,)
    assert np.allclose(data.overlap[0], [1, 0.8, 0.6, 0.4, 0.2])


def test_residuals_have_each_party_s_noise_and_are_shared():
    data = linear_regression(1, noise=(0.5, 4.0), samples=5000, features=4)
    (Xa, ya), (Xb, yb) = data.parties.values()
    residuals_a, residuals_b = ya - Xa @ data.truth, yb - Xb @ data.truth
    assert residuals_a.std() == pytest.approx(0.5, rel=0.05)
    assert residuals_b.std() == pytest.approx(4.0, rel=0.05)
    assert np.array_equal(Xa[1000:], Xb[:4000])  # overlap 0.8
    assert np.allclose(8 * residuals_a[1000:], residuals_b[:4000])


def test_least_squares_errors_have_the_stated_covariance():
    errors = []
    for seed in range(60):
        data = linear_regression(seed, features=50, samples=600)
        errors.append(
            [np.linalg.lstsq(X, y)[0] - data.truth for X, y in data.parties.values()]
        )  # (J, K)
    errors = np.concatenate(errors, axis=1)
    found = 600 * errors @ errors.T / errors.shape[1]

    def correlation(matrix):
        scale = np.sqrt(np.diag(matrix))
        return matrix / np.outer(scale, scale)

    # Finite samples make least squares noisier than σ²/n, by n/(n − K − 1), for all parties alike.
    assert np.allclose(np.diag(found) * 549 / 600, data.noise**2, rtol=0.1)
    # Each party inverts its own Gram matrix, so correlations fall a little short of the overlap.
    assert np.allclose(correlation(found), correlation(data.covariance), atol=0.1)


def test_seeds_and_copies():
    a, b, c = linear_regression(1), linear_regression(1), linear_regression(2)
    assert np.array_equal(a.parties["party3"][1], b.parties["party3"][1])
    assert not np.array_equal(a.parties["party3"][1], c.parties["party3"][1])
    a.parties["party0"][0][:] = 0  # one party's data, not the pool
    assert np.array_equal(a.parties["party1"][0], b.parties["party1"][0])


def test_error_is_the_distance_from_the_truth():
    data = linear_regression(0, features=4)
    assert data.error(data.truth) == 0
    assert data.error(data.truth + 1) == pytest.approx(2)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"overlap": 1.2}, "from 0 to 1, not 1.2"),
        ({"starts": [0, 1]}, "2 starts for 5 parties"),
        ({"starts": [0, 1, 2, -3, 4]}, "start at -3"),
    ],
)
def test_errors_say_what_was_found(settings, message):
    with pytest.raises(ValueError, match=message):
        linear_regression(0, **settings)


def test_predictions_miss_by_the_distance_and_the_noise_of_the_samples():
    data = linear_regression(3, noise=(81.0,))  # the parties' noise is not that of fresh samples
    assert data.prediction_error(data.truth) == pytest.approx(1, rel=0.1)
    weights = data.truth + 0.5
    assert data.error(weights) == pytest.approx(5)
    assert data.prediction_error(weights) == pytest.approx(np.sqrt(26), rel=0.1)
