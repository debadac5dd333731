"""Ids are free: nobody gains by a new one, and who stays is not silenced by those who do not."""

import numpy as np
import pytest

import consilience as cs

PARTIES, SIZE, LAST = 14, 600, 4


def weight_of(bad, named, *, bias=1.0, memory=True, rounds=14, seed=0):
    """The weight of adversaries that share a bias, mean of the last rounds. ``named`` tells the ids
    of a round: of the honest, and of the adversaries."""
    random, found = np.random.default_rng([seed, bad]), []
    purpose = bias * random.standard_normal(SIZE)
    remembered = cs.Memory(seed=seed) if memory else None
    for k in range(rounds):
        X = random.standard_normal(SIZE) + random.standard_normal((PARTIES, SIZE))
        X[PARTIES - bad :] += purpose
        if remembered is None and k < rounds - LAST:
            continue  # nothing of this round would be left
        honest, others = named(k, PARTIES - bad, bad)
        updates = dict(zip([*honest, *others], X.astype(np.float32), strict=True))
        weights = cs.aggregate(updates, memory=remembered).weights
        found.append(sum(weights[party] for party in others))
    return np.mean(found[-LAST:])


def regulars(kind, count):
    return [f"{kind}{j}" for j in range(count)]


def renamed(every=1, but=0):
    """All adversaries but the last few take a new name every so many rounds."""

    def named(k, honest, bad):
        new = [f"a{j} of {k // every}" for j in range(bad - but)]
        return regulars("h", honest), [*new, *regulars("a", bad)[:but]]

    return named


def sleepers(others=0):
    """The adversaries are the only ones to come every time, but for some of the honest."""

    def named(k, honest, bad):
        new = [f"h{j} of {k}" for j in range(honest - others)]
        return [*regulars("h", others), *new], regulars("a", bad)

    return named


SEEDS = range(4)


def mean_weight(*args, **how):
    return np.mean([weight_of(*args, seed=seed, **how) for seed in SEEDS])


@pytest.mark.parametrize("bias", [0.5, 2.0])
@pytest.mark.parametrize("bad", [1, 2, 4])
def test_a_new_name_every_round_is_no_better_than_no_memory(bad, bias):
    found = mean_weight(bad, renamed(), bias=bias)
    without = mean_weight(bad, renamed(), bias=bias, memory=False)
    assert found <= without + 0.005  # chance
    assert found <= bad / PARTIES


@pytest.mark.parametrize(
    "named",
    [
        renamed(every=2),
        renamed(every=3),
        renamed(but=1),
        renamed(but=2),
        sleepers(),
        sleepers(3),
        sleepers(6),
    ],
    ids=["every second", "every third", "but one", "but two", "sleepers", "and three", "and six"],
)
def test_other_ways_of_coming_and_going(named):
    found = mean_weight(4, named)
    assert found <= mean_weight(4, named, memory=False) + 0.005


def test_a_newcomer_is_no_better_off_than_a_regular():
    for bias in (0.5, 1.0):
        regular = mean_weight(4, renamed(but=4), bias=bias)
        assert regular <= mean_weight(4, renamed(), bias=bias)


def named_by_chance(regulars, new, rounds=16, directions=30):
    """Honest parties whose errors live in few directions; some come always, others once. Return the
    regulars' share of a fair weight in the last rounds, and the rounds in which any were named."""
    random, shares, named = np.random.default_rng(0), [], 0
    basis = random.standard_normal((directions, SIZE)) / np.sqrt(directions)
    memory = cs.Memory(seed=0)
    for k in range(rounds):
        ids = [f"h{j}" for j in range(regulars)] + [f"n{j} of {k}" for j in range(new)]
        errors = random.standard_normal((len(ids), directions)) @ basis
        found = cs.aggregate(dict(zip(ids, errors, strict=True)), memory=memory)
        shares.append(len(ids) / regulars * sum(found.weights[p] for p in ids[:regulars]))
        named += bool(found.beliefs.groups)
    return np.mean(shares[-LAST:]), named


@pytest.mark.parametrize(("regulars", "new"), [(4, 6), (5, 10), (8, 6), (5, 5)])
def test_honest_regulars_are_no_colluders_to_newcomers(regulars, new):
    share, named = named_by_chance(regulars, new)
    assert share > 0.8
    assert named <= 1
