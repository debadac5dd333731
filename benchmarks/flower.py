"""Flower's strategies and ours: what each makes of every attack, and what a round of it costs.

    python -m benchmarks.flower attacks   # docs/data/flower.json, half an hour on a busy machine
    python -m benchmarks.flower table     # the same as in docs/flower.md
    python -m benchmarks.flower cost      # docs/data/flower-cost.json; on an idle machine
    python -m benchmarks.flower clean     # docs/data/flower-clean.json
    python -m benchmarks.flower deployed  # docs/data/flower-deployed.json, about 5 minutes

The strategies are the real ones, and so are the messages; only the wires between are missing.
"""

from __future__ import annotations

import argparse
import copy
import json
import logging
import sys
import tracemalloc
from collections.abc import Callable, Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Bulyan, FedAvg, FedMedian, Krum
from flwr.supercore.task_identity import TaskIdentity

from consilience.integrations.flower import ConsilienceStrategy
from consilience.integrations.flower_nodes import Nodes
from consilience.lab import softmax as task
from consilience.lab.attacks import SUITE

DATA = Path(__file__).parent.parent / "docs" / "data"
HONEST, ADVERSARIES, ROUNDS, SEED = 10, 5, 10, 0


def krum(honest: int, adversaries: int) -> FedAvg:
    return Krum(fraction_evaluate=0.0, num_malicious_nodes=adversaries)


def bulyan(honest: int, adversaries: int) -> FedAvg:
    """Told as many as it agrees to work with: four times as many and three parties."""
    most = (honest + adversaries - 3) // 4
    return Bulyan(fraction_evaluate=0.0, num_malicious_nodes=min(adversaries or most, most))


STRATEGIES: dict[str, Callable[[int, int], FedAvg]] = {
    "consilience": lambda honest, adversaries: ConsilienceStrategy(fraction_evaluate=0.0),
    "FedAvg": lambda honest, adversaries: FedAvg(fraction_evaluate=0.0),
    "FedMedian": lambda honest, adversaries: FedMedian(fraction_evaluate=0.0),
    "Krum": krum,
    "Bulyan": bulyan,
}


class Federation(Grid):
    """The parties of the example, in this process. The last of them are adversaries."""

    def __init__(self, strategy: FedAvg, attack: str | None, honest: int, adversaries: int) -> None:
        self.strategy, self.attack = strategy, attack
        self.honest, self.adversaries = honest, adversaries if attack else 0

    def set_run(self, run: Any) -> None: ...
    @property
    def run(self) -> Any: ...
    def create_message(self, *args: Any, **more: Any) -> Any: ...
    def push_messages(self, messages: Any) -> Any: ...
    def pull_messages(self, message_ids: Any) -> Any: ...

    def get_node_ids(self) -> Iterable[int]:
        return range(self.honest + self.adversaries)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: Any = None) -> Any:
        messages = sorted(messages, key=lambda message: message.metadata.dst_node_id)
        if not messages:
            return []
        for message in messages:
            message.metadata.__dict__["_message_id"] = message.object_id
        sent = messages[0].content["arrays"]
        model = {name: array.numpy() for name, array in sent.items()}
        round = int(messages[0].content["config"]["server-round"])
        updates: list[Any] = [
            task.train(model, party, self.honest, round, SEED) for party in range(self.honest)
        ]
        if self.attack:
            ask = self._aggregator(messages, sent, round)
            updates += task.lies(
                self.attack, model, self.honest, self.adversaries, round, SEED, ask
            )
        return [reply(message, update) for message, update in zip(messages, updates, strict=True)]

    def _aggregator(self, messages: list[Message], sent: ArrayRecord, round: int) -> Any:
        """What an adversary may ask of the very strategy it is up against, which learns nothing."""
        model = task.flat({name: array.numpy() for name, array in sent.items()})

        def answer(rows: Any) -> Any:
            replies = [
                reply(m, task.unflat(model + r)) for m, r in zip(messages, rows, strict=True)
            ]
            found, _ = unlearning(self.strategy).aggregate_train(round, replies)
            new = {name: array.numpy() for name, array in (found or sent).items()}
            return task.flat(new) - model

        return answer


def unlearning(strategy: FedAvg) -> FedAvg:
    """A strategy that may be asked without a trace."""
    if not isinstance(strategy, ConsilienceStrategy):
        return strategy
    twin = copy.copy(strategy)
    twin.rounds, twin._nodes = copy.copy(strategy.rounds), Nodes()
    twin.rounds.rejections = {}
    return twin


