"""Trails: what lasts of the parties' errors, in a few coordinates."""

from itertools import permutations

import numpy as np
import pytest
from numpy.testing import assert_allclose

import consilience as cs
import naive
from consilience import trails as following
from consilience.engines.in_process import InProcess
from consilience.estimators.weighing import typical_of
from consilience.trails import Relay, Trails
from consilience.updates.parsing import parse
from consilience.updates.votes import middle


def rounds_of(count=30, size=3000, bias=0.7, honest=10, bad=4, seed=0):
    """Ten parties with noise of their own every round, and four that share a purpose besides, with
    what the honest mean of each round is."""
    random = np.random.default_rng(seed)
    purpose = bias * random.standard_normal(size)
    for _ in range(count):
        truth = random.standard_normal(size)
        X = truth + random.standard_normal((honest + bad, size))
        X[honest:] += purpose
        names = [f"h{j}" for j in range(honest)] + [f"a{j}" for j in range(bad)]
        yield dict(zip(names, X.astype(np.float32), strict=True)), X[:honest].mean(axis=0)


def test_the_first_round_is_as_if_there_were_no_memory():
    updates, _ = next(rounds_of())
    with_one = cs.aggregate(updates, memory=cs.Memory())
    assert with_one.weights == cs.aggregate(updates).weights


def test_a_shared_purpose_hidden_in_noise_is_found_in_time():
    memory, off, alone = cs.Memory(), [], []
    for updates, mean in rounds_of():
        found = cs.aggregate(updates, memory=memory)
        off.append(np.linalg.norm(found.value - mean))
        alone.append(np.linalg.norm(cs.aggregate(updates).value - mean))
    assert found.groups == (("a0", "a1", "a2", "a3"),)
    assert found.reasons["a0"].startswith("moves with a1, a2, a3: one voice; lasting error ")
    assert np.mean(off[15:]) < 0.5 * np.mean(alone[15:])


def test_honest_parties_keep_their_votes():
    memory = cs.Memory()
    for updates, _ in rounds_of(bad=0):
        found = cs.aggregate(updates, memory=memory)
    assert found.groups == ()
    assert_allclose(list(found.weights.values()), 0.1, atol=0.02)


