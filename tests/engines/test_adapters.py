"""Adapters are judged and summed as the updates that their factors make."""

import logging

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import consilience as cs
from consilience.engines.adapters import Adapters
from consilience.passes import factors
from consilience.updates.adapters import parse_adapters
from lora import SHAPES, adapter, flat, formed, in_gauge, name, update

ALPHA = 16


def off(found, expected) -> float:
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))


def nearby(seed: int, noise: float = 0.1):
    """Return an update that a party near the truth might send."""
    truth, error = update(0), update(100 + seed)
    return {module: truth[module] + noise * error[module] for module in truth}


def party(seed: int, rank: int = 8, noise: float = 0.1):
    return adapter(nearby(seed, noise), rank, ALPHA / rank, seed)


def everything(seed: int, rank: int, alphas):
    """Return an adapter with all that may be in one."""
    random = np.random.default_rng(seed)

    def numbers(*shape):
        return random.standard_normal(shape).astype(np.float32)

    return {
        name("layers.0.q_proj", "A.weight"): numbers(rank, 16),
        name("layers.0.q_proj", "B.weight"): numbers(24, rank),
        name("layers.0.q_proj", "B.bias"): numbers(24),
        name("layers.10.q_proj", "A.weight"): numbers(2 * rank, 16),
        name("layers.10.q_proj", "B.weight"): numbers(24, 2 * rank),
        name("embed", "embedding_A"): numbers(rank, 50),
        name("embed", "embedding_B"): numbers(8, rank),
        name("conv", "A.weight"): numbers(rank, 3, 5, 5),
        name("conv", "B.weight"): numbers(7, rank, 1, 1),
        "base_model.model.head.weight": numbers(3, 8),
        "base_model.model.steps": np.array(seed % 2),
    }


PATTERN = {"10.q_proj": 5.0, r"^conv": 7.0}
ALPHAS = {"10.q_proj": 5.0, "conv": 7.0, "": 16.0}


@pytest.mark.parametrize("rslora", [False, True])
def test_evidence_and_sum_are_those_of_the_updates_formed_in_full(rslora: bool):
    sent = {f"p{j}": everything(j, rank, ALPHAS) for j, rank in enumerate([4, 8, 16, 4, 8])}
    lora = cs.LoRA(16, rslora, PATTERN, rank="stack")
    found = cs.aggregate(sent, adapters=lora)
    full = {p: formed(x, ALPHAS, rslora) for p, x in sent.items()}
    for x in full.values():
        del x["base_model.model.steps"]
    whole = {p: flat(x) for p, x in full.items()}
    (block,) = found.beliefs.evidence.blocks
    expected = cs.Evidence.of(whole, exact=True).blocks[0].distances
    np.testing.assert_allclose(block.distances, expected, rtol=1e-6)
    summed = sum(weight * whole[p] for p, weight in found.weights.items())
    value = formed(found.value, ALPHAS, rslora)
    assert value.pop("base_model.model.steps") in (0, 1)
    assert off(flat(value), summed) < 1e-6
    assert list(found.value) == list(sent["p0"])
    assert found.value[name("layers.0.q_proj", "A.weight")].shape == (40, 16)
    assert found.value[name("conv", "B.weight")].shape == (7, 40, 1, 1)


@pytest.mark.parametrize("rank", [8, "stack"])
def test_parties_may_have_factors_of_other_precisions(rank):
    """Single precision has no such numbers as those of the second party, half none of its own."""
    sent = {f"p{j}": party(j) for j in range(5)}
    for key, factor in sent["p1"].items():
        sent["p1"][key] = factor.astype(float) * (1e45 if "lora_B" in key else 1e-45)
    sent["p2"] = {key: factor.astype(np.float16) for key, factor in sent["p2"].items()}
    found = cs.aggregate(sent, "mean", adapters=cs.LoRA(ALPHA, rank=rank))
    assert found.parties == tuple(sent)
    full = {p: formed(x, ALPHA) for p, x in sent.items()}
    (block,) = found.beliefs.evidence.blocks
    expected = cs.Evidence.of({p: flat(x) for p, x in full.items()}, exact=True).blocks[0].distances
    np.testing.assert_allclose(block.distances, expected, rtol=1e-6)
    if rank == "stack":  # in double precision, as the second party's
        wide = {p: {k: v.astype(float) for k, v in x.items()} for p, x in sent.items()}
        value = cs.aggregate(wide, "mean", adapters=cs.LoRA(ALPHA, rank=rank)).value
        mean = np.mean([flat(x) for x in full.values()], axis=0)
        assert off(flat(formed(value, ALPHA)), mean) < 1e-6


