"""Memory: parties come and go, rounds fade, and files are whole or not touched."""

import json
import os
import subprocess
import sys
import time
import zipfile
from contextlib import suppress
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import consilience as cs
from consilience.beliefs import NOTHING, Given, Known, Latent
from consilience.evidence import Evidence
from consilience.trails import Trails

REMEMBERING = ["ivar-mle", "ivar-vb", "icov-mle", "icov-vb", "icov-full", "pairwise"]


def send(seed, parties="abcd", size=120):
    """Return a round's updates: the later a party in the alphabet, the noisier."""
    random = np.random.default_rng(seed)
    truth = random.standard_normal(size)
    return {p: truth + (ord(p) - 96) * random.standard_normal(size) for p in parties}


def assert_same_evidence(found, expected, rtol=0.0):
    assert {frozenset(b.parties) for b in found.blocks} == {
        frozenset(b.parties) for b in expected.blocks
    }
    for block in expected.blocks:
        other = found.blocks[found.find(block.parties)]
        assert other.parties == block.parties
        np.testing.assert_allclose(other.count, block.count, rtol=rtol)
        np.testing.assert_allclose(other.distances, block.distances, rtol=rtol)


def assert_same(found: cs.Memory, expected: cs.Memory):
    """Equal bit for bit."""
    assert (found.decay, found.rounds) == (expected.decay, expected.rounds)
    assert (found.evidence is None) == (expected.evidence is None)
    if expected.evidence is not None:
        assert len(found.evidence.blocks) == len(expected.evidence.blocks)
        assert_same_evidence(found.evidence, expected.evidence)
    assert (found.known is None) == (expected.known is None)
    if expected.known is not None:
        assert found.known.parties == expected.known.parties
        assert found.known.noise.tobytes() == expected.known.noise.tobytes()
        ours, theirs = found.known.latent, expected.known.latent
        assert (ours is None) == (theirs is None)
        if theirs is not None:
            assert ours.factors.tobytes() == theirs.factors.tobytes()
            assert ours.factors.shape == theirs.factors.shape
            assert ours.own.tobytes() == theirs.own.tobytes()
            assert (ours.shared, ours.prior_variance) == (theirs.shared, theirs.prior_variance)
    assert found.max_parties == expected.max_parties
    assert (found.past is None) == (expected.past is None)
    if expected.past is not None:
        assert found.past.parties == expected.past.parties
        assert found.past.levels.tobytes() == expected.past.levels.tobytes()
        assert found.past.worth.tobytes() == expected.past.worth.tobytes()
    assert (found.relay is None) == (expected.relay is None)
    if expected.relay is not None:
        assert found.relay.lasted == expected.relay.lasted
        assert_same_trails(found.relay.used, expected.relay.used)
        assert (found.relay.young is None) == (expected.relay.young is None)
        if expected.relay.young is not None:
            assert_same_trails(found.relay.young, expected.relay.young)


def assert_same_trails(found: Trails, expected: Trails):
    assert (found.size, found.age, found.parties) == (expected.size, expected.age, expected.parties)
    for what in ("places", "rounds", "means", "squares", "effective"):
        ours, theirs = np.array(getattr(found, what)), np.array(getattr(expected, what))
        assert ours.tobytes() == theirs.tobytes()
        assert ours.shape == theirs.shape


@pytest.mark.parametrize("decay", [0.0, 0.9, 1.0])
@pytest.mark.parametrize("method", REMEMBERING)
def test_memory_equals_evidence_added_by_hand(method, decay):
    memory = cs.Memory(decay)
    total = None
    for seed, parties in enumerate(["abcd", "abc", "abcd", "bcde", "abcd"]):
        updates = send(seed, parties)
        now = Evidence.of(updates)
        total = now if total is None or decay == 0 else total.discounted(decay) + now
        cs.aggregate(updates, method, memory)
        assert_same_evidence(memory.evidence, total, rtol=1e-14)
    assert memory.rounds == 5
    if method in {"ivar-mle", "ivar-vb"}:  # one maximum: where the search started is of no account
        beliefs = cs.IVAR(method[5:], tolerance=1e-10, max_iterations=5000).infer(total)
        by_hand = dict(zip(beliefs.parties, beliefs.noise, strict=True))
        remembered = {p: level for p, level in memory.noise.items() if p in by_hand}
        assert remembered == pytest.approx(by_hand, rel=1e-4)