def reply(message: Message, update: dict[str, Any]) -> Message:
    arrays = ArrayRecord({name: Array(np.asarray(values)) for name, values in update.items()})
    metrics = MetricRecord({"num-examples": 6000})
    answer = Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)
    answer.metadata.__dict__["_src_node_id"] = message.metadata.dst_node_id
    return answer


def run(
    name: str,
    attack: str | None,
    rounds: int = ROUNDS,
    honest: int = HONEST,
    adversaries: int = ADVERSARIES,
) -> dict[str, Any]:
    strategy = STRATEGIES[name](honest, adversaries if attack else 0)
    grid = Federation(strategy, attack, honest, adversaries)
    initial = ArrayRecord({name: Array(values) for name, values in task.initial().items()})
    try:
        with np.errstate(all="ignore"):
            result = strategy.start(grid, initial, rounds)
            arrays = result.arrays or initial
            model = {name: array.numpy() for name, array in arrays.items()}
            cell: dict[str, Any] = {"accuracy": round(task.accuracy(model), 4)}
    except Exception as error:  # the run has ended, which is the result
        return {"accuracy": None, "ended": type(error).__name__}
    if isinstance(strategy, ConsilienceStrategy):
        cell |= naming(result.train_metrics_clientapp, honest, adversaries)
    return cell


def naming(metrics: dict[int, MetricRecord], honest: int, adversaries: int) -> dict[str, Any]:
    """The round by which each party had been named, and the weight of the adversaries."""
    first: dict[int, int] = {}
    for number, record in metrics.items():
        for key in record:
            if key.startswith("named/"):
                first.setdefault(int(key.removeprefix("named/")), number)
    liars = range(honest, honest + adversaries)
    named = [first[party] for party in liars if party in first]
    last = metrics[max(metrics)]
    weight = sum(last.get(f"weight/{party}", 0.0) for party in liars)
    return {
        "adversaries_named": len(named),
        "all_named_by_round": max(named) if len(named) == adversaries else None,
        "honest_named": sorted(party for party in first if party < honest),
        "weight_of_adversaries": round(weight, 4),
    }


def attacks() -> None:
    table: dict[str, dict[str, Any]] = {}
    for attack in (None, *SUITE):
        cells = table[attack or "none"] = {name: run(name, attack) for name in STRATEGIES}
        print(attack, {name: cell["accuracy"] for name, cell in cells.items()}, flush=True)
    about = {
        "honest": HONEST,
        "adversaries": ADVERSARIES,
        "rounds": ROUNDS,
        "seed": SEED,
    }
    write("flower.json", {"about": about, "table": table})


def table() -> None:
    """Print the table of docs/flower.md."""
    found = json.loads((DATA / "flower.json").read_text())["table"]
    print("| attack |", " | ".join(STRATEGIES), "| all adversaries named by round |")
    print("|---|" + "---|" * (len(STRATEGIES) + 1))
    for attack, cells in found.items():
        ours = cells["consilience"]
        named = ours["all_named_by_round"] or f"{ours['adversaries_named']} of {ADVERSARIES} named"
        if ours["honest_named"]:
            named = f"{named}; honest named too: {len(ours['honest_named'])}"
        points = [
            "run ended" if cell["accuracy"] is None else f"{100 * cell['accuracy']:.1f}"
            for cell in cells.values()
        ]
        print(f"| {attack} |", " | ".join(points), f"| {'' if attack == 'none' else named} |")


def clean() -> None:
    """Name nobody where everybody is honest."""
    write("flower-clean.json", {"rounds": 20, **run("consilience", None, 20)})


