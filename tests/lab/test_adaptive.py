"""Adversaries who know the rule: what they find, and how they look for it."""

import numpy as np
import pytest

import consilience as cs
from consilience.lab.attacks import Knowledge, make
from consilience.lab.attacks.adaptive import CALLS

RNG = np.random.default_rng


def parties(seed=0, count=10, size=2000):
    rng = RNG(seed)
    return (rng.standard_normal(size) + rng.standard_normal((count, size))).astype(np.float32)


def by(method):
    return lambda updates: cs.aggregate(updates, method).value


def moved(name, honest, count, method="pairwise", seed=0):
    aggregate = by(method)
    sent = make(name, Knowledge(aggregate=aggregate))(honest, count, RNG(seed))
    return np.linalg.norm(aggregate(np.vstack([honest, sent])) - honest.mean(0))


@pytest.mark.parametrize("count", [2, 5, 8])
@pytest.mark.parametrize("seed", [0, 1])
def test_it_moves_pairwise_further_than_optimised_alie(count, seed):
    honest = parties(seed)
    assert moved("adaptive", honest, count) > moved("optimised_alie", honest, count)


@pytest.mark.parametrize("method", ["coordinate-median", "geometric-median"])
def test_it_moves_the_medians_further_than_optimised_alie(method):
    honest = parties()
    found = moved("adaptive", honest, 4, method)
    assert found > 0.95 * moved("optimised_alie", honest, 4, method)


def test_it_is_the_same_again_and_asks_forty_times_at_most():
    honest, asked = parties(size=200), []

    def aggregate(updates):
        asked.append(len(updates))
        return by("pairwise")(updates)

    attack = make("adaptive", Knowledge(aggregate=aggregate))
    first = attack(honest, 3, RNG(4))
    assert 20 < len(asked) <= CALLS
    assert set(asked) == {13}
    assert np.array_equal(first, attack(honest, 3, RNG(4)))
    assert not np.array_equal(first, attack(honest, 3, RNG(5)))


def test_nobody_and_one_honest_party():
    honest = parties(count=1, size=50)
    attack = make("adaptive", Knowledge(aggregate=by("pairwise")))
    assert attack(honest, 0, RNG(0)).shape == (0, 50)
    sent = attack(honest, 3, RNG(0))
    assert sent.shape == (3, 50)
    assert np.isfinite(sent).all()
    assert moved("adaptive", honest, 3) > 0


def test_a_rule_that_breaks_is_broken():
    honest = parties(size=50)

    def brittle(updates):
        loud = np.abs(updates).max() > 50
        return np.full(50, np.nan) if loud else updates.mean(0)

    sent = make("adaptive", Knowledge(aggregate=brittle))(honest, 2, RNG(0))
    assert np.isnan(brittle(np.vstack([honest, sent]))).all()


def test_it_needs_an_aggregator():
    with pytest.raises(ValueError, match="give Knowledge an `aggregate`"):
        make("adaptive")