def test_decay_by_numbers():
    memory = cs.Memory(0.5)
    for seed in range(3):
        cs.aggregate(send(seed), "ivar-vb", memory)
    (block,) = memory.evidence.blocks
    assert block.count == 120 * (1 + 0.5 + 0.25)
    found = [Evidence.of(send(seed)).blocks[0].distances for seed in range(3)]
    expected = (found[2] + 0.5 * found[1] + 0.25 * found[0]) / 1.75
    np.testing.assert_allclose(block.distances, expected, rtol=1e-13)


def test_a_memory_helps():
    """Ten coordinates say little about noise; forty rounds of them say more."""
    memory = cs.Memory(1.0)
    for seed in range(40):
        cs.aggregate(send(seed, size=10), "ivar-vb", memory)
    found = cs.aggregate(send(99, size=10), "ivar-vb", memory)
    levels = [found.noise[p] for p in "abcd"]
    np.testing.assert_allclose(levels, [1, 2, 3, 4], rtol=0.25)


def test_faded_blocks_are_dropped_but_parties_stay_known():
    memory = cs.Memory(0.5)
    cs.aggregate(send(0, "abz"), "ivar-vb", memory)
    before = memory.noise["z"]
    for seed in range(1, 13):
        cs.aggregate(send(seed, "abc"), "ivar-vb", memory)
    assert len(memory.evidence.blocks) == 1
    assert set(memory.noise) == set("abcz")
    assert memory.noise["z"] == pytest.approx(before, rel=0.5)


def test_newcomers_and_loners():
    memory = cs.Memory(1.0)
    cs.aggregate(send(0, "abc"), "ivar-vb", memory)
    alone = cs.aggregate(send(1, "z"), "ivar-vb", memory)
    np.testing.assert_allclose(alone.value, send(1, "z")["z"])
    assert np.isnan(memory.noise["z"])
    assert np.isfinite([memory.noise[p] for p in "abc"]).all()
    assert set(memory.known.parties) == set("abc")  # of z nothing is known
    joined = cs.aggregate(send(2, "bz"), "ivar-vb", memory)
    assert joined.weights["b"] > joined.weights["z"] > 0


@pytest.mark.parametrize("others", [False, True])
@pytest.mark.parametrize("method", REMEMBERING)
def test_alone_nothing_is_learnt_and_nothing_forgotten(method, others, tmp_path):
    """Neither of the party that is alone nor of the others, however often; not by other ids."""
    memory = cs.Memory(seed=0)
    for seed in range(3):
        cs.aggregate(send(seed, "abcdef"), method, memory)
    before = memory.copy()
    for seed in range(80):
        party = "z" if others and seed % 2 else "f"
        alone = cs.aggregate({party: send(seed, "a")["a"]}, method, memory)
        np.testing.assert_array_equal(alone.value, send(seed, "a")["a"])
    assert memory.rounds == 83
    assert {p: memory.noise[p] for p in "abcdef"} == before.noise
    assert np.isnan(memory.noise.get("z", np.nan))
    memory.save(tmp_path / "memory.npz")
    assert_same(cs.Memory.load(tmp_path / "memory.npz"), memory)
    for passes_on in ("rounds", "evidence", "known"):
        setattr(memory, passes_on, getattr(before, passes_on))
    assert_same(memory, before)


@pytest.mark.parametrize("sizes", [[120], [120, 7], [20_000]])
def test_a_memory_may_begin_with_a_party_alone(sizes, tmp_path):
    memory = cs.Memory(seed=0)
    for seed, size in enumerate(sizes * 3):
        cs.aggregate(send(seed, "f", size), memory=memory)
        memory.save(tmp_path / "memory.npz")
        assert_same(cs.Memory.load(tmp_path / "memory.npz"), memory)
    assert np.isnan(memory.noise["f"])
    fresh, updates = cs.Memory(seed=0), send(9, "abcdef", sizes[0])
    assert (
        cs.aggregate(updates, memory=memory).weights == cs.aggregate(updates, memory=fresh).weights
    )