def test_what_is_cut_is_the_least_that_can_be_and_is_told():
    sent = {f"p{j}": party(j, rank) for j, rank in enumerate([4, 8, 8, 8, 8])}
    found = cs.aggregate(sent, "mean", adapters=cs.LoRA(ALPHA, rank=5))
    mean = {
        key: np.mean([formed(x, ALPHA)[key] for x in sent.values()], axis=0)
        for key in formed(sent["p0"], ALPHA)
    }
    lost = total = 0.0
    for key, full in mean.items():
        u, values, v = np.linalg.svd(full)
        best = (u[:, :5] * values[:5]) @ v[:5]
        assert off(formed(found.value, ALPHA)[key], best) < 1e-5
        lost, total = lost + np.square(values[5:]).sum(), total + np.square(values).sum()
    assert found.diagnostics["cut"] == pytest.approx(lost / total, rel=1e-5)
    assert found.diagnostics["cut"] > 1e-4
    stacked = cs.aggregate(sent, "mean", adapters=cs.LoRA(ALPHA, rank="stack"))
    assert stacked.diagnostics["cut"] == 0


def test_the_rank_is_the_largest_of_those_who_count():
    sent = {f"p{j}": party(j, rank) for j, rank in enumerate([4, 8, 6, 8, 8])}
    sent["eve"] = adapter({m: -30 * x for m, x in nearby(9).items()}, 12, ALPHA / 12)
    found = cs.aggregate(sent, adapters=cs.LoRA(ALPHA))
    assert found.value[name("layers.0.q_proj", "A.weight")].shape == (8, 16)
    assert found.weights["eve"] < 0.01
    assert "eve" in found.reasons


def test_one_adapter_is_itself_bit_for_bit():
    mine = party(0)
    found = cs.aggregate({"ann": mine}, adapters=cs.LoRA(ALPHA)).value
    assert all(np.array_equal(found[key], mine[key]) for key in mine)


turns = st.integers(0, 2**32 - 1).map(
    lambda seed: np.random.default_rng(seed).standard_normal((8, 8)) + 4 * np.eye(8)
)


@settings(max_examples=25, deadline=None)
@given(turn=turns, by=st.sampled_from([1e-4, 1.0, 1e4]))
def test_the_gauge_says_nothing(turn, by):
    sent = {f"p{j}": party(j) for j in range(5)}
    turned = {**sent, "p2": in_gauge(sent["p2"], by * turn)}
    lora = cs.LoRA(ALPHA, rank=8)
    one, other = (cs.aggregate(x, adapters=lora) for x in (sent, turned))
    distances = [c.beliefs.evidence.blocks[0].distances for c in (one, other)]
    np.testing.assert_allclose(*distances, rtol=1e-4)
    values = [flat(formed(c.value, ALPHA)) for c in (one, other)]
    assert off(*values) < 1e-4


