"""Adapters in a federation: real PEFT, Flower's own messages; and FLARE's own models.

The commands of examples/flower_adapters/README.md are not run as they stand, since every client
would load torch and PEFT anew: the same parties and server run here in one process.
"""

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, MetricRecord, RecordDict
from nvflare.app_common.abstract.fl_model import FLModel

import consilience as cs
from consilience.integrations.nvflare import ConsilienceAggregator
from consilience.integrations.rounds import Rounds
from flower_local import LocalGrid, Party, content, in_a_run, strategy
from lora import adapter, flat, formed, update

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


def rank_of(arrays: Any) -> int:
    ranks = {a.numpy().shape[0] for name, a in arrays.items() if "lora_A" in name}
    assert len(ranks) == 1
    return ranks.pop()


def test_own_ranks_are_of_adapters():
    with pytest.raises(cs.ConsilienceError, match="own_ranks is for adapters"):
        strategy(adapters=None, own_ranks=True)


def test_flower_sends_the_adapter_at_the_ranks_of_each_party(monkeypatch: pytest.MonkeyPatch):
    in_a_run(monkeypatch.setattr)
    ranks = {11: 8, 12: 4, 13: 2, 14: 12, 15: 4}
    got: dict[int, list[Any]] = {node: [] for node in ranks}
    tried: dict[int, list[int]] = {node: [] for node in ranks}

    def of(node: int) -> Party:
        def answer(message: Any) -> RecordDict:
            if message.metadata.message_type == "evaluate":
                tried[node].append(rank_of(message.content["arrays"]))
                return RecordDict({"metrics": MetricRecord({"num-examples": 1, "loss": 1.0})})
            got[node].append(message.content["arrays"])
            assert message.content["config"]["server-round"] == len(got[node])
            return content(party(node + 100 * len(got[node]), ranks[node]))

        return Party(answer)

    broken = Party(lambda m: content({name: np.ones((2, 2)) for name in GLOBAL}))
    start = ArrayRecord({name: Array(values) for name, values in GLOBAL.items()})
    # All mean their factors by one alpha, but for 15.
    lora = cs.LoRA(ALPHA, parties={"15": cs.LoRA(3 * ALPHA)})
    chosen = strategy(adapters=lora, own_ranks=True, fraction_evaluate=1.0)
    grid = LocalGrid({**{node: of(node) for node in ranks}, 16: broken})
    final = chosen.start(grid, start, num_rounds=2).arrays
    assert set(chosen.rounds.rejections) == {"16"}
    assert rank_of(final) == 8
    assert {node: rank_of(arrays[0]) for node, arrays in got.items()} == dict.fromkeys(ranks, 8)
    assert {node: rank_of(arrays[1]) for node, arrays in got.items()} == ranks
    assert tried == {node: [rank, rank] for node, rank in ranks.items()}
    sent = {node: {n: a.numpy() for n, a in arrays[1].items()} for node, arrays in got.items()}
    everything = formed(sent[11], ALPHA)
    assert off(flat(formed(sent[14], ALPHA)), flat(everything)) < 1e-6
    for node, alpha in ((12, ALPHA), (13, ALPHA), (15, 3 * ALPHA)):
        rank, found = ranks[node], formed(sent[node], alpha)
        for module, full in everything.items():
            u, values, v = np.linalg.svd(full)
            assert off(found[module], (u[:, :rank] * values[:rank]) @ v[:rank]) < 1e-5


SMALL = {"rounds": 2, "parties": 6, "honest": 4, "local-steps": 5, "base-steps": 60}
SMALL |= {"ranks": "8,4,8,4,8,8", "strategy": "consilience", "method": "pairwise", "record": ""}


class Late(LocalGrid):
    """Of its nodes one is there a moment later than the others."""

    asked = 0

    def get_node_ids(self) -> list[int]:
        self.asked += 1
        return list(self.parties)[self.asked == 1 :]


@pytest.mark.integration
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["consilience", "fedavg"])
@pytest.mark.usefixtures("transformers_import")
def test_the_example_asks_a_party_that_comes_a_moment_late(kind, monkeypatch):
    in_a_run(monkeypatch.setattr)
    monkeypatch.syspath_prepend(EXAMPLE)
    from adapters_under_attack import server_app

    grid = Late({11 + j: Party(lambda message: None) for j in range(6)})
    chosen = server_app.strategy({**SMALL, "strategy": kind})
    asked = chosen.configure_train(1, ArrayRecord(), ConfigRecord(), grid)
    assert {message.metadata.dst_node_id for message in asked} == set(grid.parties)


@pytest.mark.integration
@pytest.mark.filterwarnings("ignore")  # what PEFT and Transformers say to each other
@pytest.mark.usefixtures("transformers_import")
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