def test_a_loud_party_does_not_lose_its_name_by_being_alone():
    """It is as if it had been away."""
    random, levels = np.random.default_rng(0), {"f": 3.0}
    memory = cs.Memory(seed=0)

    def meeting():
        return {p: levels.get(p, 1.0) * random.standard_normal(1000) for p in "abcdefghij"}

    for _ in range(3):
        cs.aggregate(meeting(), memory=memory)
    levels["f"] = 1.0
    for _ in range(70):
        cs.aggregate({"f": random.standard_normal(1000)}, memory=memory)
    assert memory.noise["f"] == pytest.approx(3, rel=0.05)
    level, worth = memory.past.of(("f",))
    assert level == pytest.approx(9, rel=0.1)
    assert worth == pytest.approx(2710 * 9 / 11 - 49, rel=0.05)
    found = cs.aggregate(meeting(), memory=memory)
    assert found.weights["f"] < 0.8 * found.weights["a"]


def test_methods_without_memory_give_the_same_with_one():
    memory = cs.Memory()
    for seed in range(3):
        for method in set(cs.methods()) - set(REMEMBERING):
            with_one = cs.aggregate(send(seed), method, memory)
            np.testing.assert_array_equal(with_one.value, cs.aggregate(send(seed), method).value)


@pytest.mark.parametrize("first", [*REMEMBERING, "mean", "krum"])
@pytest.mark.parametrize("second", [*REMEMBERING, "geometric-median"])
def test_two_methods_share_a_memory(first, second):
    memory = cs.Memory()
    for seed, method in enumerate([first, second, first, second]):
        found = cs.aggregate(send(seed, "abcde"[: 4 + seed % 2]), method, memory)
        assert np.isfinite(found.value).all()
        assert found.weights["a"] > 0
    assert memory.rounds == 4
    assert sum(block.count for block in memory.evidence.blocks) == pytest.approx(120 * 3.439)


class Recording(cs.IVAR):
    """A method that notes where it was told to start."""

    def infer(self, evidence, given=NOTHING):
        self.starts.append(given.known)
        return super().infer(evidence, given)

    starts: ClassVar[list] = []


def test_a_round_starts_from_what_the_last_one_found():
    memory = cs.Memory()
    cs.aggregate(send(0), Recording(), memory)
    known = memory.known
    cs.aggregate(send(1), Recording(), memory)
    assert Recording.starts == [None, known]


class Failing:
    """A method that fails after the evidence has been gathered."""

    remembers = True
    follows = False

    def infer(self, evidence, given=NOTHING):
        raise RuntimeError("no answer")


@pytest.mark.parametrize(
    ("updates", "method", "error"),
    [
        ({"a": np.array([np.nan])}, "ivar-vb", cs.UpdateError),
        ({}, "ivar-vb", cs.UpdateError),
        (send(5), Failing(), RuntimeError),
        (send(5), cs.Krum(adversaries=9), cs.ConsilienceError),
    ],
    ids=["rejected", "nobody", "failing", "impossible"],
)
def test_a_failing_round_changes_nothing(tmp_path, updates, method, error):
    memory = cs.Memory()
    cs.aggregate(send(0), "icov-vb", memory)
    memory.save(tmp_path / "before.npz")
    with pytest.raises(error):
        cs.aggregate(updates, method, memory)
    assert_same(memory, cs.Memory.load(tmp_path / "before.npz"))


@pytest.mark.parametrize("decay", [-0.1, 1.1, np.nan])
def test_decay_lies_between_zero_and_one(decay):
    with pytest.raises(cs.ConsilienceError, match="decay"):
        cs.Memory(decay)


@pytest.fixture
def used():
    """A memory of several blocks, hidden directions, and a party nothing is known of."""
    memory = cs.Memory(0.8)
    for seed, parties in enumerate(["abcd", "bcde", "z"]):
        cs.aggregate(send(seed, parties), "pairwise", memory)
        cs.aggregate(send(seed, parties), cs.ICOV(rank=2), memory)
    assert len(memory.evidence.blocks) == 3
    assert len(memory.trails.parties) == 5
    assert np.isnan(memory.noise["z"])
    assert memory.known.latent.factors.shape == (5, 2)
    return memory


