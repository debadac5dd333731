"""A party that adds noise to the model, one tensor after another to save memory."""

from __future__ import annotations

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Send the model with noise."""
    rng = np.random.default_rng()
    model, update = message.content["arrays"], ArrayRecord()
    for name in list(model):
        values = model.pop(name).numpy()
        values += np.float32(0.1) * rng.standard_normal(values.shape, np.float32)
        update[name] = Array(values)
    metrics = MetricRecord({"num-examples": 100})
    return Message(RecordDict({"arrays": update, "metrics": metrics}), reply_to=message)
