"""A party: honest if its number is below that of the honest, else hostile."""

from __future__ import annotations

import os

from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from consilience.lab import softmax as task

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train as asked, or do harm."""
    config = context.run_config
    party, honest, seed = (
        int(context.node_config["partition-id"]),
        int(config["honest"]),
        int(config["seed"]),
    )
    round = int(message.content["config"]["server-round"])
    model = {name: array.numpy() for name, array in message.content["arrays"].items()}
    samples: float = len(task.shard(party, honest, seed)[1])
    if party < honest:
        update = task.train(model, party, honest, round, seed)
    elif config["attack"] == "crash":
        os._exit(1)
    else:
        attack, adversaries = str(config["attack"]), int(config["adversaries"])
        sent = task.lies(attack, model, honest, adversaries, round, seed)
        update = sent[(party - honest) % adversaries]
        samples = float(config["claim"]) or samples
    reply = RecordDict(
        {
            "arrays": ArrayRecord({name: Array(values) for name, values in update.items()}),
            "metrics": MetricRecord({"num-examples": samples, "partition-id": party}),
        }
    )
    return Message(reply, reply_to=message)
