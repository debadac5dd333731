"""Flower replies for `ConsilienceStrategy`: sound parties, and hostile ones whose bytes, records,
metrics or answers are not what they should be. Whatever comes, the round ends, and with the right
model."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.supercore.task_identity import TaskIdentity
from numpy.random import Generator

from consilience.integrations.flower import ConsilienceStrategy
from fuzz.damage import NASTY, damaged
from fuzz.oracle import check_reasons, expect

for _name in ("_run_id", "_task_id", "_node_id"):  # Flower makes messages only for somebody
    setattr(TaskIdentity, _name, 1)

SHAPES = {"weight": (5, 4), "bias": (4,)}
_NUMPY = "numpy.ndarray"
Tensors = dict[str, Any]
Reply = tuple[RecordDict | Error | None, bool | None, Tensors | None]  # usable? with what in it?


def case(random: Generator, folder: Path) -> None:
    """One or two rounds of a strategy, with hostile replies among sound ones."""
    sound, hostile = int(random.integers(2, 6)), int(random.integers(1, 3))
    options: dict[str, Any] = {"fraction_evaluate": 0.0}
    if random.random() < 0.3:
        options["party_key"] = "name"
    if random.random() < 0.1:
        options |= {"record": folder / "run.jsonl", "checkpoint": folder / "run"}
    strategy = ConsilienceStrategy(min_train_nodes=2, **options)
    model = {name: np.zeros(shape, np.float32) for name, shape in SHAPES.items()}
    for number in range(1, int(random.integers(2, 4))):
        replies = {node: _sound(random, node) for node in range(sound)}
        for node in range(sound, sound + hostile):
            replies[node] = _pick(random, _HOSTILE)(random, node)
        model = _round(random, strategy, number, model, replies)


def _pick(random: Generator, things: Any) -> Any:
    return things[int(random.integers(len(things)))]


def _numbers(random: Generator) -> Tensors:
    return {
        name: (3 + 0.1 * random.standard_normal(shape)).astype(np.float32)
        for name, shape in SHAPES.items()
    }


def _content(tensors: Any, count: Any = 10, **more: Any) -> RecordDict:
    arrays = ArrayRecord({n: a if isinstance(a, Array) else Array(a) for n, a in tensors.items()})
    return RecordDict({"arrays": arrays, "metrics": MetricRecord({"num-examples": count, **more})})


def _sound(random: Generator, node: int) -> Reply:
    tensors = _numbers(random)
    content = _content(tensors, int(random.integers(1, 1000)), loss=float(random.random()))
    content["config"] = ConfigRecord({"name": f"party-{node}"})
    return content, True, tensors


def _poisoned(random: Generator, node: int) -> Reply:
    factor = np.float32(_pick(random, [-1.0, 0.0, 1e3, 1e30, 1e-30]))
    tensors = {name: factor * values for name, values in _numbers(random).items()}
    return _content(tensors), True, tensors


def _spoilt(random: Generator, node: int) -> Reply:
    tensors = _numbers(random)
    tensors[_pick(random, list(SHAPES))].reshape(-1)[0] = _pick(random, [np.nan, np.inf])
    return _content(tensors), False, None


def _bytes(random: Generator, node: int) -> Reply:
    """One array's bytes are damaged; numpy's own reader has the second opinion."""
    tensors = _numbers(random)
    name = _pick(random, list(SHAPES))
    array = Array(tensors[name])
    data = damaged(random, array.data, Array(tensors["bias"]).data)
    if random.random() < 0.3:
        text = _pick(random, [f"({2**61},)", "(-1,)", "(5,4)", "('a',)", "(" * 99])
        head = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {text}}}".encode()
        data = b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head + array.data[128:]
    sent: Any = {**tensors, name: Array(array.dtype, array.shape, _NUMPY, data)}
    try:
        found = np.load(io.BytesIO(data), allow_pickle=False)
    except Exception:  # numpy cannot read it, or not all of it
        return _content(sent), None if data.startswith(b"\x93NUMPY") else False, None
    floats = found.dtype.kind == "f" and found.shape == SHAPES[name]
    with np.errstate(all="ignore"):
        usable = floats and bool((np.abs(found.astype(np.float64)) <= 1e50).all())
    if not usable:
        return _content(sent), False, None
    return _content(sent), None, {**tensors, name: found}


def _lying(random: Generator, node: int) -> Reply:
    """What an array says of itself beside its bytes, which count, is a lie."""
    tensors = _numbers(random)
    sent: Any = dict(tensors)
    stype = _pick(random, [_NUMPY, "torch.tensor", _pick(random, NASTY), ""])
    data = Array(tensors["bias"]).data
    sent["bias"] = Array(_pick(random, ["float32", "O", "\x1b[2J"]), (99,), stype, data)
    return _content(sent), stype == _NUMPY, tensors if stype == _NUMPY else None


def _renamed(random: Generator, node: int) -> Reply:
    tensors = _numbers(random)
    way = int(random.integers(5))
    if way == 0:
        tensors.pop("bias")
    elif way == 1:
        tensors[_pick(random, [n for n in NASTY if n != "\ud800"])] = np.zeros(3, np.float32)
    elif way == 2:
        tensors["bias"] = np.zeros((2, 2), np.float32)
    elif way == 3:
        tensors["bias"] = np.zeros(4, _pick(random, [np.int64, np.complex64, bool]))
    else:
        tensors = {}
    return _content(tensors), False, None


def _counted(random: Generator, node: int) -> Reply:
    bad = _pick(random, [float("nan"), float("inf"), 0, -1, [1, 2], [], -0.0, [float("nan")]])
    return _content(_numbers(random), bad), False, None


def _records(random: Generator, node: int) -> Reply:
    way = int(random.integers(4))
    content = _content(_numbers(random))
    if way == 0:
        content["more"] = ArrayRecord({"a": Array(np.zeros(3))})
    elif way == 1:
        content = RecordDict()
    elif way == 2:
        content = RecordDict({"metrics": MetricRecord({"num-examples": 3})})
    else:
        content = RecordDict({"arrays": content["arrays"]})
    return content, False, None


def _error(random: Generator, node: int) -> Reply:
    return (
        Error(int(random.integers(100)), _pick(random, [*NASTY, "x" * 100_000, None])),
        False,
        None,
    )


def _nothing(random: Generator, node: int) -> Reply:
    return None, False, None


def _talking(random: Generator, node: int) -> Reply:
    """A sound model, with metrics that are not, and somebody else's name."""
    tensors = _numbers(random)
    loss = _pick(random, [float("nan"), 1e308, [1.0] * 1000, [], -1, 2**63 - 1])
    content = _content(tensors, loss=loss)
    said = _pick(random, ["party-0", "node-0", "x" * 1000, *NASTY])
    content["config"] = ConfigRecord({"name": said})
    content["m2"] = MetricRecord({_pick(random, ["num-examples", "loss"]): 5})
    return content, True, tensors


