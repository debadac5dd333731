"""A few of very many parties at a time: what a round costs, who is forgotten, who is remembered."""

import json
import logging

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose

import consilience as cs
from consilience import evidence as remembering
from consilience import trails as following
from consilience.beliefs import Given, Past
from consilience.estimators.weighing import with_past
from consilience.evidence import Block, Evidence
from consilience.trails import Relay, Trails


def sent(random, parties, size=60, noise=None):
    truth = random.standard_normal(size)
    levels = dict.fromkeys(parties, 1.0) | (noise or {})
    return {p: truth + levels[p] * random.standard_normal(size) for p in parties}


def some(random, many, few):
    return [f"c{j}" for j in random.choice(many, few, replace=False)]


def rounds_of(memory, count, many=1000, few=20, size=60, method="pairwise", seed=0):
    """Let a few of many parties take part, round by round; yield what came of each."""
    random = np.random.default_rng(seed)
    for _ in range(count):
        yield cs.aggregate(sent(random, some(random, many, few), size), method, memory)


@settings(max_examples=30, deadline=None)
@given(chosen=st.sets(st.sampled_from("abcdef"), min_size=2), seed=st.integers(0, 100))
def test_evidence_of_some_parties_is_that_of_their_updates(chosen, seed):
    random = np.random.default_rng(seed)
    rounds = [sent(random, parties) for parties in ("abcdef", "fedcba", "abc", "def", "af")]
    found = sum((Evidence.of(r) for r in rounds), start=Evidence(())).among(chosen)
    met = [{p: x for p, x in r.items() if p in chosen} for r in rounds]
    expected = sum((Evidence.of(r) for r in met if len(r) > 1), start=Evidence(()))
    assert len(found.blocks) == len(expected.blocks)
    for block in expected.blocks:
        other = found.blocks[found.find(block.parties)].ordered(block.parties)
        assert other.count == pytest.approx(block.count)
        assert_allclose(other.distances, block.distances, rtol=1e-9)


@pytest.mark.parametrize("method", [cs.Pairwise(), cs.IVAR(), cs.IVAR("mle")], ids=str)
def test_a_large_round_is_inferred_from_what_is_known_of_its_own_parties(method):
    random, memory, total = np.random.default_rng(0), cs.Memory(1.0), Evidence(())
    for _ in range(6):
        updates = sent(random, some(random, 100, 60))
        past = total.among(updates)
        total = total + Evidence.of(updates)
        found = cs.aggregate(updates, method, memory).beliefs
        assert set(found.parties) == set(updates)
        by_hand = method.infer(
            past + Evidence.of(updates), Given(now=Evidence.of(updates).blocks[0])
        )
        if isinstance(method, cs.IVAR):  # where it starts is of no account
            ours = dict(zip(found.parties, found.noise, strict=True))
            theirs = dict(zip(by_hand.parties, by_hand.noise, strict=True))
            assert ours == pytest.approx(theirs, rel=2e-2)
        else:
            assert_allclose(found.noise, by_hand.noise, rtol=1e-3)
    assert_allclose(sum(b.count for b in memory.evidence.blocks), 6 * 60)


def test_few_are_inferred_together_however_few_of_them_take_part():
    memory = cs.Memory(1.0)
    for found in rounds_of(memory, 10, many=40, few=5):
        assert found.beliefs.evidence.parties == memory.evidence.parties
    assert len(memory.evidence.parties) > 20


def test_a_small_round_of_many_is_inferred_in_the_company_of_those_it_met():
    random, memory = np.random.default_rng(0), cs.Memory(1.0)
    for _ in range(8):
        cs.aggregate(sent(random, some(random, 1000, 20)), memory=memory)
    met = memory.evidence.blocks[3].parties
    found = cs.aggregate(sent(random, [*met[:2], "new"]), memory=memory).beliefs
    assert {*met, "new"} <= set(found.parties)
    assert 21 <= len(found.parties) < 50 + 20


@pytest.mark.parametrize("decay", [0.9, 1.0])
def test_what_a_round_costs_does_not_grow(decay, monkeypatch):
    monkeypatch.setattr(remembering, "_MOST_BLOCKS", 7)
    memory = cs.Memory(decay, max_parties=200)
    for found in rounds_of(memory, 40, few=60):
        assert len(found.beliefs.parties) == 60
        assert len(memory.evidence.blocks) <= 7
    assert len(memory.evidence.parties) <= 200


def test_the_latest_evidence_is_kept_when_there_is_too_much(monkeypatch):
    monkeypatch.setattr(remembering, "_MOST_DISTANCES", 3 * 21**2)
    memory = cs.Memory(1.0)
    for found in rounds_of(memory, 9):
        assert set(memory.evidence.blocks[-1].parties) == set(found.weights)
    assert len(memory.evidence.blocks) == 3
    monkeypatch.setattr(remembering, "_MOST_DISTANCES", 1)
    list(rounds_of(memory, 1, seed=5))
    assert len(memory.evidence.blocks) == 1  # of the last round, however large


