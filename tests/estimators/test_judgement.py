"""Who stands out: the same whatever the method, and nobody by chance."""

import pickle
from dataclasses import replace

import numpy as np
import pytest

import consilience as cs
from consilience.consensus import Consensus
from consilience.estimators.reasons import Lasts, explain


def honest(count: int, size: int, seed: int = 0, noise: float = 1.0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    truth = rng.standard_normal(size)
    return {f"h{j}": truth + noise * rng.standard_normal(size) for j in range(count)}


def flipped(count: int = 5) -> dict[str, np.ndarray]:
    sent = honest(count, 1000, noise=0.1)
    return {**sent, "eve": -sent["h0"] + 0.1 * np.random.default_rng(9).standard_normal(1000)}


@pytest.mark.parametrize("method", cs.methods())
def test_a_flipped_sign_is_named_by_every_method(method):
    found = cs.aggregate(flipped(), method)
    assert set(found.reasons) == {"eve"}
    assert "× the typical" in found.reasons["eve"]


@pytest.mark.parametrize("method", cs.methods())
def test_every_method_says_what_pairwise_says(method):
    sent = flipped()
    sent |= {f"c{j}": sent["h1"] for j in range(2)}
    sent["loud"] = 40 * np.random.default_rng(8).standard_normal(1000)
    expected, found = cs.aggregate(sent), cs.aggregate(sent, method)
    assert found.groups == expected.groups == (("c0", "c1", "h1"),)
    assert set(found.reasons) == {"c0", "c1", "h1", "eve", "loud"}
    said = expected.reasons
    if method != "pairwise":  # which alone clips
        said = {party: reason.removesuffix(": clipped") for party, reason in said.items()}
    assert found.reasons == said


@pytest.mark.parametrize("method", cs.methods())
def test_chance_accuses_nobody(method):
    for seed in range(20):
        found = cs.aggregate(honest(10, 10_000, seed), method)
        assert found.reasons == {}, seed
        assert found.groups == ()


def test_a_memory_judges_whatever_the_method():
    """What is remembered against a party is said of it by a method that does not remember."""
    memory = cs.Memory(decay=1.0)
    for seed in range(3):
        sent = honest(6, 500, seed)
        sent["h5"] = sent["h4"] + 1e-3 * np.random.default_rng(seed).standard_normal(500)
        found = cs.aggregate(sent, "mean", memory=memory)
    assert found.groups == (("h4", "h5"),)
    assert set(cs.aggregate(honest(6, 500, 7), "mean", memory=memory).reasons) == {"h4", "h5"}


def test_what_lasts_is_told_of_a_party_if_all_explanations_agree():
    one = Lasts(np.array([2.0, 3.0, 0.0]), np.array([True, False, True]))
    two = Lasts(np.array([4.0, 0.0, 0.0]), np.array([True, True, False]))
    usual = np.ones(3)
    assert explain("abc", [], usual, usual, lasting=one.both(two)) == {
        "a": "lasting error 2× the typical; lasting error that the others do not explain"
    }
    assert explain("abc", [], usual, usual) == {}


def test_an_estimator_that_tells_is_believed():
    class Mine(cs.Mean):
        def infer(self, evidence, given=None):
            return replace(super().infer(evidence, given), reasons={"eve": "because"})

    assert cs.aggregate(flipped(), Mine()).reasons == {"eve": "because"}


@pytest.mark.parametrize("method", cs.methods())
def test_two_cannot_be_judged_and_it_says_so(method):
    two = cs.aggregate(honest(2, 100), method)
    assert two.reasons == {}
    assert two.caveats == ("only 2 usable parties: neither can be judged by the other",)
    rejected = {"bad": np.full(100, np.nan)}
    assert cs.aggregate(honest(2, 100) | rejected, method).caveats == two.caveats
    one = cs.aggregate(honest(1, 100), method)
    assert one.caveats == ("only 1 usable party: nobody to judge it by",)


def test_two_can_be_judged_by_what_is_remembered():
    memory = cs.Memory(decay=1.0)
    cs.aggregate(flipped(), memory=memory)
    sent = flipped()
    later = cs.aggregate({p: sent[p] for p in ("h0", "eve")}, memory=memory)
    assert later.caveats == ()
    assert set(later.reasons) == {"eve"}


def test_the_weight_of_the_centre_is_told():
    drowned = honest(5, 1000, noise=30.0)  # in noise: the prior knows better
    found = cs.aggregate(drowned, "ivar-vb")
    assert found.center_weight == pytest.approx(1 - sum(found.weights.values()), abs=1e-12)
    assert found.center_weight > 0.5
    percent = f"{100 * found.center_weight:.0f}"
    assert found.caveats == (
        f"the centre holds {percent} % of the weight: the value is mostly the centre's",
    )
    for method in ("pairwise", "mean", "coordinate-median"):
        assert cs.aggregate(drowned, method).center_weight == 0
        assert cs.aggregate(drowned, method).caveats == ()


def test_a_judgement_survives_copies_and_is_made_once(monkeypatch):
    found = cs.aggregate(flipped(), "mean")
    calls = []
    infer = cs.Pairwise.infer
    monkeypatch.setattr(cs.Pairwise, "infer", lambda *a: calls.append(1) or infer(*a))
    small: Consensus = replace(found, value=None)
    assert small.reasons == found.reasons == pickle.loads(pickle.dumps(found)).reasons
    assert small.groups == ()
    assert calls == [1]
