"""Persistence: how much of an error lasts, and what follows from it."""

import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import consilience as cs
import naive
from consilience.beliefs import Lasting
from consilience.estimators.persistence import (
    kept_of,
    known_to_last,
    lasting_shares,
    lasting_squares,
    most_lasting,
    now_lasting,
    slack_from,
    typical_lasting,
)
from consilience.estimators.sharing import typical_level
from consilience.estimators.weighing import Ranked
from consilience.evidence import Block
from consilience.trails import Trails

HOW = cs.Pairwise()


def seen(left, squares, rounds):
    """What is left of errors, without the distances between them."""
    count = len(left)
    distances = np.zeros((count + 1, count + 1))
    distances[:-1, -1] = distances[-1, :-1] = left
    parties = tuple(map(str, range(count)))
    return Lasting(Block(parties, distances, 100.0), np.array(squares), np.array(rounds))


def kept(past):
    """What `kept_of` returns, if all are heard."""
    everybody = np.ones(len(past.rounds))
    return kept_of(past, 5, 3, now_lasting(past, 5, everybody), everybody)


def world(lasts, *, honest=10, bad=0, kind="fresh", rounds=20, size=2000, directions=60, seed=0):
    """Rounds of parties whose errors live in few directions, as those of gradients do; ``lasts`` of
    each error is the same in every round. Gives each round's updates."""
    random = np.random.default_rng(seed)
    basis = random.standard_normal((directions, size)) / directions**0.5

    def errors(count):
        return random.standard_normal((count, directions)) @ basis

    own, shift = errors(honest), errors(1)
    steady = errors(bad)
    for _ in range(rounds):
        X = lasts**0.5 * own + (1 - lasts) ** 0.5 * errors(honest)
        sent = {
            "fresh": lambda: errors(bad),
            "small": lambda: 0.1 * errors(bad),
            "huge": lambda: 10 * errors(bad),
            "same": lambda: 10 * errors(1) + 0.01 * errors(bad),
            "lasting": lambda: 1.4 * steady,
            "shift": lambda: shift + 0.7 * errors(bad),
        }[kind]()
        truth = random.standard_normal(size)
        names = [*(f"h{j}" for j in range(honest)), *(f"a{j}" for j in range(bad))]
        yield dict(zip(names, truth + np.vstack([X, sent]), strict=True))


def after(updates, memory=None, **how):
    memory = memory or cs.Memory(seed=0)
    for sent in updates:
        found = cs.aggregate(sent, cs.Pairwise(**how), memory)
    return found


def slack_after(updates, memory=None, **how):
    """What the slack is at most; how far below it is the misfit's to say."""
    memory = memory or cs.Memory(seed=0)
    found = after(updates, memory, **how)
    most = cs.Pairwise(**how).most_slack_after(memory.trails.evidence(len(found.parties)))
    assert found.beliefs.slack <= most
    return most


@pytest.mark.parametrize("decay", [0.5, 0.9, 1.0])
def test_shares_are_what_an_average_keeps_beyond_what_noise_leaves(decay):
    random, parties = np.random.default_rng(0), ["abcd", "abc", "bcda", "acd", "abcd", "abcd"]
    sent = [{p: random.standard_normal(6) for p in sorted(group)} for group in parties]
    trails = Trails.begun(6, random)
    for updates in sent:
        trails = trails.followed(tuple(updates), np.stack(list(updates.values())), decay)
    found = trails.evidence(4)
    for j, party in enumerate("abcd"):
        errors, w = [], []
        for ago, updates in enumerate(reversed(sent)):
            if party in updates:
                errors.append(naive.errors_of(updates)[party])
                w.append(decay**ago)
        rounds = sum(w) ** 2 / sum(x * x for x in w)
        square = np.average([np.mean(e**2) for e in errors], weights=w)
        left = np.mean(np.average(errors, axis=0, weights=w) ** 2)
        lasts = min(max((left - square / rounds) / (1 - 1 / rounds), 0), square)
        assert found.rounds[j] == pytest.approx(rounds)
        assert found.squares[j] == pytest.approx(square)
        assert found.left[j] == pytest.approx(left, rel=1e-5)
        assert lasting_squares(found)[j] == pytest.approx(lasts, rel=1e-4, abs=1e-6)
        enough = lasting_shares(found, rounds - 1e-9)[j]
        assert enough == pytest.approx(lasts / square, rel=1e-4, abs=1e-6)
        assert lasting_shares(found, rounds + 1e-9)[j] == 1