def test_round_trip_bit_for_bit(used, tmp_path):
    path = tmp_path / "memory.npz"
    used.save(path)
    assert_same(cs.Memory.load(path), used)
    assert_same(cs.Memory.load(str(path)), used)
    assert os.listdir(tmp_path) == ["memory.npz"]


def test_round_trip_of_an_empty_memory(tmp_path):
    cs.Memory(0.3).save(tmp_path / "memory")
    assert_same(cs.Memory.load(tmp_path / "memory"), cs.Memory(0.3))
    assert os.listdir(tmp_path) == ["memory"]  # no suffix is added


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    noise=st.lists(st.just(0.0) | st.floats(1e-59, 1e59), min_size=1, max_size=4),
    prior=st.floats(0, allow_nan=False),
    decay=st.floats(0, 1),
    name=st.text(),
)
def test_round_trip_of_any_number_and_name(tmp_path, noise, prior, decay, name):
    memory = cs.Memory(decay)
    memory.rounds = 3
    own = np.array(noise)
    parties = (name, *(f"{name}{j}" for j in range(1, own.size)))
    memory.known = Known(parties, own, Latent(own[:, None], own, True, prior))
    memory.save(tmp_path / "memory.npz")
    assert_same(cs.Memory.load(tmp_path / "memory.npz"), memory)


@pytest.mark.parametrize(
    ("what", "spoil"),
    [
        ("places0", lambda x: x[::-1]),
        ("places0", lambda x: x + 10**6),
        ("places0", lambda x: x.astype(float)),
        ("means0", lambda x: x[:, 1:]),
        ("means0", lambda x: x * np.nan),
        ("rounds0", lambda x: -x),
        ("rounds0", lambda x: x * np.inf),
    ],
)
def test_damaged_trails_are_found_when_they_are_read(used, tmp_path, what, spoil):
    used.save(tmp_path / "memory.npz")
    with np.load(tmp_path / "memory.npz") as file:
        arrays = dict(file)
    np.savez(tmp_path / "memory.npz", **{**arrays, what: spoil(arrays[what])})
    with pytest.raises(cs.MemoryFileError, match="not a readable memory"):
        cs.Memory.load(tmp_path / "memory.npz")


def test_trails_without_a_place_are_no_trails(used, tmp_path):
    used.save(tmp_path / "memory.npz")
    with np.load(tmp_path / "memory.npz") as file:
        arrays = dict(file)
    arrays |= {"places0": arrays["places0"][:0], "means0": arrays["means0"][:, :0]}
    np.savez(tmp_path / "memory.npz", **arrays)
    with pytest.raises(cs.MemoryFileError, match="not a readable memory"):
        cs.Memory.load(tmp_path / "memory.npz")


@pytest.fixture
def large():
    """A memory of a model too large to look at all of it, so that it has two sets of trails."""
    memory = cs.Memory()
    for seed, parties in enumerate(["abcd", "bcde"]):
        cs.aggregate(send(seed, parties, 9000), "pairwise", memory)
    assert memory.relay.young is not None
    return memory


def test_round_trip_of_two_sets_of_trails(large, tmp_path):
    large.save(tmp_path / "memory.npz")
    assert_same(cs.Memory.load(tmp_path / "memory.npz"), large)


@pytest.mark.parametrize("young", [0, 1])
@pytest.mark.parametrize(("what", "value"), [("places", -1), ("means", np.nan), ("rounds", -1)])
def test_of_two_sets_of_trails_both_are_checked(large, tmp_path, what, value, young):
    large.save(tmp_path / "memory.npz")
    with np.load(tmp_path / "memory.npz") as file:
        arrays = dict(file)
    arrays[f"{what}{young}"] = np.full_like(arrays[f"{what}{young}"], value)
    np.savez(tmp_path / "memory.npz", **arrays)
    with pytest.raises(cs.MemoryFileError, match="not a readable memory"):
        cs.Memory.load(tmp_path / "memory.npz")


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda trails: trails.pop(), "others to take over"),
        (lambda trails: trails[1].update(size=9001), "different models"),
        (lambda trails: trails.append(trails[0]), "at most two"),
        (lambda trails: trails[0].update(age=3), "age"),  # more than the memory has
        (lambda trails: trails[0].update(age=-1), "age"),
    ],
)
def test_sets_of_trails_that_no_memory_has(large, tmp_path, spoil, why):
    large.save(tmp_path / "memory.npz")
    with np.load(tmp_path / "memory.npz") as file:
        arrays = dict(file)
    header = json.loads(arrays["header"].tobytes())
    spoil(header["trails"])
    arrays["header"] = np.frombuffer(json.dumps(header).encode(), np.uint8)
    if len(header["trails"]) == 1:
        arrays = {n: a for n, a in arrays.items() if n not in {"places1", "means1", "rounds1"}}
    np.savez(tmp_path / "memory.npz", **arrays)
    with pytest.raises(cs.MemoryFileError, match=why):
        cs.Memory.load(tmp_path / "memory.npz")