def test_parties_that_meet_again_have_the_latest_block():
    random, memory = np.random.default_rng(0), cs.Memory(1.0)
    for parties in ("abc", "cde", "cba"):
        cs.aggregate(sent(random, parties), memory=memory)
    assert [set(block.parties) for block in memory.evidence.blocks] == [set("cde"), set("abc")]


def test_of_too_many_the_least_recently_seen_are_forgotten_and_this_is_said_once(caplog):
    memory, seen = cs.Memory(1.0, max_parties=45), []
    for found in rounds_of(memory, 12, many=200):
        now = sorted(found.weights)
        seen = [*now, *(p for p in seen if p not in now)]
        assert set(memory.known.parties) == set(memory.past.parties) == set(seen[:45])
        assert set(memory.trails.parties) == set(seen[:45])
        assert set(memory.evidence.parties) <= set(seen[:45])
        assert set(memory.noise) == set(seen[:45])
    assert memory.forgotten > len(set(seen)) - 45 > 0
    said = [r for r in caplog.records if "max_parties=45" in r.getMessage()]
    assert [(r.name, r.levelno) for r in said] == [("consilience", logging.WARNING)]


@pytest.mark.parametrize("method", ["pairwise", "ivar-vb", "icov-vb", "mean"])
def test_the_parties_of_the_last_round_are_all_remembered(method):
    memory = cs.Memory(max_parties=3)
    for found in rounds_of(memory, 3, few=8, method=method):
        assert set(memory.noise) == set(found.weights)


@pytest.mark.parametrize("most", [0, -1, 1.5, "10", None, 10**10])
def test_max_parties_is_a_number_of_parties(most):
    with pytest.raises(cs.ConsilienceError, match="max_parties"):
        cs.Memory(max_parties=most)


def returned(updates, how, party, times=5, decay=0.5, size=40):
    """Return the weight of a party that was ``how`` noisy for some rounds and then away until the
    evidence had faded, and that of a stranger who sends the same."""
    random, memory = np.random.default_rng(1), cs.Memory(decay)
    others = [f"h{j}" for j in range(10)]
    for _ in range(times):
        cs.aggregate(sent(random, [*others, party], size, {party: how}), memory=memory)
    for _ in range(15):
        cs.aggregate(sent(random, others, size), memory=memory)
    assert party not in memory.evidence.parties
    assert party not in memory.trails.parties
    assert party in memory.noise
    renamed = {"stranger" if p == party else p: x for p, x in updates.items()}
    known = cs.aggregate(updates, memory=memory.copy())
    return known.weights[party], cs.aggregate(renamed, memory=memory).weights["stranger"]


def test_a_noisy_client_that_returns_is_remembered():
    sending = sent(np.random.default_rng(2), [*(f"h{j}" for j in range(10)), "z"], 40)
    known, stranger = returned(sending, 6.0, "z")
    assert known < 0.5 * stranger


def test_a_quiet_client_that_returns_is_forgiven_what_chance_explains():
    sending = sent(np.random.default_rng(2), [*(f"h{j}" for j in range(10)), "z"], 40, {"z": 1.6})
    known, stranger = returned(sending, 1.0, "z")
    assert stranger * 1.1 < known < stranger * (1 + 3 * np.sqrt(2 / 36))


@pytest.mark.parametrize("length", [5.0, 20.0])
def test_a_quiet_past_is_no_licence(length):
    sending = sent(
        np.random.default_rng(2), [*(f"h{j}" for j in range(10)), "z"], 40, {"z": length}
    )
    known, stranger = returned(sending, 1.0, "z", times=30, decay=0.9 ** (1 / 2) * 0.6)
    worth = 40 * (1 - 2 / 11)
    assert known <= stranger * (1 + 3 * np.sqrt(2 / worth)) * 1.01


def test_a_newcomer_is_not_better_off_than_a_regular_who_behaved_well():
    weights = [
        returned(sent(np.random.default_rng(s), [*(f"h{j}" for j in range(10)), "z"], 40), 1.0, "z")
        for s in range(3, 18)
    ]
    known, stranger = np.mean(weights, axis=0)
    assert known > 0.99 * stranger