_HOSTILE: list[Callable[[Generator, int], Reply]] = [
    *(_poisoned, _spoilt, _bytes, _bytes, _bytes, _lying, _renamed, _counted),
    *(_records, _error, _nothing, _talking),
]


def _round(
    random: Generator,
    strategy: ConsilienceStrategy,
    number: int,
    model: Tensors,
    replies: dict[int, Reply],
) -> Tensors:
    """Ask, answer, and check what comes of it; return the next model."""
    sent = ArrayRecord({name: Array(values) for name, values in model.items()})
    asked = {node: Message(RecordDict({"arrays": sent}), node, "train") for node in replies}
    for node, message in asked.items():
        message.metadata.__dict__["_message_id"] = f"{message.object_id}-{node}"
    strategy._nodes.ask(list(asked.values()))
    strategy._sent = sent
    messages, usable = _answers(random, asked, replies)
    arrays, metrics = strategy.aggregate_train(number, messages)
    assert arrays is not None
    assert metrics is not None
    expect(metrics["model-changed"] == 1, "the model stays:", strategy.rounds.last)
    names = {node: strategy._nodes.name(node) for node in replies}
    _check_who(strategy, names, usable)
    found = {name: arrays[name].numpy() for name in arrays}
    _check_model(strategy, found, {names[node]: reply[2] for node, reply in replies.items()})
    return found


def _answers(
    random: Generator, asked: dict[int, Message], replies: dict[int, Reply]
) -> tuple[list[Message], dict[int, bool | None]]:
    """Return the messages in some order, and who can be used: a few come twice or in another's
    name."""
    messages: list[Message] = []
    usable = {node: can for node, (_, can, _) in replies.items()}
    for node, (content, can, _) in replies.items():
        if content is None:
            continue
        reply = Message(content, reply_to=asked[node])
        elsewhere = can is not True and not isinstance(content, Error) and random.random() < 0.1
        reply.metadata.__dict__["_src_node_id"] = 0 if elsewhere else node
        twice = can is not True and random.random() < 0.1
        usable[node] = False if elsewhere or twice else can
        messages += [reply] * (2 if twice else 1)
    return [messages[j] for j in random.permutation(len(messages))], usable


def _check_who(
    strategy: ConsilienceStrategy, names: dict[int, str], usable: dict[int, bool | None]
) -> None:
    last = strategy.rounds.last
    assert last is not None
    for node, name in names.items():
        rejected = last.rejected.get(name)
        if usable[node]:
            expect(rejected is None, "node", node, "is sound and was rejected:", rejected)
        if usable[node] is False:
            expect(rejected is not None, "node", node, "was accepted")
    expect(len(set(names.values())) == len(names), "two nodes are one party:", names)
    check_reasons(strategy.reasons.values())


def _check_model(
    strategy: ConsilienceStrategy, found: Tensors, sent: dict[str, Tensors | None]
) -> None:
    consensus = strategy.consensus
    assert consensus is not None
    expect({name: values.shape for name, values in found.items()} == SHAPES, "the model", found)
    for name, values in found.items():
        expect(values.dtype == np.float32, name, "is", values.dtype)
        expect(bool(np.isfinite(values).all()), name, "holds NaN or inf")
        if any(sent[party] is None for party in consensus.parties):
            continue  # may be used or not, and was: its numbers are not known here
        rows = np.array([sent[party][name].astype(np.float64) for party in consensus.parties])  # type: ignore[index]
        weights = np.array([consensus.weights[party] for party in consensus.parties])
        expected = np.tensordot(weights, rows, 1)
        slack = 1e-5 * np.tensordot(np.abs(weights), np.abs(rows), 1) + 1e-44 * np.abs(rows).sum()
        expect(bool((np.abs(values - expected) <= slack).all()), name, "is wrong")