positive = st.floats(1e-3, 1e3)


@settings(max_examples=200, deadline=None)
@given(
    left=arrays(float, 6, elements=st.floats(0, 1e3)),
    squares=arrays(float, 6, elements=positive),
    rounds=arrays(float, 6, elements=st.floats(1, 50)),
    scale=positive,
)
def test_bounds_and_units(left, squares, rounds, scale):
    found = seen(left, squares, rounds)
    shares, own = lasting_shares(found, 5), kept(found)
    assert ((shares >= 0) & (shares <= 1)).all()
    assert ((own >= 0) & (own <= 1)).all()
    assert (own[rounds < 5] == 1).all()  # a newcomer is not judged by its past
    assert 1 <= slack_from(shares, 2 / 3, 0.25, 3) <= 3
    more = slack_from(np.minimum(1.1 * shares, 1), 2 / 3, 0.25, 3)
    assert more >= slack_from(shares, 2 / 3, 0.25, 3)
    scaled = seen(scale * left, scale * squares, rounds)
    np.testing.assert_allclose(lasting_shares(scaled, 5), shares, atol=1e-9)
    np.testing.assert_allclose(kept(scaled), own, rtol=1e-6, atol=1e-9)


def test_parties_that_always_agree_have_no_share_to_tell():
    found = seen(np.zeros(3), np.zeros(3), np.full(3, 9.0))
    assert lasting_shares(found, 5).tolist() == [1, 1, 1]
    assert kept(found).tolist() == [1, 1, 1]


def test_errors_that_fade_are_noise_and_those_that_last_are_data():
    """In few directions the misfit takes both for data."""
    for lasts, slack in ((0.0, 1.5), (0.4, 3), (0.9, 3)):
        few = {"directions": 10, "rounds": 12}
        found = [after(world(lasts, seed=seed, **few)).beliefs.slack for seed in range(5)]
        assert after(world(lasts, rounds=1)).beliefs.slack > 2
        assert np.mean(found) < 1.5 if slack < 3 else np.mean(found) > 2.5
        assert slack_after(world(lasts, rounds=10)) <= slack
        assert slack_after(world(lasts, rounds=10)) >= slack - 0.5


def test_what_is_fixed_stays():
    assert after(world(0.0, rounds=10), slack=2.5).beliefs.slack == 2.5
    assert slack_after(world(0.0, rounds=10), enough_rounds=50) == 3
    assert slack_after(world(0.0, rounds=4)) == 3  # too few


@pytest.mark.parametrize("kind", ["fresh", "small", "huge", "same"])
def test_colluders_cannot_take_the_slack_from_those_whose_data_differ(kind):
    for seed in range(3):
        assert slack_after(world(0.6, bad=6, kind=kind, seed=seed)) == 3, (kind, seed)


@pytest.mark.parametrize("kind", ["lasting", "fresh", "small", "huge", "same"])
def test_four_of_fourteen_cannot_bring_slack_where_errors_are_noise(kind):
    for seed in range(3):
        assert slack_after(world(0.0, bad=4, kind=kind, seed=seed)) < 1.7, (kind, seed)


def test_newcomers_do_not_take_the_slack_away():
    """Too little is known of them: they count as if their errors lasted."""

    def renamed(regulars):
        for k, sent in enumerate(world(0.0, honest=12)):
            known = list(sent)[:regulars]
            yield {p if p in known else f"{p} of {k}": x for p, x in sent.items()}

    assert slack_after(renamed(7)) == 3
    assert slack_after(renamed(10)) < 1.7


