"""The server: how much memory does its process take before, and at most?"""

from __future__ import annotations

import json
import resource
from collections.abc import Iterable
from pathlib import Path
from time import perf_counter

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from consilience.integrations.flower import ConsilienceStrategy
from consilience.integrations.flower_spool import OneByOne

app = ServerApp()
TENSOR = 1 << 22  # numbers: 16 MB


class TakingTurns(OneByOne):
    """A grid of more parties than there are SuperNodes. A SuperNode runs the clients that share it
    one after another, so that not all of them are in this machine's memory together."""

    def __init__(self, grid: Grid, parties: int, nodes: int) -> None:
        super().__init__(grid)
        self._parties, self._nodes = parties, nodes
        self._asked: dict[str, int] = {}

    def get_node_ids(self) -> Iterable[int]:
        """Return an id for each party, once the nodes are there."""
        there = len(list(super().get_node_ids())) >= self._nodes
        return range(1, self._parties + 1) if there else []

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Send each message to the node that runs its party."""
        nodes, names = sorted(super().get_node_ids()), []
        for message in messages:
            party = message.metadata.dst_node_id
            message.metadata.dst_node_id = nodes[party % self._nodes]
            names += super().push_messages([message])
            message.metadata.dst_node_id = party
            self._asked[names[-1]] = party
        return names

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the replies, each in the name of its party."""
        for reply in super().pull_messages(message_ids):
            reply.metadata.__dict__["_src_node_id"] = self._asked[
                reply.metadata.reply_to_message_id
            ]
            yield reply


def peak() -> float:
    """Return the most memory that this process ever had, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def random_model(count: int) -> ArrayRecord:
    """Return a model of so many numbers."""
    rng = np.random.default_rng(0)
    found = ArrayRecord()
    for start in range(0, count, TENSOR):
        found[str(start)] = Array(rng.standard_normal(min(TENSOR, count - start), np.float32))
    return found


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train, and write down what it took."""
    config = context.run_config
    folder = Path(str(config["folder"]))
    parties, count = int(config["parties"]), int(config["megabytes"]) * (1 << 20) // 4
    common = {
        "fraction_evaluate": 0.0,
        "min_train_nodes": parties,
        "min_available_nodes": parties,
    }
    kind = str(config["strategy"])
    strategy = FedAvg(**common)
    if kind != "fedavg":
        spool = folder / "spool" if kind == "spool" else None
        strategy = ConsilienceStrategy(**common, spool=spool, record=folder / f"{kind}.jsonl")
    nodes = int(config["nodes"])
    grid = TakingTurns(grid, parties, nodes) if nodes < parties else grid
    base, started = peak(), perf_counter()
    strategy.start(grid, random_model(count), num_rounds=int(config["rounds"]), timeout=3600)
    found = {"base": base, "peak": peak(), "seconds": perf_counter() - started}
    (folder / f"{kind}.json").write_text(json.dumps(found))
