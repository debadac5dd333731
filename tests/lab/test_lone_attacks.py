"""Attacks by one client that sees only its own update, with Flower's mods and FLARE's filters."""

import logging
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, Message, MetricRecord, RecordDict
from nvflare.apis.dxo import DXO, DataKind, from_shareable
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContextManager

from consilience.lab.attacks import SUITE, attacks
from consilience.lab.attacks.lone import LoneAttack, lone_attacks
from consilience.lab.flower import AttackMod
from consilience.lab.nvflare import AttackFilter
from flower_local import LocalGrid, Party, arrays, distance, honest, in_a_run, initial, strategy

START = {"w": np.full((3, 4), 2.0, np.float32), "n": np.array(7), "b": np.ones(5, np.float16)}
TRAINED = {"w": START["w"] + np.float32(0.5), "n": np.array(9), "b": START["b"] * 2}


@pytest.fixture(autouse=True)
def a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    in_a_run(monkeypatch.setattr)


def test_what_one_client_can_do():
    assert lone_attacks() == [
        "gaussian",
        "huge",
        "inf",
        "ipm",
        "missing_tensor",
        "nan",
        "sign_flip",
        "sybil",
        "wrong_shape",
        "zero",
    ]


@pytest.mark.parametrize("name", sorted(set(attacks()) - set(lone_attacks())))
def test_what_it_cannot_is_refused_by_name(name: str):
    with pytest.raises(ValueError, match=rf"^{name} (needs the updates|changes what).*: gaussian,"):
        LoneAttack(name)


def test_labels_and_settings_and_unknown_names():
    with pytest.raises(ValueError, match=r"alie-1\.5 needs the updates of other parties"):
        LoneAttack("alie-1.5")
    with pytest.raises(ValueError, match="no attack is called 'ipm-3'"):
        LoneAttack("ipm-3")
    for attack in (LoneAttack("ipm-10"), LoneAttack("ipm", tau=10.0)):
        np.testing.assert_array_equal(attack(TRAINED, START)["w"], START["w"] - 5)


@pytest.mark.parametrize("differences", [False, True])
@pytest.mark.parametrize("name", lone_attacks())
def test_none_of_them_is_honest(name: str, differences: bool):
    sent = LoneAttack(name, seed=3)(TRAINED, None if differences else START)
    if name == "missing_tensor":
        assert sent == {}
        return
    assert sent["n"] == 9
    assert [values.dtype for values in sent.values()] == [v.dtype for v in TRAINED.values()]
    if name == "wrong_shape":
        assert sent["w"].shape == (18,)
        return
    for tensor in ("w", "b"):
        assert sent[tensor].shape == TRAINED[tensor].shape
        assert not np.any(sent[tensor] == TRAINED[tensor])
        assert np.isfinite(sent[tensor]).all() == (name not in ("nan", "inf"))


def test_zero_is_of_the_difference():
    np.testing.assert_array_equal(LoneAttack("zero")(TRAINED, START)["w"], START["w"])


def test_clients_of_one_seed_collude_and_change_their_minds_every_round():
    first, second, third = (LoneAttack("gaussian", seed) for seed in (3, 3, 4))
    np.testing.assert_array_equal(first(TRAINED, START, 1)["w"], second(TRAINED, START, 1)["w"])
    assert np.any(first(TRAINED, START, 1)["w"] != first(TRAINED, START, 2)["w"])
    assert np.any(first(TRAINED, START, 1)["w"] != third(TRAINED, START, 1)["w"])
    alone = LoneAttack("gaussian")
    assert np.any(alone(TRAINED, START, 1)["w"] != alone(TRAINED, START, 1)["w"])


def test_errors_and_warnings(caplog: pytest.LogCaptureFixture):
    attack = LoneAttack("ipm-10")
    with pytest.raises(
        ValueError, match=r"'w' of the update, of shape \(3, 4\), is not in the mod"
    ):
        attack(TRAINED, {"b": START["b"]})
    with pytest.raises(ValueError, match="'w' is a list, expected a numpy array"):
        attack({"w": [1.0]}, START)
    with pytest.raises(ValueError, match="no tensors of floating-point numbers"):
        attack({"n": np.array(3)}, START)
    assert "this client attacks its federation: ipm-10" in caplog.text


# Flower


def hostile(mod: AttackMod, party: Party, node: int) -> Party:
    """A party whose messages go through a mod, as those of a ClientApp do."""

    def answer(message: Message) -> RecordDict:
        def inner(asked: Message, _: Any) -> Message:
            return Message(party.answer(asked), reply_to=asked)

        found: RecordDict = mod(message, Context(1, node, {}, RecordDict(), {}), inner).content
        return found

    return Party(answer)


@pytest.mark.parametrize("attack", sorted(k for k, v in SUITE.items() if v[0] in lone_attacks()))
def test_flowers_clients_attack(attack: str):
    mod = AttackMod(attack, when=lambda context: context.node_id == 17, seed=0)
    nodes = {node: hostile(mod, honest(node), node) for node in range(11, 18)}
    chosen = strategy()
    result = chosen.start(LocalGrid(nodes), initial(), 1)
    assert distance(result.arrays) < 1.0
    assert list(chosen.reasons) == ["17"]


def test_only_training_is_attacked():
    mod = AttackMod("nan")
    asked = Message(RecordDict({"arrays": arrays(TRAINED)}), dst_node_id=1, message_type="evaluate")
    said = RecordDict({"metrics": MetricRecord({"loss": 1.0}), "arrays": arrays(TRAINED)})
    context = Context(1, 1, {}, RecordDict(), {})
    reply = mod(asked, context, lambda message, _: Message(said, reply_to=message))
    assert reply.content["metrics"]["loss"] == 1.0
    np.testing.assert_array_equal(reply.content["arrays"]["w"].numpy(), TRAINED["w"])


# NVIDIA FLARE


@pytest.mark.parametrize("kind", [DataKind.WEIGHTS, DataKind.WEIGHT_DIFF])
@pytest.mark.parametrize("site", ["site-5", "site-1"])
def test_flares_clients_attack(site: str, kind: str, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.WARNING)
    filter = AttackFilter("ipm-10", clients=["site-5"])
    context = FLContextManager(identity_name=site).new_context()
    model = {name: values.copy() for name, values in START.items()}
    context.set_prop(FLContextKey.TASK_DATA, DXO(DataKind.WEIGHTS, model).to_shareable())
    filter.handle_event(EventType.BEFORE_TASK_EXECUTION, context)
    model["w"] += 100  # trained in place
    sent = from_shareable(filter.process(DXO(kind, dict(TRAINED)).to_shareable(), context))
    expected = {
        ("site-1", DataKind.WEIGHTS): 2.5,
        ("site-1", DataKind.WEIGHT_DIFF): 2.5,
        ("site-5", DataKind.WEIGHTS): 2 - 10 * 0.5,
        ("site-5", DataKind.WEIGHT_DIFF): -10 * 2.5,
    }
    np.testing.assert_array_equal(sent.data["w"], np.full((3, 4), expected[site, kind], "f4"))
    assert ("this client attacks" in caplog.text) == (site == "site-5")
