"""Flower in one process: its own records and messages, carried by a grid that has no wires."""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from consilience.integrations.flower import ConsilienceStrategy

SHAPES = {"weight": (30, 20), "bias": (20,)}
TRUTH = {name: np.full(shape, 3.0, np.float32) for name, shape in SHAPES.items()}


def in_a_run(put: Callable[[Any, str, Any], None] = setattr) -> None:
    """Say who this is: Flower makes messages only for somebody."""
    for name in ("_run_id", "_task_id", "_node_id"):
        put(TaskIdentity, name, 1)


def arrays(tensors: dict[str, np.ndarray]) -> ArrayRecord:
    return ArrayRecord({name: Array(np.asarray(values)) for name, values in tensors.items()})


def initial() -> ArrayRecord:
    return arrays({name: np.zeros(shape, np.float32) for name, shape in SHAPES.items()})


def noisy(seed: int, scale: float = 0.1, about: float = 3.0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {
        name: (about + scale * rng.standard_normal(shape)).astype(np.float32)
        for name, shape in SHAPES.items()
    }


def content(tensors: dict[str, np.ndarray], count: Any = 100, **metrics: Any) -> RecordDict:
    said = {} if count is None else {"num-examples": count}
    return RecordDict({"arrays": arrays(tensors), "metrics": MetricRecord({**said, **metrics})})


class Party:
    """Answers with a content, an error, or not at all; `source` may lie about who it is."""

    def __init__(self, answer: Callable[[Message], Any], source: int | None = None) -> None:
        self.answer, self.source = answer, source

    def replies(self, message: Message, node: int) -> list[Message]:
        answer = self.answer(message)
        found = []
        for one in answer if isinstance(answer, list) else [answer]:
            if one is None:
                continue
            reply = Message(one, reply_to=message)
            reply.metadata.__dict__["_src_node_id"] = node if self.source is None else self.source
            found.append(reply)
        return found


def honest(seed: int, **metrics: Any) -> Party:
    return Party(
        lambda message: content(
            noisy(seed + 1000 * int(message.content["config"]["server-round"])), **metrics
        )
    )


def sends(*args: Any, **metrics: Any) -> Party:
    return Party(lambda message: content(*args, **metrics))


class LocalGrid(Grid):
    """Carries messages between a strategy and parties in the same process."""

    def __init__(self, parties: dict[int, Party]) -> None:
        self.parties = parties
        self.waiting: dict[str, list[Message]] = {}

    def set_run(self, run: Any) -> None: ...
    @property
    def run(self) -> Any: ...
    def create_message(self, *args: Any, **more: Any) -> Any: ...

    def get_node_ids(self) -> Iterable[int]:
        return list(self.parties)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        sent = []
        for message in messages:
            node = message.metadata.dst_node_id
            message.metadata.__dict__["_message_id"] = message.object_id
            sent.append(message.object_id)
            self.waiting[message.object_id] = self.parties[node].replies(message, node)
        return sent

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        return [reply for sent in message_ids for reply in self.waiting.pop(sent, [])]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        return self.pull_messages(self.push_messages(messages))


def federation(*bad: Party, good: int = 4) -> LocalGrid:
    return LocalGrid(dict(enumerate([*(honest(seed) for seed in range(good)), *bad], 11)))


def strategy(**settings: Any) -> ConsilienceStrategy:
    return ConsilienceStrategy(**{"fraction_evaluate": 0.0, **settings})


def distance(record: ArrayRecord) -> float:
    return max(float(np.abs(record[name].numpy() - TRUTH[name]).max()) for name in SHAPES)