@pytest.mark.parametrize("slack", [None, 3.0])
def test_who_errs_the_same_way_in_a_world_of_noise_is_trusted_less(slack):
    for bad in (1, 4):
        now = after(world(0.0, bad=bad, kind="lasting"), slack=slack)
        then = after(world(0.0, bad=bad, kind="lasting"), slack=slack, outlasting=1e6)
        weight = [sum(c.weights[f"a{j}"] for j in range(bad)) for c in (now, then)]
        assert weight[0] < 0.7 * weight[1]
        assert weight[0] < bad / (10 + bad)


def test_who_is_heard_less_for_what_lasts_is_told():
    memory = cs.Memory(seed=0)
    for sent in world(0.0, bad=1, kind="lasting"):
        found = cs.aggregate(sent, memory=memory)
        weights = found.weights
        less = {p for p, w in weights.items() if w < 0.4 * np.median([*weights.values()])}
        assert set(found.reasons) == less
    assert re.fullmatch(r"lasting error [\d.]+× the typical", found.reasons["a0"])


@pytest.mark.parametrize("loud", [10, 100])
def test_a_loud_round_does_not_hide_what_lasts(loud):
    """Everybody errs more in one round of twenty, as after a restart of the learning rate."""
    memory, rounds = cs.Memory(seed=0), list(world(0.0, bad=1, kind="lasting", rounds=20))
    for k, sent in enumerate(rounds):
        truth = np.mean([x for party, x in sent.items() if party != "a0"], axis=0)
        louder = {
            party: truth + (loud if k == 15 else 1) * (x - truth) for party, x in sent.items()
        }
        found = cs.aggregate(louder, memory=memory)
        if k > 10:
            assert found.weights["a0"] < 0.3 / 11, k
            assert min(w for party, w in found.weights.items() if party != "a0") > 0.6 / 11, k


def test_noise_that_falls_for_long_hides_nothing():
    memory = cs.Memory(seed=0)
    for k, sent in enumerate(world(0.0, bad=1, kind="lasting", rounds=100)):
        found = cs.aggregate({party: 0.93**k * x for party, x in sent.items()}, memory=memory)
    assert found.weights["a0"] < 0.3 / 11


@pytest.mark.parametrize("size", [1, 2, 3])
def test_chance_in_few_coordinates_costs_no_trust(size):
    low = []
    for seed in range(5):
        memory, random = cs.Memory(seed=seed), np.random.default_rng(seed)
        for _ in range(30):
            found = cs.aggregate(random.standard_normal((6, size)), memory=memory)
            low += [weight < 0.1 / 6 for weight in found.weights.values()]
    assert np.mean(low) < 0.01


def test_a_lone_error_that_lasts_counts_less_where_most_differ_mildly():
    """One that is 1.4 times as long as the others', of which two fifths last; then nearly all."""
    for seed in range(3):
        mild = after(world(0.4, bad=1, kind="lasting", seed=seed)).weights
        assert mild["a0"] < 0.7 / 11, seed
        assert min(w for party, w in mild.items() if party != "a0") > 0.9 / 11, seed
        differing = after(world(0.9, bad=1, kind="lasting", seed=seed)).weights
        assert min(differing.values()) > 0.9 / 11, seed


def test_copies_near_the_middle_take_no_trust_from_those_who_differ_much():
    """Four of fourteen lower what is typical if each counts, not if copies are one voice."""

    def sent(bad):
        for k, updates in enumerate(world(0.6, honest=10, rounds=15)):
            names = list(updates)
            middle = np.median(list(updates.values()), axis=0)
            for j in range(5, 8):  # three differ twice as much
                updates[names[j]] = middle + 2 * (updates[names[j]] - middle)
            fresh = np.random.default_rng(k).standard_normal(len(middle))
            yield updates | {f"a{j}": middle + 0.3 * fresh for j in range(bad)}

    alone, beside = after(sent(0)).weights, after(sent(4)).weights
    for loud in ("h5", "h6", "h7"):
        least = 0.8 * alone[loud] / alone["h0"]
        assert beside[loud] / beside["h0"] > least