def test_the_file_needs_no_pickle(used, tmp_path):
    used.save(tmp_path / "memory.npz")
    with np.load(tmp_path / "memory.npz", allow_pickle=False) as arrays:
        assert {array.dtype.kind for array in arrays.values()} <= {"f", "i", "u"}
        header = json.loads(arrays["header"].tobytes())
    assert header["format"] == "consilience-memory"
    assert header["version"] == 4


@pytest.mark.parametrize("size", [1e-61, 1e-65, 1e-150])
def test_however_little_parties_differ_what_is_saved_is_read(tmp_path, size):
    memory = cs.Memory(seed=0)
    for told in (0.0, 0.0, 0.0, size):
        updates = {party: np.zeros(300) for party in "abcd"} | {"eve": np.full(300, told)}
        cs.aggregate(updates, memory=memory)
    memory.save(tmp_path / "m.npz")
    assert cs.Memory.load(tmp_path / "m.npz").rounds == 4


def test_errors_may_fade_until_next_to_nothing_is_left(tmp_path):
    memory = cs.Memory(decay=0.5, seed=0)
    cs.aggregate(send(0), memory=memory)
    for _ in range(419):
        cs.aggregate({party: np.ones(120) for party in "abcd"}, memory=memory)
    memory.save(tmp_path / "m.npz")
    assert cs.Memory.load(tmp_path / "m.npz").rounds == 420


def test_a_level_however_far_from_the_typical_one_is_read_again(tmp_path):
    """All honest parties send the same, once, and two throw-away ids something else."""
    random, memory, same = np.random.default_rng(0), cs.Memory(seed=0), np.zeros(1000)
    little = same.copy()
    little[0] = 1e-46
    sent = {f"p{j}": same for j in range(7)} | {"eve": little, "mallory": same + 1e50}
    cs.aggregate(sent, memory=memory)
    for _ in range(70):  # until that round is no longer evidence
        cs.aggregate({f"p{j}": random.standard_normal(1000) for j in range(7)}, memory=memory)
    memory.save(tmp_path / "m.npz")
    assert cs.Memory.load(tmp_path / "m.npz").rounds == 71


def test_what_is_recalled_ends_with_this_round():
    """Other evidence is scaled to the noise of the last block."""
    random, memory, everybody = np.random.default_rng(0), cs.Memory(seed=0), "abcdef"
    for ids in (everybody, everybody[:5]):
        cs.aggregate({p: random.standard_normal(50) for p in ids}, memory=memory)
    now = cs.Evidence.of({p: random.standard_normal(50) for p in everybody})
    assert [len(block.parties) for block in memory.recall(now).blocks] == [5, 6]


@pytest.mark.parametrize("method", REMEMBERING)
def test_a_loaded_memory_goes_on_where_the_other_left(method, tmp_path):
    memory = cs.Memory()
    for seed in range(3):
        cs.aggregate(send(seed), method, memory)
    memory.save(tmp_path / "memory.npz")
    loaded = cs.Memory.load(tmp_path / "memory.npz")
    ours, theirs = (cs.aggregate(send(9), method, m) for m in [memory, loaded])
    np.testing.assert_array_equal(ours.value, theirs.value)
    assert_same(loaded, memory)


