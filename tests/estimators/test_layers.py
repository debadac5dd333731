"""In which tensors a party's difference sits: said of those who stand out, and true."""

import re

import numpy as np
import pytest
from safetensors.numpy import save_file

import consilience as cs
from consilience.record import Record

SIZES = {"conv1.weight": 800, "conv2.weight": 20_000, "head.weight": 500, "head.bias": 10}


def sent(parties=8, seed=0, noise=0.1, times=1):
    random = np.random.default_rng(seed)
    truth = {name: random.standard_normal(size * times) for name, size in SIZES.items()}
    return {
        f"p{j}": {n: (v + noise * random.standard_normal(len(v))) for n, v in truth.items()}
        for j in range(parties)
    }


def noisier(updates, party, name, factor, seed=9):
    tensor = updates[party][name]
    more = 0.1 * np.sqrt(factor**2 - 1) * np.random.default_rng(seed).standard_normal(len(tensor))
    updates[party][name] = tensor + more


def told(reason):
    """Return what a reason says of each tensor, and of the rest."""
    (part,) = [part for part in reason.split("; ") if "elsewhere" in part]
    *there, rest = re.findall(r"([\d.e+]+)× (?:in )?([\w.]+)", part)
    assert rest[1] == "elsewhere"
    return {name: float(times) for times, name in there}, float(rest[0])


@pytest.mark.parametrize("method", ["pairwise", "mean", "coordinate-median", "ivar-vb"])
def test_one_tensor(method):
    updates = sent()
    noisier(updates, "p3", "head.weight", 40)
    found = cs.aggregate(updates, method)
    assert list(found.reasons) == ["p3"]
    there, elsewhere = told(found.reasons["p3"])
    assert there == {"head.weight": pytest.approx(40, rel=0.15)}
    assert elsewhere == pytest.approx(1, rel=0.25)


def test_a_small_tensor_of_a_large_model_of_which_spans_are_seen():
    updates = sent(times=80)
    noisier(updates, "p3", "head.weight", 40)
    found = cs.aggregate(updates)
    there, elsewhere = told(found.reasons["p3"])
    assert there == {"head.weight": pytest.approx(40, rel=0.15)}
    assert elsewhere == pytest.approx(1, rel=0.25)


def test_several_tensors_the_noisiest_first():
    updates = sent()
    noisier(updates, "p3", "conv1.weight", 50)
    noisier(updates, "p3", "head.weight", 70)
    there, _ = told(cs.aggregate(updates).reasons["p3"])
    assert list(there) == ["head.weight", "conv1.weight"]
    many = {p: {f"t{k}": np.array(u["conv1.weight"]) for k in range(9)} for p, u in sent().items()}
    for k in range(5):
        noisier(many, "p2", f"t{k}", 40, seed=k)
    reason = cs.aggregate(many).reasons["p2"]
    assert reason.count(" in t") == 3
    assert re.search(r" and 2 more, [\d.]+× elsewhere", reason)


def test_noise_everywhere_is_nowhere_in_particular():
    updates = sent()
    for name in SIZES:
        noisier(updates, "p3", name, 20)
    reasons = cs.aggregate(updates).reasons
    assert list(reasons) == ["p3"]
    assert "elsewhere" not in reasons["p3"]
    alone = {party: {"w": update["conv2.weight"]} for party, update in updates.items()}
    assert "elsewhere" not in cs.aggregate(alone).reasons["p3"]


def test_nobody_is_named_who_was_not_and_chance_points_nowhere():
    """A tensor of one coordinate would."""
    for seed in range(20):
        updates = sent(seed=seed)
        for update in updates.values():
            update["scale"] = update["head.bias"][:1]
        assert not cs.aggregate(updates).reasons
        for k, name in enumerate([*SIZES, "scale"]):
            noisier(updates, "p3", name, 4, seed=100 * seed + k)
        assert "elsewhere" not in cs.aggregate(updates).reasons["p3"], seed


@pytest.mark.parametrize("parties", [1, 2, 3])
def test_few_parties(parties):
    updates = sent(parties)
    noisier(updates, "p0", "head.weight", 40)
    assert set(cs.aggregate(updates).reasons) <= {"p0"}


def test_too_many_tensors_or_parties_are_not_told_apart():
    random = np.random.default_rng(0)
    updates = {
        f"p{j}": {f"t{k}": 0.1 * random.standard_normal(4) for k in range(3000)} for j in range(10)
    }
    updates["p0"]["t7"] += 1e4
    reasons = cs.aggregate(updates).reasons
    assert "p0" in reasons
    assert "elsewhere" not in reasons["p0"]


def test_what_is_no_evidence_is_not_told():
    updates = sent()
    noisier(updates, "p3", "head.weight", 4000)
    noisier(updates, "p3", "conv1.weight", 40)
    there, _ = told(cs.aggregate(updates, evidence="!head*").reasons["p3"])
    assert list(there) == ["conv1.weight"]


def test_files_and_the_record_and_a_name_that_is_no_text(tmp_path):
    updates = sent()
    noisier(updates, "p3", "head.weight", 40)
    for party, update in updates.items():
        update["\x1b[31m" + "x" * 999] = update.pop("head.weight")
        save_file(update, tmp_path / f"{party}.safetensors")
    found = cs.aggregate_files(sorted(tmp_path.glob("p*")), None)
    reason = found.reasons["p3.safetensors"]
    assert "elsewhere" in reason
    assert "\x1b" not in reason
    assert len(reason) < 300
    Record(tmp_path / "run.jsonl").append(found)
    (line,) = Record.read(tmp_path / "run.jsonl")
    assert line.reasons["p3.safetensors"] == reason
