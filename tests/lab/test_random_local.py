"""The readings of "a random local update" that are no attack of the suite."""

import numpy as np
import pytest

from consilience.lab.experiments.random_local import Fresh, Walk
from consilience.lab.federation import add
from consilience.lab.models import mlp, torch
from consilience.lab.training import Samples, Trainers

MODEL = mlp(4, 3, 2)
HONEST, BAD = ["a", "b"], ["x", "y"]


@pytest.fixture
def sent():
    """What the adversaries of a kind of federation send, by round, at parameters of one's own."""
    rng = np.random.default_rng(0)
    shards = {
        party: Samples(
            torch.from_numpy(rng.standard_normal((20, 4), dtype=np.float32)),
            torch.from_numpy(rng.integers(2, size=20)),
        )
        for party in HONEST + BAD
    }

    def send(kind, rounds, parameters):
        rows = []

        def rule(updates):
            rows.append(updates.copy())
            return updates.mean(0)

        federation = kind(Trainers(MODEL, shards, 0), HONEST, rule, add, BAD)
        for round in range(rounds):
            federation.step(parameters, round)
        return np.array(rows)  # (rounds, parties, K)

    return send


def test_a_fresh_model_knows_nothing_of_the_server_s(sent):
    here, there = (sent(Fresh, 2, MODEL.initial(seed)) for seed in (0, 1))
    assert np.array_equal(here[:, 2:], there[:, 2:])
    assert not np.allclose(here[:, :2], there[:, :2])
    assert not np.allclose(here[0, 2], here[0, 3])  # each its own
    assert not np.allclose(here[0, 2], here[1, 2])  # and another every round


def test_a_walk_goes_on_from_where_it_was(sent):
    rounds = sent(Walk, 40, MODEL.initial(0))
    lengths = np.linalg.norm(rounds[:, 2:], axis=2)
    step = np.linalg.norm(rounds[0, :2].mean(0))  # no batches: the same every round
    assert lengths[0] == pytest.approx(step, rel=0.5)
    assert lengths[-1] == pytest.approx(step * np.sqrt(40), rel=0.5)
    moved = np.linalg.norm(np.diff(rounds[:, 2:], axis=0), axis=2)
    assert moved.mean() == pytest.approx(step, rel=0.1)
    assert not np.allclose(rounds[:, 2], rounds[:, 3])