@pytest.mark.parametrize("method", [cs.ICOV(rank=1), cs.ICOV("mle", 1), cs.IVAR()], ids=str)
def test_inference_starts_warm_after_loading(tmp_path, method):
    """From what is remembered, less is left to climb, and the climb ends where it would."""
    memory = cs.Memory(1.0)
    for seed in range(3):
        updates = send(seed, "abcdef", 2000)
        shared = np.random.default_rng(5 + seed).standard_normal(2000)
        for party in "ef":
            updates[party] = updates[party] + 4 * shared
        cs.aggregate(updates, method, memory)
    memory.save(tmp_path / "memory.npz")
    loaded = cs.Memory.load(tmp_path / "memory.npz")
    cold = method.infer(loaded.evidence).objective
    warm = method.infer(loaded.evidence, Given(known=loaded.known)).objective
    assert 0 <= warm[-1] - warm[0] < 0.5 * (cold[-1] - cold[0])
    assert warm[-1] >= cold[-1] - 1e-3 * (cold[-1] - cold[0])


class DiskFullError(Exception):
    pass


@pytest.mark.parametrize("where", ["numpy.savez", "os.fsync", "os.replace"])
def test_a_failed_save_leaves_the_old_file(used, tmp_path, monkeypatch, where):
    path = tmp_path / "memory.npz"
    cs.Memory(0.5).save(path)
    before = path.read_bytes()

    def fail(file, *args, **kwargs):
        if where == "numpy.savez":
            file.write(b"half of it")
        raise DiskFullError

    monkeypatch.setattr(where, fail)
    with pytest.raises(DiskFullError):
        used.save(path)
    monkeypatch.undo()
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["memory.npz"]


def test_a_save_is_one_rename_within_the_directory(used, tmp_path, monkeypatch):
    """Renaming from another file system would be no rename."""
    renamed = []
    monkeypatch.setattr("os.replace", lambda old, new: renamed.append((old, new)))
    used.save(tmp_path / "memory.npz")
    ((old, new),) = renamed
    assert os.path.dirname(old) == str(tmp_path)
    assert new == tmp_path / "memory.npz"


