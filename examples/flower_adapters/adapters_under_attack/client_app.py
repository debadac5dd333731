"""A party: honest if its number is below that of the honest, else hostile."""

from __future__ import annotations

from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from adapters_under_attack import task

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train as asked, or do harm."""
    config, party = context.run_config, int(context.node_config["partition-id"])
    round = int(message.content["config"]["server-round"])
    sent = {name: array.numpy() for name, array in message.content["arrays"].items()}
    steps, base = int(config["local-steps"]), int(config["base-steps"])
    rank = int(str(config["ranks"]).split(",")[party])
    update, samples = task.taught(sent, party, rank, round, steps, base)
    if party >= int(config["honest"]):
        update = task.lies(update, party, round)
    reply = RecordDict(
        {
            "arrays": ArrayRecord({name: Array(values) for name, values in update.items()}),
            "metrics": MetricRecord({"num-examples": samples, "partition-id": party}),
        }
    )
    return Message(reply, reply_to=message)