def rising(size):
    """Half of each error lasts; then, as late in training, noise is four times as long."""
    yield from world(0.5, bad=1, kind="lasting", rounds=15, size=size)
    for sent in world(0.5, bad=1, kind="lasting", rounds=15, size=size):
        middle = np.mean(list(sent.values()), axis=0)
        random = np.random.default_rng(int(1e6 * abs(middle[0])))
        yield {p: x + 3 * random.standard_normal(len(x)) for p, x in sent.items()}


@pytest.mark.parametrize("size", [2000, 9000])  # one set of trails, and two
def test_what_lasted_once_is_remembered_in_the_file_too(size, tmp_path):
    memory = cs.Memory(seed=0)
    found = after(rising(size), memory)
    past = memory.relay.evidence(len(found.parties))
    now = typical_lasting(past, 5, np.ones(11))
    assert now < 0.2 < 0.4 < memory.relay.lasted
    assert most_lasting(past, now) == memory.relay.lasted
    memory.save(tmp_path / "memory.npz")
    assert cs.Memory.load(tmp_path / "memory.npz").relay.lasted == memory.relay.lasted
    for sent in world(0.0, rounds=3, size=2100):  # another model: it begins anew
        cs.aggregate(sent, memory=memory)
    assert memory.relay.lasted == 0


def test_two_who_are_always_there_do_not_say_how_much_lasts():
    """Eight of forty honest parties come to a round; two whose errors last always do."""
    random, memory = np.random.default_rng(0), cs.Memory(seed=0)
    bias = random.standard_normal((2, 300))
    for _ in range(12):
        sent = {f"h{j}": random.standard_normal(300) for j in random.choice(40, 8, replace=False)}
        sent |= {f"a{j}": bias[j] + 0.1 * random.standard_normal(300) for j in range(2)}
        cs.aggregate(sent, memory=memory)
    assert memory.relay.lasted < 0.1


def test_two_who_are_equal_when_they_meet_are_no_error():
    random, memory = np.random.default_rng(0), cs.Memory(seed=0)
    with np.errstate(all="raise", under="ignore"):
        for k in range(9):
            sent = {f"h{j}": random.standard_normal(300) for j in range(4)}
            sent["a"] = 1e6 * random.standard_normal(300)
            if k >= 7:  # never apart, while their averages are, by 10¹²
                sent["b"] = sent["a"] = 1e-6 * sent["a"]
            cs.aggregate(sent, memory=memory)


def test_two_who_hardly_differ_are_no_error():
    memory, random = cs.Memory(seed=0), np.random.default_rng(0)
    with np.errstate(over="raise", divide="raise", invalid="raise"):
        for k in range(12):
            sent = random.standard_normal((4, 20))
            if k == 11:
                sent = np.array([[1e-156], [3e-156], [1.0], [-1.0]]) * np.ones(20)
            cs.aggregate(sent, memory=memory)


@pytest.mark.parametrize("spread", [1, 4])
def test_one_loud_round_does_not_tell_how_much_lasts(spread):
    """Four near the median go far once: then the unit is another one than in earlier rounds."""
    lasted = []
    for bad in (0, 4):
        random, memory = np.random.default_rng(0), cs.Memory(seed=0)
        steady, size = random.standard_normal((10, 2000)), np.geomspace(1, spread, 10)[:, None]
        for k in range(17):
            X = size * (0.3**0.5 * steady + 0.7**0.5 * random.standard_normal((10, 2000)))
            sent = {f"h{j}": X[j] for j in range(10)}
            for j in range(bad):
                near = np.median(X, axis=0) + 0.01 * random.standard_normal(2000)
                sent[f"a{j}"] = 100.0 * spread * np.ones(2000) if k == 15 else near
            cs.aggregate(sent, memory=memory)
        lasted.append(memory.relay.lasted)
    assert lasted[1] < lasted[0] + 0.05


