"""What a round must have to count; where it has not, nothing happens."""

import numpy as np
import pytest

import consilience as cs


def sent(honest=6, copies=0, bad=0):
    random = np.random.default_rng(5)
    truth = random.standard_normal(500)
    found = {f"h{j}": truth + random.standard_normal(500) for j in range(honest)}
    found |= dict.fromkeys((f"c{j}" for j in range(copies)), 3 * random.standard_normal(500))
    return found | {f"b{j}": np.full(500, np.nan) for j in range(bad)}


@pytest.mark.parametrize("method", ["pairwise", "mean", "trimmed-mean", "krum"])
def test_effective_parties(method):
    updates = sent(6)
    effective = cs.aggregate(updates, method).diagnostics["effective_parties"]
    kept = cs.aggregate(updates, method, require=cs.Require(parties=effective))
    np.testing.assert_array_equal(kept.value, cs.aggregate(updates, method).value)
    with pytest.raises(cs.RequirementError, match=r"effective parties, expected .* at least"):
        cs.aggregate(updates, method, require=cs.Require(parties=effective + 0.01))


@pytest.mark.parametrize("method", ["pairwise", "mean", "coordinate-median"])
@pytest.mark.parametrize(
    ("copies", "bad", "named"), [(2, 2, "c0, c1, b0, b1"), (0, 4, "b0, b1"), (4, 0, "c0, c1")]
)
def test_suspects_are_the_rejected_and_those_who_move_together(method, copies, bad, named):
    updates = sent(6, copies, bad)
    assert cs.aggregate(updates, method, require=cs.Require(suspects=0.4)).value.shape == (500,)
    with pytest.raises(cs.RequirementError, match=r"4 of 10 parties .* 39 % at most") as found:
        cs.aggregate(updates, method, require=cs.Require(suspects=0.39))
    assert named in str(found.value)
    assert list(found.value.rejected) == [f"b{j}" for j in range(bad)]


@pytest.mark.parametrize("method", ["pairwise", "mean"])
def test_ids_that_never_come_again_make_no_suspects(method):
    """They copy everybody, in one round, beside strangers, so that it counts."""
    memory, require = cs.Memory(seed=0), cs.Require(suspects=0.5)
    random = np.random.default_rng(0)
    for k in range(8):
        updates = {f"h{j}": random.standard_normal(3000) for j in range(5)}
        if k == 3:
            updates |= {f"x{j}": updates[f"h{j}"].copy() for j in range(5)}
            updates |= {f"s{j}": 1.5 * random.standard_normal(3000) for j in range(10)}
        cs.aggregate(updates, method, memory, require=require)


def test_a_nan_that_no_sample_sees_counts_too():
    updates = {str(j): x for j, x in enumerate(np.random.default_rng(0).standard_normal((8, 400)))}
    many = {party: np.tile(x, 4000).astype(np.float32) for party, x in updates.items()}
    many["0"][12345] = np.nan
    with pytest.raises(cs.RequirementError, match=r"1 of 8 parties .*\(0\)"):
        cs.aggregate(many, require=cs.Require(suspects=0.1), seed=3)


def test_nothing_is_remembered_or_written_down(tmp_path):
    memory, record = cs.Memory(), tmp_path / "run.jsonl"
    cs.aggregate(sent(6), memory=memory, record=record)
    before = record.read_bytes()
    with pytest.raises(cs.RequirementError):
        cs.aggregate(sent(6), memory=memory, record=record, require=cs.Require(parties=7))
    assert memory.rounds == 1
    assert record.read_bytes() == before


def test_names_of_strangers_are_no_text_to_print():
    updates = sent(3) | {"\x1b[31m" + "x" * 9999: np.array([np.nan] * 500)}
    with pytest.raises(cs.RequirementError) as found:
        cs.aggregate(updates, require=cs.Require(suspects=0))
    assert "\x1b" not in str(found.value)
    assert len(str(found.value)) < 500


@pytest.mark.parametrize("wrong", [{"parties": -1}, {"parties": np.nan}, {"suspects": 1.1}])
def test_mistakes(wrong):
    with pytest.raises(cs.ConsilienceError, match=next(iter(wrong))):
        cs.Require(**wrong)