@pytest.mark.parametrize("decay", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_means_are_those_of_each_partys_rounds(each_loops, decay, dtype):
    random, parties = np.random.default_rng(1), ["abc", "bc", "abd", "dcb"]
    sent = [{p: random.standard_normal(5).astype(dtype) for p in group} for group in parties]
    trails = Trails.begun(5, random)
    assert trails.places.tolist() == [0, 1, 2, 3, 4]  # as few are all looked at
    for updates in sent:
        rows = np.stack(list(updates.values()))
        trails = trails.followed(tuple(updates), rows, decay)
    for party, count, mean in zip(trails.parties, trails.rounds, trails.means, strict=True):
        errors, weights = [], []
        for ago, updates in enumerate(reversed(sent)):
            if party in updates:
                errors.append(naive.errors_of(updates)[party])
                weights.append(decay**ago)
        assert count == pytest.approx(sum(weights))
        assert_allclose(mean, np.average(errors, axis=0, weights=weights), atol=1e-6)
        squares = np.average(np.square(errors).mean(axis=1), weights=weights)
        assert trails.squares[trails.parties.index(party)] == pytest.approx(squares, rel=1e-5)
    assert ("a" in trails.parties) == (decay > 0)  # gone for a round


def test_the_absent_are_forgotten_in_the_end():
    memory = cs.Memory(0.5)
    for k, (updates, _) in enumerate(rounds_of(14, size=50, bad=0)):
        present = {p: x for p, x in updates.items() if k == 0 or p != "h3"}
        cs.aggregate(present, memory=memory)
        assert ("h3" in memory.trails.parties) == (k < 10)


def test_another_model_begins_anew():
    memory = cs.Memory()
    for size in (40, 50, 50):
        for updates, _ in rounds_of(2, size=size):
            cs.aggregate(updates, memory=memory)
    assert memory.trails.size == 50
    assert memory.trails.rounds.max() == pytest.approx(1 + 0.9 + 0.9**2 + 0.9**3)


def test_places_are_spread_and_nobody_knows_them_beforehand():
    places = Trails.begun(10**7, np.random.default_rng(0)).places
    assert (np.diff(places) > 0).all()
    assert places[0] < 2000 < 10**7 - 2000 < places[-1]
    updates = np.random.default_rng(0).standard_normal((3, 100_000), dtype=np.float32)

    def drawn(memory):
        cs.aggregate(updates, memory=memory)
        return memory.relay.used.places, memory.relay.young.places

    found = [*drawn(cs.Memory()), *drawn(cs.Memory())]
    for j, one in enumerate(found):  # the same updates, and everywhere other places
        assert all((one != other).mean() > 0.8 for other in found[:j])
    for one, other in zip(drawn(cs.Memory(seed=3)), drawn(cs.Memory(seed=3)), strict=True):
        assert (one == other).all()


def test_after_some_rounds_other_places_take_over(tmp_path):
    """Those that do have been followed before: what is shared stays found, and a memory that is
    saved and loaded in between renews its places as if nothing had been."""
    memory, used = cs.Memory(), []
    for k, (updates, _) in enumerate(rounds_of(108, size=9000, bias=0.5)):
        found = cs.aggregate(updates, memory=memory)
        used.append(memory.trails.places)
        if k >= 20:
            assert found.groups == (("a0", "a1", "a2", "a3"),), k
            assert memory.trails.rounds.max() > 8  # of nearly ten that a decay of 0.9 leads to
        if k in (30, 49, 75):
            memory.save(tmp_path / "memory.npz")
            memory = cs.Memory.load(tmp_path / "memory.npz")
    changed = [k for k in range(1, 108) if (used[k] != used[k - 1]).any()]
    assert changed == [49, 99]
    assert memory.relay.used.age == 58
    assert memory.relay.young.age == 8


def test_where_all_places_are_looked_at_none_take_over():
    memory = cs.Memory()
    for updates, _ in rounds_of(60, size=50, bad=0):
        cs.aggregate(updates, memory=memory)
    assert memory.relay.young is None
    assert memory.trails.age == 60
    assert memory.trails.places.tolist() == list(range(50))


def test_who_is_rejected_leaves_no_trail_and_who_is_huge_only_a_private_one():
    memory, clean = cs.Memory(), cs.Memory()
    for k, (updates, _) in enumerate(rounds_of(6)):
        cs.aggregate(updates, memory=clean)
        wild = {**updates, "huge": np.full(3000, 1e30, np.float32)}
        wild["nan"] = np.where(np.arange(3000) == 1234 + k, np.nan, updates["h0"])
        found = cs.aggregate(wild, memory=memory)
        assert set(found.rejected) == {"nan"}
    assert "nan" not in memory.trails.parties
    assert found.weights["huge"] < 1e-20
    kept = cs.aggregate(updates, memory=memory).weights
    expected = cs.aggregate(updates, memory=clean).weights
    assert kept == pytest.approx(expected, abs=0.02)


def test_distances_are_those_of_the_means(each_loops):
    means = list(np.random.default_rng(0).standard_normal((4, 300)).astype(np.float32))
    seen = Trails(300, np.arange(300), tuple("abcd"), np.full(4, 2.0), means).evidence(3)
    points = np.vstack([*means[:3], np.zeros(300)]).astype(float)
    expected = np.square(points[:, None] - points).mean(axis=2)
    assert_allclose(seen.block.distances, expected, rtol=1e-12)
    assert_allclose(seen.left, np.square(points[:3]).mean(axis=1), rtol=1e-12)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_errors_beyond_what_can_be_kept_stay_numbers(each_loops, dtype):
    """The largest of both signs, whose difference has no place in four bytes, and NaN."""
    trails = Trails.begun(4, np.random.default_rng(0))
    sent = np.zeros((5, 4), dtype)
    sent[0], sent[1], sent[2, 0] = 3e38, -3e38, np.nan
    sent[3:] = 1e38  # so that it is the median
    errors = np.clip(np.nan_to_num(sent.astype(float)) - 1e38, -1e38, 1e38)
    lengths = np.sqrt(np.mean(errors**2, axis=1))
    unit = max(np.median(lengths), lengths[1] / 10)
    for _ in range(3):
        trails = trails.followed(tuple("abcde"), sent, 0.9)
    assert np.isfinite(trails.squares).all()
    assert_allclose(trails.means[1], -1e38 / unit, rtol=1e-6)
    assert_allclose(trails.means[3], 0.0)
    assert trails.evidence(5) is not None


def test_no_round_counts_for_more_than_ten_typical_errors():
    sent = np.random.default_rng(0).standard_normal((9, 500))
    sent[0] *= 1000
    trails = Trails.begun(500, np.random.default_rng(0)).followed(tuple("abcdefghi"), sent, 0.9)
    assert trails.squares[0] == pytest.approx(100)
    assert np.median(trails.squares) == pytest.approx(1)


def test_means_too_large_to_square_are_no_evidence():
    trails = Trails(2, np.arange(2), ("a", "b"), np.full(2, 3.0), np.array([[1e200, 0], [0, 0]]))
    assert trails.evidence(2) is None


def test_looking_at_places_of_many_tensors():
    random = np.random.default_rng(0)
    tensors = [
        {
            "a": random.standard_normal((3, 4)),
            "count": np.arange(7),  # integers are no coordinates
            "b": random.standard_normal(5).astype(np.float32),
            "none": np.empty(0, np.float32),
            "c": np.float32(random.standard_normal()),
        }
        for _ in range(3)
    ]
    places = np.array([0, 5, 11, 12, 16, 17])
    flat = [np.concatenate([t["a"].ravel(), t["b"], [t["c"]]]) for t in tensors]
    found = InProcess(parse(tensors)).look(places)
    assert_allclose(found, np.stack(flat)[:, places])


def test_looking_at_bfloat16():
    torch = pytest.importorskip("torch")
    x = torch.arange(6, dtype=torch.bfloat16)
    found = InProcess(parse([x, -x])).look(np.array([1, 5]))
    assert found.tolist() == [[1, 5], [-1, -5]]


def test_a_copy_of_a_memory_knows_and_draws_the_same_and_leaves_no_trace():
    memory = cs.Memory()
    updates, _ = next(rounds_of(size=20_000))
    one, other = memory.copy(), memory.copy()
    for asked in (one, other):
        cs.aggregate(updates, memory=asked)
    assert memory.rounds == 0
    assert (one.trails.places == other.trails.places).all()
    cs.aggregate(updates, memory=memory)
    assert (one.trails.places == memory.trails.places).all()
    fresh = cs.Memory()
    cs.aggregate(updates, memory=fresh)
    assert (one.trails.places != fresh.trails.places).any()


def test_places_that_hold_most_of_an_error_are_not_all_that_counts():
    """As the statistics of a layer beside its weights. In a few numbers all are alike by chance."""
    random, memory = np.random.default_rng(0), cs.Memory(seed=0)
    scale, lasting = np.ones(40_000), random.standard_normal(40_000)
    scale[random.choice(40_000, 16, replace=False)] = 150  # nine tenths of all
    for k in range(16):
        X = random.standard_normal((11, 40_000))
        X[10] = 0.95 * lasting + 0.3 * X[10]
        found = cs.aggregate((X * scale).astype(np.float32), memory=memory)
        if k >= 10:
            assert found.groups == (), k
            assert found.weights["10"] < 0.02, k
            assert min(found.weights[f"{j}"] for j in range(10)) > 0.05, k


def test_how_far_parties_are_apart_in_single_rounds_is_known_when_other_places_take_over():
    random, parties, sent = np.random.default_rng(0), ("a", "b", "c"), []
    relay = Relay.begun(9000, random)
    for _ in range(52):
        sent.append(random.standard_normal((3, 9000)))
        relay = relay.followed(parties, lambda at: sent[-1][:, at], 0.9, random)
    apart, met = 0.0, 0.0
    for round in sent[-40:]:  # at the places that are in use now; earlier ones have faded
        errors = naive.errors_of(dict(zip(parties, round[:, relay.used.places], strict=True)))
        apart = 0.9 * apart + np.mean((errors["a"] - errors["b"]) ** 2)
        met = 0.9 * met + 1
    assert relay.evidence(3).apart[0, 1] == pytest.approx(apart / met, rel=1e-3)


@pytest.mark.parametrize("size", [30, 9000])
def test_a_party_alone_leaves_no_trail(size):
    """It is its own median, and its error would be zero: a good name for nothing."""
    memory = cs.Memory(seed=0)
    for k in range(3):
        cs.aggregate({"a": np.random.default_rng(k).standard_normal(size)}, memory=memory)
    assert memory.trails is None
    for updates, _ in rounds_of(3, size):
        cs.aggregate(updates, memory=memory)
    before, last = memory.relay, memory.trails.parties[-1]
    for party, other in [(last, size), ("new", size), (last, size + 1)]:
        cs.aggregate({party: np.ones(other)}, memory=memory)
        for ours, theirs in [(memory.relay.used, before.used), (memory.relay.young, before.young)]:
            assert (ours is None) == (theirs is None)
            for what in ("parties", "rounds", "means", "age") if theirs else ():
                assert getattr(ours, what) is getattr(theirs, what)
    fresh = cs.Memory(seed=0)
    for updates, _ in rounds_of(4, size):
        cs.aggregate(updates, memory=fresh)
    cs.aggregate(updates, memory=memory)
    assert memory.trails.parties == fresh.trails.parties
    assert_allclose(memory.trails.means, fresh.trails.means)


@pytest.mark.parametrize(("many", "times"), [(1, 1e3), (3, 1e5), (12, 1e4)])
def test_no_place_holds_more_than_a_fiftieth(many, times):
    """However large a few are, as a counter or a variance may be."""
    sent = np.random.default_rng(0).standard_normal((10, 2000))
    sent[:, :many] *= times
    trails = Trails.begun(2000, np.random.default_rng(0)).followed(tuple("abcdefghij"), sent, 0.9)
    typical = np.median(np.abs(trails.means), axis=0) ** 2
    assert typical.max() / typical.sum() == pytest.approx(1 / 50)


def test_rounding_does_not_outweigh_few_places():
    """A limit for each place must not cut what is live to as little as rounding in all others."""
    random = np.random.default_rng(0)
    sent = 1e-7 * random.standard_normal((10, 2000))
    sent[:, :20] = random.standard_normal((10, 20))
    trails = Trails.begun(2000, random).followed(tuple("abcdefghij"), sent, 0.9)
    assert np.square(trails.means)[:, 20:].sum() < 1e-9 * np.square(trails.means).sum()


def test_regulars_do_not_say_how_much_lasts():
    """Ten of thirty honest parties come to a round, and four others to each: their errors are fresh
    at first, and then always the same."""
    random, memory = np.random.default_rng(0), cs.Memory(seed=0)
    steady, own = random.standard_normal((30, 500)), random.standard_normal((4, 500))
    for k in range(40):
        here, fresh = random.choice(30, 10, replace=False), random.standard_normal((14, 500))
        sent = {f"h{j}": 0.3**0.5 * steady[j] + 0.7**0.5 * fresh[i] for i, j in enumerate(here)}
        sent |= {f"a{j}": own[j] if k >= 15 else fresh[10 + j] for j in range(4)}
        cs.aggregate(sent, memory=memory)
    assert memory.relay.lasted < 0.4


def test_far_copies_do_not_hide_what_lasts_in_a_crowd(monkeypatch):
    """If few rounds of distances can be kept, those of the latest are."""
    monkeypatch.setattr(following, "_MOST_DISTANCES", 1)
    random, memory = np.random.default_rng(0), cs.Memory(seed=0)
    steady = random.standard_normal((11, 2000))
    for k in range(20):
        X = 0.8**0.5 * steady + 0.2**0.5 * random.standard_normal((11, 2000))
        sent = {f"h{j}": X[j] for j in range(11 - k % 2)}
        far = 30 * random.standard_normal(2000)
        sent |= {f"a{j}": far + 0.01 * random.standard_normal(2000) for j in range(4)}
        cs.aggregate(sent, memory=memory)
    assert memory.relay.lasted > 0.75


def test_dust_of_one_party_is_no_evidence():
    """Only ten coordinates are trained; one party sends something in all others."""
    random, memory = np.random.default_rng(1), cs.Memory(seed=0)
    for k in range(20):
        sent = np.zeros((11, 9000))
        sent[:, :10] = random.standard_normal((11, 10))
        sent[10] += 1e-12 * random.standard_normal(9000)
        found = cs.aggregate(sent, memory=memory)
        if k >= 8:
            assert not any(len({*group} - {"10"}) > 1 for group in found.groups), k


@pytest.mark.parametrize(
    ("values", "weights", "median"),
    [
        ([0.0, 0.0, 1.0], [3.0, 4.0, 3.0], 0.0),
        ([0.0, 1.0, 1.0], [3.0, 4.0, 3.0], 1.0),
        ([0.0, 0.0, 1.0], [1.0, 6.0, 3.0], 9 / 58),  # 37/14 of 10 from either end of the zeros
        ([0.0, 0.0, 1.0, 1.0 + 1e-15], [4.0, 1.0, 3.0, 1.0], 1.2 / 2.95),
        ([0.2, 1.0, 1.0], [0.5, 0.5, 1e-12], 0.6),  # dust changes nothing
        ([2.0, 2.0, 2.0], [1.0, 0.0, 5.0], 2.0),
    ],
)
def test_equal_numbers_may_come_in_any_order(values, weights, median):
    for order in permutations(range(len(values))):
        found = middle(np.array(values)[[*order]], np.array(weights)[[*order]])
        assert found == pytest.approx(median), order


def test_equal_levels_are_equal_in_any_unit():
    values, weights = np.array([1.0, 1 + 4e-16, 2.0]), np.array([0.1, 0.4, 0.5])
    assert typical_of(3 * values, weights) == pytest.approx(3 * typical_of(values, weights))


def test_two_who_nearly_agree_hide_nobody_from_then_on(tmp_path):
    """They are most of a small round, and its typical error is the least that a number can have."""
    random, memory = np.random.default_rng(0), cs.Memory(seed=0)
    for k in range(12):
        sent = random.standard_normal((12, 20_000), dtype=np.float32)
        names = ["a0", "a1", *(f"p{j}" for j in range(10))]
        if k == 8:
            sent, names = sent[:3], names[:3]
            sent[:2] = 0
            sent[0, ::20] = 1.4e-45
        cs.aggregate(dict(zip(names, sent, strict=True)), memory=memory)
    assert memory.trails.evidence(12) is not None
    memory.save(tmp_path / "memory.npz")
    assert cs.Memory.load(tmp_path / "memory.npz").rounds == 12


def test_places_where_nobody_errs_are_no_evidence():
    """As of layers that are frozen: what is left is few, and alike by chance."""
    for seed in range(2):
        random, memory = np.random.default_rng(seed), cs.Memory(seed=seed)
        at = random.choice(200_000, 64, replace=False)
        for _ in range(14):
            sent = np.zeros((10, 200_000), np.float32)
            sent[:, at] = random.standard_normal((10, 64))
            found = cs.aggregate(sent, memory=memory)
            assert not found.groups
        assert min(found.weights.values()) > 0.03
