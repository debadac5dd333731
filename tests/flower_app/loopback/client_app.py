"""A party that moves the model half way to the truth, or misbehaves as it was told to."""

import os
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

TRUTH = 3.0


def behaviour_of(context: Context) -> str:
    party = int(context.node_config["partition-id"])
    names = str(context.run_config["behaviour"]).split(",")
    return names[party] if party < len(names) else ""


def attacks(message: Message, context: Context, call_next: Any) -> Message:
    """Those who behave as "mod-ATTACK" attack by the mod."""
    behaviour = behaviour_of(context)
    if not behaviour.startswith("mod-"):
        return call_next(message, context)
    from consilience.lab.flower import AttackMod  # here: each message starts a process

    return AttackMod(behaviour.removeprefix("mod-"))(message, context, call_next)


app = ClientApp(mods=[attacks])


@app.train()
def train(message: Message, context: Context) -> Message:
    party = int(context.node_config["partition-id"])
    behaviour = behaviour_of(context)
    round = int(message.content["config"]["server-round"])
    model = {name: array.numpy() for name, array in message.content["arrays"].items()}
    rng = np.random.default_rng([party, round])
    update = {
        name: (0.5 * (values + TRUTH) + 0.1 * rng.standard_normal(values.shape)).astype("f4")
        for name, values in model.items()
    }
    samples: float = 100
    if behaviour == "poison":
        update = {name: -10 * values for name, values in update.items()}
        samples = 1e12
    elif behaviour == "few":
        samples = 10
    elif behaviour == "few-scaled":
        update = {name: -1000 * values for name, values in update.items()}
        samples = 10
    elif behaviour == "nan":
        update["weight"][3, 3] = np.nan
    elif behaviour == "misshapen":
        update["weight"] = update["weight"][:1]
    elif behaviour == "raise":
        raise RuntimeError("no data today")
    elif behaviour == "exit":
        os._exit(3)
    elif behaviour == "nothing":
        return Message(RecordDict(), reply_to=message)
    elif behaviour == "uncounted":
        samples = -1
    elif behaviour == "impostor":
        party = 0
    metrics = MetricRecord({"num-examples": samples, "partition-id": party})
    arrays = ArrayRecord({name: Array(values) for name, values in update.items()})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)