def test_how_much_lasts_is_not_overrated_where_parties_come_and_go():
    random, memory = np.random.default_rng(0), cs.Memory(seed=0)
    steady, size = random.standard_normal((20, 1000)), 4.0 ** random.uniform(size=20)
    for _ in range(40):
        sent = {
            f"h{j}": size[j] * (0.4**0.5 * steady[j] + 0.6**0.5 * random.standard_normal(1000))
            for j in random.choice(20, 14, replace=False)
        }
        cs.aggregate(sent, memory=memory)
    assert memory.relay.lasted < 0.45


@pytest.mark.parametrize("lasts", [0.3, 0.6, 0.9])
def test_far_copies_cannot_make_lasting_errors_seem_to_fade(lasts):
    """They displace the median about which errors are taken, anew in each round."""
    lasted = []
    for bad in (0, 4):
        memory = cs.Memory(seed=0)
        found = after(world(lasts, bad=bad, kind="same"), memory)
        lasted.append(memory.relay.lasted)
    assert lasted[1] > lasted[0] - 0.03
    past = memory.relay.evidence(len(found.parties))
    assert typical_lasting(past, 5, np.ones(14)) < lasted[0] - 0.03


def test_of_both_ways_to_tell_how_much_lasts_the_larger_counts():
    """About a displaced median nothing lasts; between the parties half of each distance does."""
    distances = np.full((6, 6), 1.0)
    np.fill_diagonal(distances, 0.0)
    past = Lasting(Block(tuple("abcde"), distances, 100.0), np.full(5, 100.0), np.full(5, 1e9))
    pairs = replace(past, apart=2 * distances[:-1, :-1])
    assert now_lasting(past, 5, np.ones(5)) == pytest.approx(0.01)
    assert now_lasting(pairs, 5, np.ones(5)) == pytest.approx(0.5)
    assert now_lasting(replace(pairs, rounds=np.ones(5)), 5, np.ones(5)) == 1  # all are newcomers


def test_newcomers_are_heard_in_full_for_twice_as_many_rounds():
    random = np.random.default_rng(0)
    basis = random.standard_normal((4, 3000))
    points = random.dirichlet(np.ones(4), 11) @ basis
    own = 1.6 * points.std(axis=0) * random.standard_normal(3000)
    points[10] = points[:10].mean(axis=0) + own
    errors = points - np.median(points, axis=0)
    both = np.vstack([errors, np.zeros(3000)])
    distances = np.mean((both[:, None] - both) ** 2, axis=2)
    block = Block(tuple("abcdefghijk"), distances, 3000.0)
    for rounds, named in ((9.0, False), (11.0, True)):
        past = Lasting(block, 2 * distances[:-1, -1], np.full(11, rounds))
        both = [how._kept(past, np.ones(11))[0][10] for how in (HOW, cs.Pairwise(unshared=None))]
        assert (both[0] < 0.5 * both[1]) == named
    # Where more of an error lasted once, it may have more for itself.
    free, bound = (
        HOW._kept(replace(past, lasted=lasted), np.ones(11))[0][10] for lasted in (0.8, 0.6)
    )
    assert free == both[1] > 2 * bound


def test_who_may_be_the_only_one_to_know_something_keeps_a_share():
    """Where all of an error lasts, a third of its trust; where half of it does, a twelfth."""
    for lasts, least in ((0.5, 1 / 12), (0.9, 0.27)):
        distances, squares = [1.0] * 9 + [900.0], np.array([1 / lasts] * 9 + [901.0])
        past = seen(distances, squares, [1e9] * 10)
        kept, _ = HOW._kept(past, np.ones(10))
        assert kept[:9].tolist() == [1.0] * 9
        assert kept[9] == pytest.approx(least, rel=1e-3), lasts
        assert cs.Pairwise(owner=0.0)._kept(past, np.ones(10))[0][9] < 1e-3


