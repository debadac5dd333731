"""Unshared errors: what no mixture of the others explains, and what follows from it."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import f

import consilience as cs
import naive
from consilience.beliefs import Lasting
from consilience.estimators.persistence import most_lasting, now_lasting
from consilience.estimators.unshared import kept_unshared, unexplained
from consilience.evidence import Block

PLENTY = 1e9  # rounds: no noise is left
UNSHARED = cs.Pairwise().unshared


def distances_of(points):
    apart = points[:, None] - points
    return np.mean(apart**2, axis=2)


def seen(points, noise=0.0, rounds=PLENTY):
    """Averages over rounds, (J, n), as a memory tells them; the centre is zero."""
    parties = tuple(map(str, range(len(points))))
    distances = distances_of(np.vstack([points, np.zeros(points.shape[1])]))
    squares = np.mean(points**2, axis=1) + noise
    return Lasting(
        Block(parties, distances, float(points.shape[1])),
        squares,
        np.broadcast_to(np.asarray(rounds, float), len(points)),
    )


def kept(points, noise=None, rounds=PLENTY, lasted=0.0):
    """What parties keep that differ mildly: by default half of the typical error is fresh noise."""
    noise = np.median(np.mean(points**2, axis=1)) if noise is None else noise
    votes, past = np.ones(len(points)), replace(seen(points, noise, rounds), lasted=lasted)
    most = most_lasting(past, now_lasting(past, 5.0, votes))
    return kept_unshared(past, 5.0, UNSHARED / (1 - most) ** 4, votes)


def naively_kept(points, noise):
    """The rule for parties with equal votes, whose averages are free of noise."""
    (count, size), own = points.shape, np.mean(points**2, axis=1)
    alone = np.minimum(np.array(naive.unexplained(points)) / (1 - (count - 2) / size), own)
    if np.median(alone / own) > 0.5:
        return np.ones(count)
    fades = 1 - np.median(own / (own + noise))
    free = size - count + 2
    chance = f.ppf(1 - 0.01 / count, free, free * (count - 1))
    bar = max(1, UNSHARED / fades**4, chance) * np.median(own)
    return [min(1, bar / u) ** 4 if u else 1 for u in alone]


def mixtures(random, parties, things, size=4000):
    """Errors of parties whose data are mixtures of a few things, about their mean."""
    basis = random.standard_normal((things, size))
    shares = random.dirichlet(np.ones(things), parties)
    points = shares @ basis
    return points - points.mean(axis=0)


@given(st.integers(3, 9), st.integers(0, 10**6))
@settings(max_examples=50, deadline=None)
def test_it_is_the_distance_from_the_nearest_mixture(count, seed):
    points = np.random.default_rng(seed).standard_normal((count, 30))
    assert np.allclose(unexplained(distances_of(points)), naive.unexplained(points), rtol=1e-4)


@given(st.integers(0, 10**6), st.floats(1e-6, 1e6), st.integers(1, 5))
@settings(max_examples=25, deadline=None)
def test_it_moves_with_nobody_and_scales_with_all(seed, scale, copies):
    random = np.random.default_rng(seed)
    points, shift = random.standard_normal((2, 6, 20))
    points[:copies] = points[0]
    alone = unexplained(distances_of(points))
    moved = unexplained(distances_of(scale * (points + 10 * shift[0])))
    assert np.allclose(moved, scale**2 * alone, rtol=1e-5)


def test_copies_explain_each_other():
    points = np.random.default_rng(0).standard_normal((6, 50))
    points[4] = points[5]
    alone = unexplained(distances_of(points))
    assert (alone[4:] < 1e-4 * alone[:4].min()).all()


def test_a_lasting_error_of_its_own_is_heard_less_where_errors_are_mixtures():
    random = np.random.default_rng(0)
    points = mixtures(random, 10, 4)
    own = random.standard_normal((4, points.shape[1])) * points.std()
    trust = kept(np.vstack([points, 2 * own]))
    assert (trust[:10] == 1).all()
    assert (trust[10:] < 0.03).all()
    assert (kept(np.vstack([points, 0.8 * own])) == 1).all()


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("noise", [0.1, 0.3, 1.0, 10.0])
def test_it_is_the_rule(seed, noise):
    random = np.random.default_rng(seed)
    points = mixtures(random, 11, 8)
    lengths = points.std() * np.array([[0.7], [1.0], [1.5]])
    points = np.vstack([points, lengths * random.standard_normal((3, points.shape[1]))])
    noise *= float(np.mean(points**2))
    found = kept(points, noise)
    assert np.allclose(found, naively_kept(points, noise), rtol=1e-3)
    if noise >= np.mean(points**2):
        assert ((found > 0.01) & (found < 0.99)).any()


def test_where_most_of_an_error_lasts_its_owner_may_be_the_only_one_to_know():
    random = np.random.default_rng(0)
    points = mixtures(random, 10, 4)
    points[0] += 2 * points.std() * random.standard_normal(points.shape[1])
    typical = float(np.median(np.mean(points**2, axis=1)))
    trusts = [kept(points, noise * typical)[0] for noise in (0.0, 0.1, 0.3, 0.5, 1.0)]
    assert trusts[1] == 1
    assert trusts == sorted(trusts, reverse=True)
    assert trusts[-1] < 0.03


def test_however_it_shares_an_error_with_the_others():
    """Half of its error is that of other adversaries, half its own: only the latter counts."""
    random = np.random.default_rng(1)
    points = mixtures(random, 10, 4)
    own, shared = random.standard_normal((4, points.shape[1])), random.standard_normal(4000)
    trust = kept(np.vstack([points, 2 * points.std() * (own + shared)]))
    assert (trust[:10] == 1).all()
    assert (trust[10:] < 0.3).all()


def test_nobody_is_heard_less_where_each_knows_something_else():
    points = np.random.default_rng(0).standard_normal((10, 4000))
    points[0] *= 3
    assert (kept(points) == 1).all()


def test_nobody_is_heard_less_for_noise():
    """What is left in averages over ten rounds of fresh noise is unlike anybody's."""
    points = np.random.default_rng(0).standard_normal((10, 4000)) / 10**0.5
    assert (kept(points, noise=0.9, rounds=10.0) == 1).all()