@settings(max_examples=50)
@given(
    now=st.floats(1e-3, 1e3),
    before=st.floats(1e-3, 1e3),
    worth=st.just(0.0) | st.floats(1e-3, 1e6),
    count=st.integers(2, 10**6),
)
def test_levels_with_their_past(now, before, worth, count):
    evidence = Evidence((Block(("a", "b"), np.zeros((3, 3)), 4.0 * count),))
    past = Past(("b", "z"), np.array([before, 9.0]), np.array([worth, 9.0]))
    stranger, known = with_past(np.array([now, now]), evidence, past)
    assert stranger == pytest.approx(now)
    assert with_past(np.array([now, now]), evidence, None)[1] == now
    least = now / (1 + 3 * np.sqrt(2 / count))
    both = np.exp((count * np.log(now) + worth * np.log(before)) / (count + worth))
    assert known == pytest.approx(max(least, both))


def test_with_everybody_there_the_past_adds_nothing():
    """What is in the evidence is not counted once more."""
    memory = cs.Memory()
    random = np.random.default_rng(0)
    for _ in range(12):
        updates = sent(random, "abcdef", noise={"f": 4.0})
        now = Evidence.of(updates)
        before = memory.beyond(memory.recall(now), now)
        assert before is None or before.worth == pytest.approx(0, abs=1e-9)
        cs.aggregate(updates, memory=memory)
    levels, worth = memory.past.of(tuple("af"))
    assert levels[1] / levels[0] == pytest.approx(16, rel=0.3)
    assert worth == pytest.approx(memory.evidence.worth[[0, 5]])


def test_what_is_known_of_the_absent_survives_another_rank():
    random, memory = np.random.default_rng(0), cs.Memory(0.0)
    cs.aggregate(sent(random, "abcdez"), cs.ICOV(rank=2), memory)
    before = memory.noise["z"]
    for method in (cs.ICOV(rank=1), cs.ICOV(rank=2), "pairwise", cs.ICOV(rank=1)):
        cs.aggregate(sent(random, "abcde"), method, memory)
        assert memory.noise["z"] == before
        found = cs.aggregate(sent(random, "abcdez"), method, memory.copy())
        assert np.isfinite(found.value).all()


def test_a_memory_of_several_ranks_is_saved(tmp_path):
    random, memory = np.random.default_rng(0), cs.Memory(0.0)
    cs.aggregate(sent(random, "abcdez"), cs.ICOV(rank=2), memory)
    cs.aggregate(sent(random, "abcde"), cs.ICOV(rank=1), memory)
    memory.save(tmp_path / "memory.npz")
    loaded = cs.Memory.load(tmp_path / "memory.npz")
    assert loaded.noise == memory.noise
    assert np.isnan(loaded.known.latent.own[5])


def test_trails_of_many_parties_have_fewer_places(monkeypatch):
    monkeypatch.setattr(following, "_MOST_NUMBERS", 2**14)
    memory, places = cs.Memory(1.0), 9000
    for _ in rounds_of(memory, 6, size=9000):
        for trails in (memory.relay.used, memory.relay.young):
            assert {mean.shape for mean in trails.means} == {trails.places.shape}
            assert {mean.dtype for mean in trails.means} == {np.dtype(np.float32)}
            assert len(trails.places) * len(trails.parties) <= 2**14 or len(trails.places) == 256
            assert len(trails.places) <= places
        places = len(memory.trails.places)
    assert places == 256


def test_thinned_trails_are_those_of_the_places_that_are_left(monkeypatch):
    random, whole = np.random.default_rng(0), Trails.begun(20_000, np.random.default_rng(1))
    updates = random.standard_normal((6, 20_000))
    for _ in range(2):
        whole = whole.followed(tuple("abcdef"), updates[:, whole.places], 0.9)
    monkeypatch.setattr(following, "_MOST_NUMBERS", 6 * 4096)
    half = whole.thinned()
    assert half.places.tolist() == whole.places[::2].tolist()
    assert_allclose(half.means, np.stack(whole.means)[:, ::2])
    again = half.followed(tuple("abcdef"), updates[:, half.places], 0.9)
    assert again.evidence(6).block.count == 4096


def test_the_trails_of_the_absent_are_handed_on_not_copied():
    memory = cs.Memory()
    random = np.random.default_rng(0)
    cs.aggregate(sent(random, "abcd"), memory=memory)
    before = dict(zip(memory.trails.parties, memory.trails.means, strict=True))
    content = {p: mean.copy() for p, mean in before.items()}
    copy = memory.copy()
    cs.aggregate(sent(random, "abce"), memory=memory)
    after = dict(zip(memory.trails.parties, memory.trails.means, strict=True))
    assert after["d"] is before["d"]
    assert all((before[p] == content[p]).all() for p in before)  # nothing is changed in place
    assert copy.trails.parties == tuple("abcd")
    assert all(mean.base is None for mean in after.values())  # no row keeps a round's others


