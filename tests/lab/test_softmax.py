"""The light parties of the examples, on pictures made for the test."""

import importlib
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from consilience.lab import softmax
from consilience.lab.attacks import MALFORMED, SUITE

EXAMPLE = Path(__file__).parents[2] / "examples" / "flower"


@pytest.fixture(autouse=True)
def fresh(tiny_mnist: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("_run_id", "_task_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)
    softmax.digits.cache_clear()
    softmax.shard.cache_clear()
    yield
    softmax.digits.cache_clear()
    softmax.shard.cache_clear()


def test_training_learns_and_repeats():
    model = softmax.initial()
    assert softmax.accuracy(model) < 0.2
    trained = softmax.train(model, 0, 3, 1, seed=0)
    again = softmax.train(model, 0, 3, 1, seed=0)
    assert softmax.accuracy(trained) > 0.9
    for name in model:
        np.testing.assert_array_equal(trained[name], again[name])
        assert not model[name].any()
    assert (softmax.train(model, 1, 3, 1, seed=0)["bias"] != trained["bias"]).any()
    assert (softmax.train(model, 0, 3, 2, seed=0)["bias"] != trained["bias"]).any()


def test_a_stack_of_models_learns_as_each_of_them_alone():
    models = [softmax.train(softmax.initial(), 0, 3, round, seed=0) for round in range(3)]
    stack = softmax.unflat(np.stack([softmax.flat(model) for model in models]))
    inputs, labels = softmax.shard(1, 3, 0)
    found = softmax.learn(stack, inputs, labels, np.random.default_rng(5))
    guesses = softmax.guesses(found, inputs)  # (n, 3)
    for j, model in enumerate(models):
        alone = softmax.learn(model, inputs, labels, np.random.default_rng(5))
        np.testing.assert_allclose(softmax.flat(found)[j], softmax.flat(alone), atol=1e-6)
        np.testing.assert_array_equal(guesses[:, j], softmax.guesses(alone, inputs))


@pytest.mark.parametrize("attack", SUITE)
def test_every_attack_has_something_to_send(attack: str):
    model = softmax.train(softmax.initial(), 0, 3, 1, seed=0)
    sent = softmax.lies(attack, model, 3, 2, 1, seed=0)
    assert len(sent) == 2
    for update in sent:
        fits = {name: values.shape for name, values in update.items()} == {
            name: values.shape for name, values in model.items()
        }
        usable = fits and all(np.isfinite(values).all() for values in update.values())
        assert usable == (attack not in MALFORMED)


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The server and the client of the example, and its configuration."""
    monkeypatch.syspath_prepend(EXAMPLE)
    modules = [importlib.import_module(f"mnist_under_attack.{n}_app") for n in ("server", "client")]
    described = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())
    yield *modules, described["tool"]["flwr"]["app"]["config"]
    for name in [name for name in sys.modules if name.startswith("mnist_under_attack")]:
        del sys.modules[name]


@pytest.mark.parametrize("name", ["consilience", "fedavg", "fedmedian", "krum", "bulyan"])
def test_the_example_of_flower(example: Any, name: str):
    server, client, config = example
    config = {**config, "strategy": name, "adversaries": 2 if name == "consilience" else 0}
    arrays = ArrayRecord({k: Array(v) for k, v in softmax.initial().items()})
    content = RecordDict({"arrays": arrays, "config": ConfigRecord({"server-round": 1})})
    replies = []
    for party in range(config["honest"] + config["adversaries"]):
        message = Message(content, party, "train")
        context = Context(1, party, {"partition-id": party}, RecordDict(), config)
        replies.append(client.app(message, context))
        replies[-1].metadata.__dict__["_src_node_id"] = party
    found, _ = server.strategy(config).aggregate_train(1, replies)
    assert server.evaluate(1, found)["accuracy"] > 0.9