def test_the_same_adapter_in_other_gauges_is_one_voice_and_merges_to_itself():
    random = np.random.default_rng(0)
    mine = party(0, noise=0.5)
    gauges = [random.standard_normal((8, 8)) for _ in range(3)]
    copies = {f"copy{j}": in_gauge(mine, turn) for j, turn in enumerate(gauges)}
    others = {f"p{j}": party(j, noise=0.5) for j in range(1, 7)}
    found = cs.aggregate({**copies, **others}, adapters=cs.LoRA(ALPHA))
    assert found.groups == (tuple(copies),)
    assert sum(found.weights[c] for c in copies) < 1.5 * max(found.weights[p] for p in others)
    two = {"ann": mine, "bob": copies["copy0"]}
    value = cs.aggregate(two, adapters=cs.LoRA(ALPHA)).value
    truth = flat(formed(mine, ALPHA))
    assert off(flat(formed(value, ALPHA)), truth) < 1e-5
    naive = {key: (mine[key] + copies["copy0"][key]) / 2 for key in mine}
    assert off(flat(formed(naive, ALPHA)), truth) > 0.5


def test_parties_may_mean_their_factors_differently():
    sent = {"ann": party(0, 8), "bob": party(0, 8), "cyd": party(0, 4)}
    sent["bob"] = {k: v * (0.25 if "lora_B" in k else 1) for k, v in sent["bob"].items()}
    lora = cs.LoRA(ALPHA, parties={"bob": cs.LoRA(4 * ALPHA)})
    value = cs.aggregate({"ann": sent["ann"], "bob": sent["bob"]}, "mean", adapters=lora).value
    expected = flat(formed(sent["ann"], ALPHA))
    assert off(flat(formed(value, ALPHA)), expected) < 1e-5


def test_torch_comes_back_as_torch_and_in_its_dtype():
    sent = {
        f"p{j}": {k: torch.from_numpy(v).bfloat16() for k, v in party(j).items()} for j in range(5)
    }
    found = cs.aggregate(sent, adapters=cs.LoRA(ALPHA)).value
    assert {type(v) for v in found.values()} == {torch.Tensor}
    assert {v.dtype for v in found.values()} == {torch.bfloat16}
    plain = {k: v.float().numpy() for k, v in found.items()}
    truth = flat({m: nearby(0, 0)[m] for m in SHAPES})
    value = formed(plain, ALPHA)
    assert off(flat({m: value[name(m, "B.weight")] for m in SHAPES}), truth) < 0.1


def damaged(kind: str):
    bad = party(7)
    left, right = name("layers.1.up", "B.weight"), name("layers.1.up", "A.weight")
    if kind == "nan":
        bad[right][2, 3] = np.nan
    elif kind == "alone":
        del bad[right]
    elif kind == "ranks":
        bad[right] = bad[right][:5]
    elif kind == "shape":
        bad[right] = np.ones((8, 17), np.float32)
    elif kind == "dora":
        bad["base_model.model.layers.1.up.lora_magnitude_vector"] = np.ones(40, np.float32)
    elif kind == "loha":
        bad = {"base_model.model.layers.1.up.hada_w1_a": np.ones((40, 8), np.float32)}
    elif kind == "cancel":
        large = 1e12 * np.ones((40, 1))
        bad[left] = np.hstack([bad[left], large, -large]).astype(np.float32)
        bad[right] = np.vstack([bad[right], large[:16, 0], large[:16, 0]]).astype(np.float32)
    elif kind == "huge":
        bad = {k: v.astype(float) * 1e40 for k, v in bad.items()}
    elif kind == "integers":
        bad[right] = bad[right].astype(int)
    elif kind == "plain":
        bad = {"w": np.ones(3)}
    elif kind == "nested":
        bad = {"a": bad}
    return bad


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("nan", "lora_A.weight' holds nan at position 35"),
        ("alone", "has lora_B and no lora_A"),
        ("ranks", "lora_B has shape (40, 8) and lora_A (5, 16)"),
        ("shape", "has shape (40, 17), expected (40, 16)"),
        ("dora", "is of DoRA, which is not linear in its factors"),
        ("loha", "is of LoHa"),
        ("cancel", "its factors cancel each other"),
        ("huge", "its factors make numbers above 1e+50"),
        ("integers", "lora_A is int64 of shape (8, 16), expected floats"),
        ("plain", "no LoRA factors in it"),
        ("nested", "expected the state dict of an adapter"),
    ],
)
def test_what_cannot_be_used_is_rejected_by_name_and_the_round_goes_on(kind, reason, caplog):
    good = {f"p{j}": party(j) for j in range(4)}
    with caplog.at_level(logging.WARNING, "consilience"):
        found = cs.aggregate({**good, "eve": damaged(kind)}, adapters=cs.LoRA(ALPHA))
    assert reason in found.rejected["eve"]
    assert found.parties == tuple(good)
    assert len([line for line in caplog.messages if "eve rejected" in line]) == 1
    alone = cs.aggregate(good, adapters=cs.LoRA(ALPHA))
    assert off(flat(formed(found.value, ALPHA)), flat(formed(alone.value, ALPHA))) < 1e-6