@pytest.mark.parametrize(("parties", "size"), [(8, 10), (14, 20), (30, 50)])
def test_what_others_explain_by_chance_in_few_coordinates_tells_nothing(parties, size):
    """Everybody has an error of its own; some are three times as long."""
    random, cut = np.random.default_rng(0), 0
    for _ in range(20):
        points = random.standard_normal((parties, size))
        points[: parties // 4] *= 3
        cut += (kept(points, noise=9.0) < 1).sum()
    assert cut < 0.1 * 20 * parties


def test_newcomers_are_heard_in_full_and_explain_nothing():
    random = np.random.default_rng(0)
    points = mixtures(random, 10, 4)
    odd = random.standard_normal((2, points.shape[1])) * 2 * points.std()
    points, rounds = np.vstack([points, odd]), np.full(12, 100.0)
    rounds[-1] = 2.0
    trust = kept(points, rounds=rounds)
    assert trust[-1] == 1
    assert trust[-2] < 0.03
    assert np.allclose(trust[:-1], kept(points[:-1], rounds=100.0), atol=1e-3)


@pytest.mark.parametrize("count", [1, 2, 4, 5])
def test_four_parties_explain_nothing(count):
    random = np.random.default_rng(0)
    points = mixtures(random, count, 2)
    points[0] = 5 * (points.std() or 1.0) * random.standard_normal(points.shape[1])
    assert (kept(points)[0] < 1) == (count == 5)


@given(st.integers(5, 12), st.integers(0, 10**6), st.sampled_from([0.0, 1e-200, 1.0, 1e200]))
@settings(max_examples=50, deadline=None)
def test_trust_is_a_share_whatever_the_averages(count, seed, scale):
    random = np.random.default_rng(seed)
    lengths = 10 ** random.uniform(-3, 3, (count, 1))
    points = scale**0.5 * lengths * random.standard_normal((count, 8))
    points[random.integers(count)] = points[random.integers(count)]
    trust = kept(points)
    assert ((trust >= 0) & (trust <= 1)).all()


def test_whoever_errs_many_times_as_far_explains_nobody():
    random = np.random.default_rng(0)
    points = mixtures(random, 10, 4)
    odd = 2 * points.std() * random.standard_normal(points.shape[1])
    assert kept(np.vstack([points, odd, 30 * odd]))[10] < 0.03


@pytest.mark.parametrize("huge", [1e10, 1e19, 1e38, 1e150])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_huge_errors_change_nothing_for_the_others(huge, count):
    random = np.random.default_rng(0)
    points = mixtures(random, 10, 4)
    bad = huge * random.standard_normal((count, 1)) * np.ones(points.shape[1])
    trust = kept(np.vstack([points, bad]))
    assert (trust[:10] == 1).all()


@pytest.mark.parametrize("huge", [1e3, 1e15, 1e30, 1e38])
@pytest.mark.parametrize("count", [1, 4, 7])
def test_huge_noise_that_fades_changes_nothing_for_the_others(huge, count):
    """Nothing of it lasts. What chance leaves of it in averages must not hide the distances of the
    others behind rounding, nor end the round."""
    random = np.random.default_rng(0)
    points = mixtures(random, 10, 4)
    points = np.vstack([points, 2 * points.std() * random.standard_normal(points.shape[1])])
    typical = np.median(np.mean(points**2, axis=1))
    noise = np.full(11 + count, typical)
    rows = np.vstack([points, huge * random.standard_normal((count, points.shape[1]))])
    noise[11:] = 20 * np.mean(rows[11:] ** 2, axis=1)
    past = seen(rows, noise, np.where(np.arange(11 + count) < 11, PLENTY, 20.0))
    trust = kept_unshared(past, 5.0, UNSHARED, np.ones(len(rows)))
    assert np.allclose(trust[:11], kept(points), atol=1e-3)
    assert trust[10] < 0.1


@pytest.mark.parametrize("copies", [2, 8, 11])
def test_parties_that_differ_only_by_rounding_do_not_end_the_round(copies):
    random = np.random.default_rng(0)
    points = mixtures(random, 14, 6)
    points[:copies] = points[0] * (1 + 1e-15 * np.arange(copies)[:, None])
    trust = kept(points)
    assert ((trust >= 0) & (trust <= 1)).all()


@pytest.mark.parametrize("seed", [0, 1])
def test_adversaries_with_lasting_errors_of_their_own_lose_weight_over_rounds(seed):
    """Honest parties whose data are mixtures, and four disguised: a part of their errors is that of
    all four, most of it their own, and all of it is the same in every round."""
    random = np.random.default_rng(seed)
    data = mixtures(random, 14, 8, size=5000)
    bad = random.standard_normal((4, 5000)) + 0.6 * random.standard_normal(5000)
    lasting = np.vstack([data, 1.6 * data.std() * bad])
    shares = []
    for method in (cs.Pairwise(unshared=None), cs.Pairwise()):
        memory, noise = cs.Memory(), np.random.default_rng(1)
        for _ in range(20):
            rows = lasting + 1.2 * data.std() * noise.standard_normal(lasting.shape)
            parties = {f"p{j}": row for j, row in enumerate(rows)}
            found = cs.aggregate(parties, method, memory=memory, seed=0)
        shares.append(sum(found.weights[f"p{j}"] for j in range(14, 18)))
    assert shares[0] > 0.2
    assert shares[1] < 0.5 * shares[0]
    said = "lasting error that the others do not explain"
    told = {party for party, why in found.reasons.items() if said in why}
    assert told == {
        p for p, w in found.weights.items() if w < 1 / 3 * np.median([*found.weights.values()])
    }
    assert told & {f"p{j}" for j in range(14, 18)}


def test_chance_in_few_coordinates_costs_no_trust():
    for seed in range(2):
        random, memory = np.random.default_rng(seed), cs.Memory(seed=0)
        lasting = random.standard_normal((12, 11))
        for _ in range(30):
            found = cs.aggregate(lasting + 0.8 * random.standard_normal((12, 11)), memory=memory)
            assert not any("do not explain" in why for why in found.reasons.values())
