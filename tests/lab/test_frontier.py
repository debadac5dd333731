"""The frontier of three parties: its ends are known."""

import numpy as np
import pytest

from consilience.lab.studies import frontier


@pytest.mark.parametrize("size", [1, 3])
def test_the_frontier_begins_at_the_mean_and_beats_the_median_elsewhere(monkeypatch, size):
    monkeypatch.setattr(frontier, "DRAWS", 100_000)
    alike, spread = np.array(list(frontier.frontier(size))).T
    assert alike[-1] == pytest.approx(1.0, abs=0.01)  # nobody beats the mean where all are alike
    assert spread.min() == spread[0] < 1  # the best rule for spread noise is no median
    assert (np.diff(alike) <= 1e-9).all()
    assert (np.diff(spread) >= -1e-9).all()


def test_errors_are_those_of_the_rule(monkeypatch):
    """The first corner's error, which is the only party's heard, beside a direct computation."""
    monkeypatch.setattr(frontier, "DRAWS", frontier.CHUNK)
    found = frontier.scene((1.0, 1.0, 1.0), 2)
    X = np.random.default_rng(2).standard_normal((frontier.CHUNK, 3, 2))
    sides = np.linalg.norm(X[:, [1, 0, 0]] - X[:, [2, 2, 1]], axis=2)
    first = X[np.arange(len(X)), sides.argmin(axis=1)]
    none = np.zeros(frontier.BINS**2)
    assert found.error(none, none) == pytest.approx(np.square(first).sum(axis=1).mean())
    # The second corner is one longest side away, whatever the shape.
    second = X[np.arange(len(X)), np.argsort(sides, axis=1)[:, 1]]
    assert found.error(none + 1, none) == pytest.approx(np.square(second).sum(axis=1).mean())