def test_a_nan_in_a_plain_tensor_costs_only_its_sender():
    sent = {f"p{j}": {**party(j), "base_model.model.head": np.ones(9)} for j in range(4)}
    sent["p3"]["base_model.model.head"][4] = np.inf
    found = cs.aggregate(sent, adapters=cs.LoRA(ALPHA))
    assert found.rejected == {"p3": "tensor 'base_model.model.head' holds inf at position 4"}
    assert np.isfinite(found.value["base_model.model.head"]).all()


@pytest.mark.parametrize("scale", [1e-25, 1e18])
def test_a_plain_tensor_whose_squares_single_precision_cannot_hold(scale):
    sent = {f"p{j}": everything(j, 4, ALPHAS) for j in range(5)}
    for tensors in sent.values():
        del tensors[name("layers.0.q_proj", "B.bias")]  # it is summed in double in any case
        for key, tensor in tensors.items():
            if "lora_A" not in key and "embedding_A" not in key and "steps" not in key:
                tensor *= np.float32(scale)
    lora = cs.LoRA(16, False, PATTERN)
    engine = Adapters(parse_adapters(sent, None, lora), lora)
    (block,) = engine.observe(np.random.default_rng(0), exact=False).blocks
    ring = np.arange(5)
    apart, _ = engine.combine(np.append(np.full(5, 0.2), 0), ring, None)
    np.testing.assert_allclose(apart, block.distances[ring, np.roll(ring, 1)], rtol=1e-5)


def test_a_plain_tensor_takes_part_in_the_evidence():
    """Eve's factors are as good as any; her head is not."""
    random = np.random.default_rng(0)
    heads = random.standard_normal((6, 5000)) * 0.1
    heads[5] += 10
    sent = {f"p{j}": {**party(j), "base_model.model.head": h} for j, h in enumerate(heads)}
    found = cs.aggregate(sent, adapters=cs.LoRA(ALPHA))
    assert found.weights["p5"] < 0.01
    assert "p5" in found.reasons
    clean = cs.aggregate({p: party(j) for j, p in enumerate(sent)}, adapters=cs.LoRA(ALPHA))
    assert clean.reasons == {}


@pytest.mark.parametrize("method", ["coordinate-median", cs.TrimmedMean(0.2)])
def test_coordinate_wise_rules_are_refused(method):
    with pytest.raises(cs.ConsilienceError, match="choose another method"):
        cs.aggregate({f"p{j}": party(j) for j in range(5)}, method, adapters=cs.LoRA(ALPHA))


def test_witnesses_are_not_asked_for_and_cannot_be():
    sent = {f"p{j}": party(j) for j in range(9)}
    assert cs.aggregate(sent, adapters=cs.LoRA(ALPHA)).uncorroborated == {}
    with pytest.raises(cs.ConsilienceError, match="corroborate=False"):
        cs.aggregate(sent, cs.Pairwise(corroborate=True), adapters=cs.LoRA(ALPHA))


