"""What can be promised where data differ."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from consilience.lab.studies.promised import bound, mean_over_spread, promised  # noqa: E402


@pytest.mark.parametrize("adversaries", [1, 2, 4])
def test_the_bound_is_that_of_two_federations_that_look_the_same(adversaries):
    """docs/limits.md: f of the honest want d, all others 0; halfway between the two ends."""
    honest, d = 10, np.array([3.0, 4.0])
    optima = np.zeros((honest, 2))
    optima[:adversaries] = d
    end = optima.mean(axis=0) / 2  # as far from the optimum of either federation
    rows = [torch.from_numpy(end - optimum) for optimum in optima]
    assert mean_over_spread(rows) == pytest.approx(bound(adversaries, honest))


def test_the_promise_ends_where_the_mean_first_falls_below_the_bound():
    shares = [(0.1, 3.0), (0.7, bound(4) + 0.01), (0.8, bound(4) - 0.01), (0.9, 3.0)]
    rounds = [{"accuracy": accuracy, "share": share} for accuracy, share in shares]
    assert promised(rounds, 4) == 0.7
    assert promised(rounds, 1) == 0.9
    assert promised([{"accuracy": 0.1, "share": 0.0}], 1) == 0.0