@pytest.mark.parametrize(("level", "free", "bound"), [(0.02, 0.02, 0.5), (1e-6, 1e-6, 1e-6)])
def test_a_quiet_minority_says_what_is_typical_where_errors_last_only_if_very_quiet(
    level, free, bound
):
    """Six of sixteen: at a fiftieth of the others' level, and at a millionth."""
    levels = np.array([level] * 6 + [1.0] * 10)
    heeds = tuple(np.minimum(levels**-merit, 4.0) for merit in (0.2, 0.0, 0.2 / 3))
    ranked = Ranked.of(levels)
    assert typical_level(ranked, heeds[:1]) == pytest.approx(free, rel=0.5)
    assert typical_level(ranked, heeds) == pytest.approx(bound, rel=0.5)


def test_newcomers_cannot_make_errors_known_to_last():
    few = seen([1.0] * 5, [1.0] * 5, [20.0, 20.0, 1.0, 1.0, 1.0])
    assert known_to_last(few, HOW) == 0
    most = seen([1.0] * 5, [1.0] * 5, [20.0, 20.0, 20.0, 1.0, 1.0])
    assert known_to_last(most, HOW) == 1
    fades = seen([0.05] * 5, [1.0] * 5, [20.0] * 5)
    assert known_to_last(fades, HOW) == 0


def test_a_memory_of_an_earlier_release_is_read(tmp_path):
    memory = cs.Memory(seed=0)
    updates = list(world(0.0, rounds=12))
    after(updates[:8], memory)
    memory.save(tmp_path / "memory.npz")
    with np.load(tmp_path / "memory.npz") as file:
        kept = {
            n: a for n, a in file.items() if not n.startswith(("squares", "effective", "apart"))
        }
    np.savez(tmp_path / "memory.npz", **kept)
    old = cs.Memory.load(tmp_path / "memory.npz")
    assert old.trails.effective.tolist() == [1.0] * 10  # as if of one round: unknown
    assert slack_after(updates[8:9], old) == 3
    assert slack_after(updates[9:], old) == 3
    assert slack_after(world(0.0, rounds=30), old) < 1.7  # in time it is known


@pytest.mark.parametrize("what", ["squares0", "effective0"])
@pytest.mark.parametrize(
    "spoil", [lambda x: -x, lambda x: x * np.nan, lambda x: x[1:], lambda x: 1e150 * x]
)
def test_damage_to_what_trails_tell_is_found(what, spoil, tmp_path):
    memory = cs.Memory(seed=0)
    after(world(0.0, rounds=3, size=60), memory)
    memory.save(tmp_path / "memory.npz")
    with np.load(tmp_path / "memory.npz") as file:
        content = dict(file)
    np.savez(tmp_path / "memory.npz", **{**content, what: spoil(content[what])})
    with pytest.raises(cs.MemoryFileError, match="not a readable memory"):
        cs.Memory.load(tmp_path / "memory.npz")


def test_what_lasts_is_typical_of_those_who_are_heard():
    left, squares = [0.95, 0.95, 0.05, 0.05, 0.05], [1.0] * 5
    found = seen(left, squares, [20.0] * 5)
    shares = lasting_shares(found, 5)
    assert typical_lasting(found, 5, np.ones(5)) == pytest.approx(shares[2])
    assert typical_lasting(found, 5, np.array([1.0, 1, 0.1, 0.1, 0.1])) == pytest.approx(shares[0])
    newcomers = seen(left, squares, [20.0, 20, 1, 1, 1])
    assert typical_lasting(newcomers, 5, np.ones(5)) == 0  # nothing is known of most
    assert typical_lasting(newcomers, 5, np.array([1.0, 1, 0.5, 0.5, 0.5])) == shares[0]