def test_the_centre_says_the_rank_and_counts_where_a_method_lets_it():
    sent = {f"p{j}": party(j, rank) for j, rank in enumerate([2, 3, 2])}
    centre = party(50, 11)
    method = cs.IVAR("vb", prior_variance=1e-4, estimate="posterior-mean")
    found = cs.aggregate(sent, method, center=centre, adapters=cs.LoRA(ALPHA))
    assert found.center_weight > 0.5
    weights = [*found.weights.values(), found.center_weight]
    whole = [flat(formed(x, ALPHA)) for x in (*sent.values(), centre)]
    expected = sum(w * x for w, x in zip(weights, whole, strict=True))
    assert off(flat(formed(found.value, ALPHA)), expected) < 0.2  # 18 ranks in 11
    assert {k: v.shape for k, v in found.value.items()} == {k: v.shape for k, v in centre.items()}


def test_of_a_larger_rank_no_row_is_dead():
    """Training moves B by A and A by B: where both are zero, it moves neither."""
    sent = {f"p{j}": party(j, 2) for j in range(3)}
    still = {k: 0 * v if "lora_B" in k else v for k, v in sent["p0"].items()}
    for parties in (sent, dict.fromkeys("abc", still)):
        value = cs.aggregate(parties, center=party(9, 12), adapters=cs.LoRA(ALPHA)).value
        for module in SHAPES:
            right = value[name(module, "A.weight")]
            assert (np.linalg.norm(right, axis=1) > 0).all()


def test_a_memory_follows_parties_whose_ranks_change():
    memory = cs.Memory(seed=0)
    random = np.random.default_rng(0)
    for n in range(4):
        sent = {}
        for j in range(6):
            rank = int(random.choice([6, 8]))
            sent[f"p{j}"] = adapter(nearby(10 * n + j), rank, ALPHA / rank)
        sent["eve"] = adapter({m: -x for m, x in nearby(n).items()}, 8, ALPHA / 8)
        found = cs.aggregate(sent, memory=memory, adapters=cs.LoRA(ALPHA))
    assert memory.rounds == 4
    assert memory.trails is not None
    assert found.weights["eve"] < 0.02
    with pytest.raises(ValueError, match="pattern"):
        cs.LoRA(alpha_pattern={"(a+)+$": 1})


@pytest.mark.parametrize("rank", [0, -1, 2.5, True, "all"])
def test_a_rank_is_a_rank(rank):
    with pytest.raises(cs.ConsilienceError, match="a rank is a whole number"):
        cs.LoRA(rank=rank)


@pytest.mark.parametrize("method", ["pairwise", "krum"])  # all parties count, and one alone
def test_what_is_kept_of_the_evidence_does_not_show(method, monkeypatch):
    sent = {f"p{j}": party(j, rank) for j, rank in enumerate([4, 8, 2, 8, 16, 3])}
    lora = cs.LoRA(ALPHA, rank=2)
    with_it = cs.aggregate(sent, method, adapters=lora)
    monkeypatch.setattr("consilience.engines.adapters._KEPT", 0)
    without = cs.aggregate(sent, method, adapters=lora)
    values = [flat(formed(c.value, ALPHA)) for c in (with_it, without)]
    assert off(*values) < 1e-6
    assert with_it.diagnostics["cut"] == pytest.approx(without.diagnostics["cut"], rel=1e-9)


def test_it_is_told_in_which_module_a_party_stands_out():
    sent = {f"p{j}": {**party(j), "base_model.model.head": np.ones(9)} for j in range(6)}
    sent["p5"][name("layers.1.up", "B.weight")] *= -3
    found = cs.aggregate(sent, adapters=cs.LoRA(ALPHA))
    assert "× in base_model.model.layers.1.up," in found.reasons["p5"]


def test_inner_products_do_not_depend_on_how_parties_are_grouped(monkeypatch):
    sent = {f"p{j}": party(j, rank) for j, rank in enumerate([4, 8, 2, 8, 16, 3])}
    whole = cs.aggregate(sent, "mean", adapters=cs.LoRA(ALPHA))
    monkeypatch.setattr(factors, "_TOGETHER", 10)
    parts = cs.aggregate(sent, "mean", adapters=cs.LoRA(ALPHA))
    distances = [c.beliefs.evidence.blocks[0].distances for c in (whole, parts)]
    np.testing.assert_allclose(*distances, rtol=1e-12)