def test_saving_where_there_is_no_directory(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        cs.Memory().save(tmp_path / "nowhere" / "memory.npz")


SAVER = """
import sys, numpy as np, consilience as cs
memory = cs.Memory()
X = np.random.default_rng(0).standard_normal((60, 50))
while True:
    cs.aggregate(X, "ivar-vb", memory)
    memory.save(sys.argv[1])
    print(memory.rounds, flush=True)
"""


@pytest.mark.integration
def test_killed_while_saving(tmp_path):
    path = tmp_path / "memory.npz"
    for wait in np.random.default_rng(0).uniform(0, 0.01, 4):
        process = subprocess.Popen(
            [sys.executable, "-c", SAVER, str(path)], stdout=subprocess.PIPE, text=True
        )
        with process:
            for _ in range(5):
                saved = int(process.stdout.readline())
            time.sleep(wait)
            process.kill()
        loaded = cs.Memory.load(path)
        assert loaded.rounds >= saved
        assert loaded.evidence.blocks[0].distances.shape == (61, 61)


def header_of(**changes):
    header = {
        "format": "consilience-memory",
        "version": 2,
        "decay": 0.9,
        "rounds": 1,
        "blocks": [],
        "known": None,
    }
    return header | changes


def npz(path, content=None, **arrays):
    if content is not None:
        arrays["header"] = np.frombuffer(json.dumps(content).encode(), np.uint8)
    with open(path, "wb") as file:
        np.savez(file, **arrays)


def truncated(path):
    cs.Memory().save(path)
    path.write_bytes(path.read_bytes()[:-50])


def flipped(path):
    memory = cs.Memory()
    cs.aggregate(send(0), "ivar-vb", memory)
    memory.save(path)
    content = bytearray(path.read_bytes())
    content[content.index(b"NUMPY") + 200] ^= 0xFF
    path.write_bytes(content)


def foreign_zip(path):
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("header", "hello")


def pickled(path):
    with open(path, "wb") as file:
        np.savez(file, header=np.array([{}], dtype=object))


def one_array(path):
    with open(path, "wb") as file:
        np.save(file, TWO)


BLOCK = {"parties": ["a", "b"], "count": 5.0}
KNOWN = {"parties": ["a", "b"], "latent": {"shared": False}}
TWO = np.ones(2)
BROKEN = {
    "empty": lambda path: path.write_bytes(b""),
    "text": lambda path: path.write_text("a,b\n1,2\n"),
    "truncated": truncated,
    "flipped byte": flipped,
    "foreign zip": foreign_zip,
    "pickled": pickled,
    "one array": one_array,
    "foreign npz": lambda path: npz(path, weights=np.ones(3)),
    "no json": lambda path: npz(path, None, header=np.frombuffer(b"{", np.uint8)),
    "list": lambda path: npz(path, [1, 2]),
    "no blocks": lambda path: npz(path, {"format": "consilience-memory", "version": 2}),
    "bad decay": lambda path: npz(path, header_of(decay=7)),
    "text decay": lambda path: npz(path, header_of(decay="much")),
    "array missing": lambda path: npz(path, header_of(blocks=[BLOCK])),
    "wrong shape": lambda path: npz(path, header_of(blocks=[BLOCK]), distances0=np.eye(2)),
    "wrong dtype": lambda path: npz(
        path, header_of(blocks=[BLOCK]), distances0=np.zeros((3, 3), np.float32)
    ),
    "not finite": lambda path: npz(
        path, header_of(blocks=[BLOCK]), distances0=np.full((3, 3), np.nan)
    ),
    "flat factors": lambda path: npz(
        path, header_of(known=KNOWN), noise=TWO, factors=TWO, own=TWO, prior=np.array(1.0)
    ),
    "short noise": lambda path: npz(
        path, header_of(known={"parties": ["a", "b"], "latent": None}), noise=np.ones(1)
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_file_that_is_no_memory_is_named_and_left_alone(tmp_path, case):
    path = tmp_path / "memory.npz"
    BROKEN[case](path)
    before = path.read_bytes()
    with pytest.raises(cs.MemoryFileError, match=r"memory\.npz: not a readable memory .*left as"):
        cs.Memory.load(path)
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("header", "problem"),
    [
        (header_of(version=1), "memory version 1, this release reads 2"),
        (header_of(format="another-thing"), "not a memory but 'another-thing'"),
    ],
)
def test_a_file_of_another_kind_or_time(tmp_path, header, problem):
    npz(tmp_path / "memory.npz", header)
    with pytest.raises(cs.MemoryFileError, match=rf"memory\.npz: {problem}"):
        cs.Memory.load(tmp_path / "memory.npz")


def test_no_file_and_a_directory(tmp_path):
    with pytest.raises(cs.MemoryFileError, match=r"none\.npz: no such file"):
        cs.Memory.load(tmp_path / "none.npz")
    with pytest.raises(cs.MemoryFileError, match="not a readable memory"):
        cs.Memory.load(tmp_path)


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_any_damage_gives_a_memory_or_a_clear_error(used, tmp_path, data):
    path = tmp_path / "memory.npz"
    used.save(path)
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(content) - 1))
        content[at] = data.draw(st.integers(0, 255))
    path.write_bytes(content[: data.draw(st.integers(1, len(content)))])
    with suppress(cs.MemoryFileError):
        cs.Memory.load(path)


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda trails, arrays: arrays["apart0of0"].fill(1e9), "further than 500 apart"),
        (lambda trails, arrays: trails["apart"][0].update(count=99.0), "count is 99.0"),
        (lambda trails, arrays: trails.update(apart="nonsense"), "not a readable memory"),
        (lambda trails, arrays: trails.update(apart=[]), "does not speak of apart0of0"),
    ],
)
def test_forged_distances_of_single_rounds_are_refused(tmp_path, spoil, why):
    memory = cs.Memory(seed=0)
    for round in range(3):
        cs.aggregate(send(round), memory=memory)
    memory.save(tmp_path / "memory.npz")
    with np.load(tmp_path / "memory.npz") as file:
        arrays = {name: array.copy() for name, array in file.items()}
    header = json.loads(arrays.pop("header").tobytes())
    spoil(header["trails"][0], arrays)
    np.fill_diagonal(arrays["apart0of0"], 0.0)
    header = np.frombuffer(json.dumps(header).encode(), np.uint8)
    np.savez(tmp_path / "memory.npz", header=header, **arrays)
    with pytest.raises(cs.MemoryFileError, match=why):
        cs.Memory.load(tmp_path / "memory.npz")