def test_who_sends_more_than_can_be_kept_hides_nobody_elses_trail():
    random, memory = np.random.default_rng(0), cs.Memory()
    for _ in range(3):
        updates = sent(random, "abcdef") | {"wild": np.full(60, 1e49)}
        cs.aggregate(updates, memory=memory)
    assert np.isfinite(memory.trails.means).all()
    found = memory.trails.evidence(len(updates))
    assert found is not None
    assert found.block.distances[0, 1] < 10


def test_a_relay_forgets_in_both_sets():
    relay = Relay.begun(9000, np.random.default_rng(0))
    relay = relay.followed(
        tuple("abcd"), lambda at: np.ones((4, at.size)), 0.9, np.random.default_rng(0)
    ).first(2)
    assert relay.used.parties == relay.young.parties == ("a", "b")
    assert len(relay.used.means) == len(relay.young.rounds) == 2


@pytest.fixture
def parts(tmp_path):
    """The header and the arrays of a memory's file."""
    memory = cs.Memory(0.8, max_parties=30)
    list(rounds_of(memory, 3, few=12))
    memory.save(tmp_path / "memory.npz")
    with np.load(tmp_path / "memory.npz") as file:
        arrays = {name: array.copy() for name, array in file.items()}
    return json.loads(arrays.pop("header").tobytes()), arrays


def written(path, header, arrays):
    with open(path, "wb") as file:
        np.savez(file, header=np.frombuffer(json.dumps(header).encode(), np.uint8), **arrays)
    return path


def test_a_file_of_the_version_before_is_read(parts, tmp_path):
    header, arrays = parts
    new = cs.Memory.load(written(tmp_path / "new.npz", header, arrays))
    header["version"] = 2
    del header["past"], header["max_parties"], arrays["levels"], arrays["worth"]
    for b in range(len(header["trails"][0].pop("apart"))):
        del arrays[f"apart0of{b}"]
    arrays["means0"] = arrays["means0"].astype(float)
    old = cs.Memory.load(written(tmp_path / "old.npz", header, arrays))
    assert (old.past, old.max_parties, old.rounds) == (None, 10_000, 3)
    assert (new.past is not None, new.max_parties) == (True, 30)
    assert old.noise == new.noise
    assert_allclose(old.trails.means, new.trails.in_units().means)
    assert len(list(rounds_of(old, 2))) == 2


def test_trails_of_a_file_of_the_version_before_get_the_units_of_rounds(parts, tmp_path):
    header, arrays = parts
    new = cs.Memory.load(written(tmp_path / "new.npz", header, arrays)).trails.in_units()
    header["version"] = 3
    arrays["means0"] *= 1000
    arrays["squares0"] *= 1000**2
    old = cs.Memory.load(written(tmp_path / "old.npz", header, arrays))
    assert_allclose(old.trails.means, new.means, rtol=1e-5)
    assert_allclose(old.trails.squares, new.squares, rtol=1e-5)
    assert np.median(new.squares) == pytest.approx(1, rel=1e-3)
    arrays["means0"][5], arrays["squares0"][5] = 1e37, 1e74  # many times as large as others
    large = cs.Memory.load(written(tmp_path / "large.npz", header, arrays))
    assert len(list(rounds_of(large, 2))) == 2
    large.save(tmp_path / "again.npz")
    assert cs.Memory.load(tmp_path / "again.npz").rounds == 5
    arrays["means0"][5], arrays["squares0"][:] = 0, 0  # all agreed: there is no unit
    equal = cs.Memory.load(written(tmp_path / "equal.npz", header, arrays))
    assert_allclose(equal.trails.means, arrays["means0"])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("levels", value) for value in (0.0, -1.0, np.nan, np.inf, 1e300)),
        *(("worth", value) for value in (0.0, -1.0, np.nan, np.inf, 1e300)),
        *(("max_parties", value) for value in (0, -1, 1.5, None, "9", True, 10**12)),
        *(("past", value) for value in ([], {}, {"parties": "ab"}, {"parties": []}, 7)),
    ],
)
def test_a_past_that_nobody_can_have(parts, tmp_path, name, value):
    header, arrays = parts
    if name in arrays:
        arrays[name][1] = value
    else:
        header[name] = value
    with pytest.raises(cs.MemoryFileError, match="not a readable memory"):
        cs.Memory.load(written(tmp_path / "m.npz", header, arrays))


def test_a_loaded_memory_forgets_as_the_other_does(parts, tmp_path):
    one = cs.Memory.load(written(tmp_path / "m.npz", *parts))
    other = one.copy()
    other.save(tmp_path / "n.npz")
    other = cs.Memory.load(tmp_path / "n.npz")
    for memory in (one, other):
        list(rounds_of(memory, 3, few=12, seed=1))
    assert one.known.parties == other.known.parties
    assert one.past.parties == other.past.parties
    assert len(one.known.parties) == 30
