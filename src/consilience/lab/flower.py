"""Attacks as a mod of Flower's clients, to test a federation of your own.

from consilience.lab.flower import AttackMod

hostile = AttackMod("ipm-10", when=lambda context: context.node_config["partition-id"] == 5)
app = ClientApp(mods=[hostile])
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from consilience.arrays import Array as Values
from consilience.lab.attacks.lone import LoneAttack

try:
    from flwr.app import Array, ArrayRecord, Context, Message
except ImportError as missing:
    raise ImportError(
        "this is a mod for Flower, which is not installed: pip install 'consilience[flower]'"
    ) from missing


class AttackMod:
    """Trains honestly, and sends something else.

    Put it first among the mods, so that no other mod changes what it sends.

    Args:
        attack: the name of an attack (docs/flower.md has the list).
        when: tells from its Context whether a node attacks; None: every node does.
        differences: the clients send differences or gradients, not parameters.
        seed: makes random numbers repeatable.
        settings: of the attack, such as ``tau=3.0`` for "ipm".
    """

    def __init__(
        self,
        attack: str,
        when: Callable[[Context], bool] | None = None,
        differences: bool = False,
        seed: int | None = None,
        **settings: Any,
    ) -> None:
        self.when, self.differences = when, differences
        self._attack = LoneAttack(attack, seed, **settings)

    def __call__(
        self, message: Message, context: Context, call_next: Callable[[Message, Context], Message]
    ) -> Message:
        """Answer a message; only training is answered dishonestly."""
        training = message.metadata.message_type.split(".")[0] == "train"
        if not training or not (self.when is None or self.when(context)):
            return call_next(message, context)
        # Read now, as the client may change it.
        start = None if self.differences else _only(message, "the message")[1]
        reply = call_next(message, context)
        if reply.has_error():
            return reply
        key, update = _only(reply, "the reply")
        sent = self._attack(update, start, _round(message))
        reply.content[key] = ArrayRecord({name: Array(values) for name, values in sent.items()})
        return reply


def _only(message: Message, what: str) -> tuple[str, dict[str, Values]]:
    """The one array record of a message, and its key."""
    records = message.content.array_records
    if len(records) != 1:
        raise ValueError(f"{what} has {len(records)} array records, expected one to attack")
    ((key, record),) = records.items()
    return key, {name: array.numpy().copy() for name, array in record.items()}


def _round(message: Message) -> int:
    found = [
        r["server-round"] for r in message.content.config_records.values() if "server-round" in r
    ]
    return found[0] if found and isinstance(found[0], int) else 0
