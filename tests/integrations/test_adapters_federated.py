"""Adapters in a federation: real PEFT, Flower's own messages; and FLARE's own models."""

import logging
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Context, RecordDict
from nvflare.app_common.abstract.fl_model import FLModel

import consilience as cs
from consilience.integrations.nvflare import ConsilienceAggregator
from consilience.integrations.rounds import Rounds
from flower_local import LocalGrid, Party, content, in_a_run, strategy
from lora import adapter, flat, formed, update

try:
    import torchvision  # noqa: F401
except Exception:  # one made for another torch, as a peer brings along, would stop Transformers
    sys.modules["torchvision"] = None  # type: ignore[assignment]

EXAMPLE = Path(__file__).parents[2] / "examples" / "flower_adapters"
ALPHA = 16


def party(seed: int, rank: int, by: float = 1.0):
    truth, error = update(0), update(100 + seed)
    near = {module: by * truth[module] + 0.1 * error[module] for module in truth}
    return adapter(near, rank, ALPHA / rank, seed)


def off(found: Any, expected: Any) -> float:
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))


SENT = {f"site-{j}": party(j, rank) for j, rank in enumerate([8, 4, 8, 6, 8])}
HOSTILE = {"site-8": party(8, 8, -20.0), "site-9": party(9, 2, -20.0)}
GLOBAL = party(50, 8)
MEAN = np.mean([flat(formed(x, ALPHA)) for x in SENT.values()], axis=0)


@pytest.mark.parametrize("adapters", ["auto", "lora", cs.LoRA(ALPHA)])
def test_rounds_take_adapters_of_any_ranks_and_keep_the_model_s(adapters, tmp_path, caplog):
    rounds = Rounds(adapters=adapters, checkpoint=tmp_path, record=tmp_path / "run.jsonl")
    with caplog.at_level(logging.INFO, "consilience"):
        ended = rounds.close(1, {**SENT, **HOSTILE}, GLOBAL)
    assert set(ended.reasons) == set(HOSTILE)
    assert ended.rejected == {}
    assert {k: v.shape for k, v in ended.model.items()} == {k: v.shape for k, v in GLOBAL.items()}
    assert off(flat(formed(ended.model, ALPHA)), MEAN) < 0.02
    assert ("LoRA adapter" in caplog.text) == (adapters == "auto")
    again = Rounds(adapters=adapters, checkpoint=tmp_path)
    assert again.resume(GLOBAL).round == 1
    assert again.memory.rounds == 1


def test_factors_are_tensors_like_others_for_whoever_wants_that():
    ended = Rounds(adapters=None).close(1, SENT, GLOBAL)
    assert "has shape" in ended.rejected["site-1"]
    with pytest.raises(cs.ConsilienceError, match="adapters are 'lora'"):
        Rounds(adapters="loha")
    with pytest.raises(cs.ConsilienceError, match="sent whole"):
        Rounds(adapters="lora", step=1.0)


def test_flare_takes_adapters_of_any_ranks():
    aggregator = ConsilienceAggregator(adapters="lora")
    for name, params in {**SENT, **HOSTILE}.items():
        aggregator.accept_model(
            FLModel(params_type="FULL", params=params, meta={"client_name": name})
        )
    found = aggregator.aggregate_model().params
    assert off(flat(formed(found, ALPHA)), MEAN) < 0.02


def test_flower_takes_adapters_of_any_ranks(monkeypatch: pytest.MonkeyPatch):
    in_a_run(monkeypatch.setattr)
    everybody = [*SENT.values(), *HOSTILE.values()]
    grid = LocalGrid({j: Party(lambda m, x=x: content(x)) for j, x in enumerate(everybody, 11)})
    start = ArrayRecord({name: Array(values) for name, values in GLOBAL.items()})
    chosen = strategy(adapters=cs.LoRA(ALPHA))
    arrays = chosen.start(grid, start, num_rounds=2).arrays
    assert set(chosen.reasons) == {"16", "17"}
    assert off(flat(formed({n: a.numpy() for n, a in arrays.items()}, ALPHA)), MEAN) < 0.02


SMALL = {"rounds": 2, "parties": 6, "honest": 4, "local-steps": 10, "base-steps": 60}
SMALL |= {"ranks": "8,4,8,4,8,8", "strategy": "consilience", "method": "pairwise", "record": ""}


@pytest.mark.integration
@pytest.mark.filterwarnings("ignore")  # what PEFT and Transformers say to each other
def test_the_example_learns_among_liars_and_fedavg_does_not(monkeypatch: pytest.MonkeyPatch):
    in_a_run(monkeypatch.setattr)
    monkeypatch.syspath_prepend(EXAMPLE)
    from adapters_under_attack import client_app, server_app

    def run(**settings: Any) -> list[float]:
        config = {**SMALL, **settings}

        def party(number: int) -> Party:
            context = Context(1, number, {"partition-id": number}, RecordDict(), config)
            return Party(lambda message: client_app.train(message, context).content)

        grid = LocalGrid({11 + j: party(j) for j in range(config["parties"])})
        return server_app.run(grid, config)

    before, *_, clean = run(parties=4, method="mean")
    among_liars = run()[-1]
    averaged = run(strategy="fedavg", ranks="8,8,8,8,8,8")[-1]
    assert clean < 0.97 * before
    assert abs(among_liars / clean - 1) < 0.02
    assert before - averaged < 0.75 * (before - clean)
