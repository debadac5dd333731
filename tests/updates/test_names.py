"""Tensors that are not aggregated, and tensors that are no evidence."""

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

import consilience as cs
from consilience.updates.names import meant

PATHS = [("conv", "weight"), ("bn", "running_mean"), ("head", "weight"), ("head", "bias")]


@pytest.mark.parametrize(
    ("patterns", "expected"),
    [
        ("*", {0, 1, 2, 3}),
        ([], {0, 1, 2, 3}),
        ("head.*", {2, 3}),
        ("!head.*", {0, 1}),
        (["*weight", "!head*"], {0}),
        (["!head*", "!bn.*"], {0}),
        (["conv.weight", "*bias"], {0, 3}),
        ("[hc]*.weight", {0, 2}),
        ("!*", set()),
    ],
    ids=str,
)
def test_patterns(patterns, expected):
    assert meant(PATHS, patterns) == {PATHS[k] for k in expected}


@pytest.mark.parametrize("patterns", ["haed.*", "!haed.*", ["conv*", "Head*"], "", [3]], ids=str)
def test_a_pattern_that_fits_nothing_is_a_mistake(patterns):
    with pytest.raises(cs.ConsilienceError, match=r"called like|names of tensors"):
        meant(PATHS, patterns)


def sent(parties=8, size=3000, seed=0):
    random = np.random.default_rng(seed)
    truth = random.standard_normal(size)
    return {
        f"p{j}": {
            "body": (truth + 0.1 * random.standard_normal(size)).astype(np.float32),
            "bn": {"mean": 0.1 * random.standard_normal(50), "count": np.array(7)},
            "head": random.standard_normal(10 + j),  # one's own
        }
        for j in range(parties)
    }


@pytest.mark.parametrize("method", ["pairwise", "mean", "coordinate-median"])
def test_what_is_not_aggregated_may_be_anything_and_is_not_in_the_value(method):
    updates = sent()
    updates["p0"]["head"] = np.array([np.nan, np.inf])
    del updates["p1"]["head"]
    found = cs.aggregate(updates, method, tensors="!head")
    assert not found.rejected
    rest = {p: {k: v for k, v in u.items() if k != "head"} for p, u in updates.items()}
    expected = cs.aggregate(rest, method)
    assert list(found.value) == ["body", "bn"]
    np.testing.assert_array_equal(found.value["body"], expected.value["body"])
    assert found.value["bn"]["count"] == 7
    assert found.weights == expected.weights
    with_centre = cs.aggregate(updates, method, center=sent()["p2"], tensors="!head")
    assert list(with_centre.value) == ["body", "bn"]


def test_torch_state_dicts():
    updates = {p: {"body": torch.tensor(u["body"])} for p, u in sent().items()}
    for j, update in enumerate(updates.values()):
        update["head"] = torch.zeros(j)
    value = cs.aggregate(updates, tensors=["body"]).value
    assert list(value) == ["body"]
    assert value["body"].dtype == torch.float32


@pytest.mark.parametrize("size", [3000, 1_200_000])  # the second is sampled
def test_parties_are_judged_by_the_evidence_alone(size):
    updates = {p: {"body": u["body"], "bn": u["bn"]} for p, u in sent(8, size).items()}
    honest = cs.aggregate({p: {"body": u["body"]} for p, u in updates.items()}, seed=1)
    updates["p3"]["bn"]["mean"] += 1e4  # of no interest
    assert "p3" in cs.aggregate(updates, seed=1).reasons
    found = cs.aggregate(updates, evidence="!bn*", seed=1)
    assert not {party for party, why in found.reasons.items() if "word alone" not in why}
    assert found.weights == pytest.approx(honest.weights, rel=0.02)
    assert (found.diagnostics["coordinates_seen"] < size) == (size > 3000)  # a sample did
    X = np.array([u["bn"]["mean"] for u in updates.values()])
    if not found.uncorroborated:  # else it is cut off
        wanted = np.array(list(found.weights.values())) @ X
        np.testing.assert_allclose(found.value["bn"]["mean"], wanted, rtol=1e-6)
    # And the other way round: who is far off in what is evidence is.
    updates["p5"]["body"] = -updates["p5"]["body"]
    assert list(cs.aggregate(updates, evidence="body", seed=1).reasons)[:1] == ["p5"]


def test_evidence_with_a_memory_and_what_no_sample_sees():
    memory = cs.Memory(seed=0)
    updates = {p: {"bn": u["bn"], "body": u["body"]} for p, u in sent(8, 1_200_000).items()}
    for _ in range(3):
        found = cs.aggregate(updates, memory=memory, evidence="body")
    assert memory.rounds == 3
    updates["p2"]["bn"]["mean"][7] = np.nan  # no evidence, but not to be averaged either
    found = cs.aggregate(updates, memory=memory, evidence="body")
    assert list(found.rejected) == ["p2"]
    updates["p4"]["body"][12345] = 1e6  # between the sampled places
    found = cs.aggregate(updates, evidence="body")
    assert found.diagnostics["coordinates_seen"] == 1_200_000
    assert "p4" in found.reasons


def test_mistakes():
    with pytest.raises(cs.ConsilienceError, match="no tensor is called like '!haed'"):
        cs.aggregate(sent(), tensors="!haed")
    with pytest.raises(cs.ConsilienceError, match="called like 'x'"):
        cs.aggregate(np.ones((3, 4)), tensors="x")
    with pytest.raises(cs.ConsilienceError, match="left to judge parties by"):
        cs.aggregate(sent(), tensors="b*", evidence="!*")
    with pytest.raises(cs.ConsilienceError, match="no floating-point coordinate"):
        cs.aggregate(sent(), tensors="bn.count")


@pytest.mark.parametrize("based", [True, False])
@pytest.mark.parametrize("suffix", [".safetensors", ".npz"])
def test_files(tmp_path: Path, based, suffix):
    models = {p: {"w": u["body"], "head": u["head"]} for p, u in sent(5).items()}
    paths = {}
    for party, model in models.items():
        paths[party] = tmp_path / f"{party}.safetensors"
        save_file(model, paths[party])
    base = tmp_path / "base.safetensors"
    save_file({"w": models["p0"]["w"], "head": np.arange(3.0), "step": np.array(5)}, base)
    out = tmp_path / f"out{suffix}"
    found = cs.aggregate_files(
        paths, out, center=base if based else None, tensors=["w"], evidence="w"
    )
    assert not found.rejected
    written = load_file(out) if suffix == ".safetensors" else dict(np.load(out))
    in_memory = cs.aggregate(models, tensors="w", center=None)
    np.testing.assert_array_equal(written.pop("w"), in_memory.value["w"])
    assert set(written) == ({"head", "step"} if based else set())
    if based:
        np.testing.assert_array_equal(written["head"], np.arange(3.0))
        assert written["step"] == 5