def deployed(honest: int = 4, adversaries: int = 2, rounds: int = 3) -> None:
    """Run some cells again as the example, with a SuperLink and SuperNodes on this machine."""
    sys.path.append(str(Path(__file__).parent.parent / "tests"))
    from deployment import deployed as flower

    app = Path(__file__).parent.parent / "examples" / "flower"
    cells = []
    with TemporaryDirectory() as folder, flower(Path(folder), app) as deployment:
        deployment.superlink()
        for party in range(honest + adversaries):
            deployment.supernode(party)
        for attack, name in (
            ("alie-1.5", "consilience"),
            ("ipm-10", "consilience"),
            ("ipm-10", "FedAvg"),
            ("nan", "consilience"),
        ):
            config = {"attack": attack, "strategy": name.lower(), "rounds": rounds}
            started = deployment.run(
                **config, honest=honest, adversaries=adversaries, everybody=True
            )
            started.finished()
            said = deployment.text("log", started.run_id, "loopback", "--show")
            there = float(said.rsplit(f"accuracy after round {rounds}: ", 1)[1].split()[0])
            here = run(name, attack, rounds, honest, adversaries)["accuracy"]
            cells.append({**config, "deployed": there, "in_process": here})
            print(cells[-1], flush=True)
    write("flower-deployed.json", {"honest": honest, "adversaries": adversaries, "cells": cells})


class Asked(Grid):
    """Nodes that are only asked: what they answer is made beforehand."""

    def __init__(self, parties: int) -> None:
        self.parties = parties

    def set_run(self, run: Any) -> None: ...
    @property
    def run(self) -> Any: ...
    def create_message(self, *args: Any, **more: Any) -> Any: ...
    def push_messages(self, messages: Any) -> Any: ...
    def pull_messages(self, message_ids: Any) -> Any: ...
    def send_and_receive(self, messages: Any, *, timeout: Any = None) -> Any: ...

    def get_node_ids(self) -> Iterable[int]:
        return range(self.parties)


def cost(parties: int = 10, repeats: int = 5) -> None:
    """Time and memory over the replies, of ours and FedAvg's, alternating."""
    sent, contents = large_models(parties)
    found: dict[str, dict[str, list[float]]] = {
        name: {"seconds": [], "megabytes": []} for name in ("FedAvg", "consilience")
    }
    for repeat in range(repeats + 1):
        for name, kinds in found.items():
            strategy = STRATEGIES[name](parties, 0)
            asked = list(strategy.configure_train(1, sent, ConfigRecord(), Asked(parties)))
            replies = []
            for k, (message, content) in enumerate(zip(asked, contents, strict=True)):
                message.metadata.__dict__["_message_id"] = str(k)
                replies.append(Message(content, reply_to=message))
                replies[-1].metadata.__dict__["_src_node_id"] = message.metadata.dst_node_id
            if repeat == 0:  # apart from the timing, which it would slow
                tracemalloc.start()
                strategy.aggregate_train(1, replies)
                kinds["megabytes"].append(tracemalloc.get_traced_memory()[1] / 2**20)
                tracemalloc.stop()
                continue
            started = perf_counter()
            strategy.aggregate_train(1, replies)
            kinds["seconds"].append(perf_counter() - started)
    best = {name: {kind: round(min(v), 3) for kind, v in f.items()} for name, f in found.items()}
    ratio = {k: round(best["consilience"][k] / v, 2) for k, v in best["FedAvg"].items()}
    write("flower-cost.json", {"parties": parties, "best": best, "ratio_to_FedAvg": ratio})


def large_models(parties: int) -> tuple[ArrayRecord, list[RecordDict]]:
    """A model of 25 million float32, in layers as of a residual network, and what parties send."""
    rng = np.random.default_rng(0)
    shapes = [(1000, 2048), *[(512, 512, 3, 3)] * 4, *[(1024, 1024)] * 13]
    print(sum(np.prod(shape) for shape in shapes) / 1e6, "million coordinates")
    truth = [rng.standard_normal(shape, np.float32) for shape in shapes]
    contents = []
    for _ in range(parties):
        arrays = ArrayRecord(
            {
                str(k): Array(values + 0.1 * rng.standard_normal(values.shape, np.float32))
                for k, values in enumerate(truth)
            }
        )
        metrics = MetricRecord({"num-examples": 6000})
        contents.append(RecordDict({"arrays": arrays, "metrics": metrics}))
    return ArrayRecord({str(k): Array(values) for k, values in enumerate(truth)}), contents


def write(name: str, found: Any) -> None:
    (DATA / name).write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found)[:2000])


if __name__ == "__main__":
    logging.getLogger("flwr").setLevel(logging.CRITICAL)
    logging.getLogger("consilience").setLevel(logging.CRITICAL)
    TaskIdentity.run_id = TaskIdentity.task_id = TaskIdentity.node_id = 1
    commands = {"attacks": attacks, "table": table, "cost": cost, "clean": clean}
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=[*commands, "deployed"])
    {**commands, "deployed": deployed}[parser.parse_args().what]()
