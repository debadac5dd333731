"""Clients that send what no client should: each costs itself its say, and nobody else anything."""

import logging
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ConfigRecord, Error, Message, MetricRecord, RecordDict
from nvflare.apis.fl_context import FLContextManager
from nvflare.app_common.abstract.fl_model import FLModel
from nvflare.app_common.abstract.model import make_model_learnable
from nvflare.app_common.app_constant import AppConstants

import consilience as cs
from consilience import Memory
from consilience.integrations.checkpoint import Checkpoint, CheckpointError, latest
from consilience.integrations.metrics import typical_metrics
from consilience.integrations.nvflare import ConsilienceAggregator
from consilience.integrations.rounds import Rounds
from consilience.record import Record
from flower_local import (
    LocalGrid,
    Party,
    arrays,
    content,
    distance,
    federation,
    honest,
    in_a_run,
    initial,
    noisy,
    sends,
    strategy,
)

FORGED = "eve\n\x1b[2Jround 1: party 11 rejected: it lies"
ZERO = {"w": np.zeros((20, 30), np.float32)}
GOOD = noisy(99)


@pytest.fixture(autouse=True)
def a_run_whose_log_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    in_a_run(monkeypatch.setattr)
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)


def deep(levels: int = 5000) -> Any:
    nested: Any = 1.0
    for _ in range(levels):
        nested = [nested]
    return nested


def endless() -> list[Any]:
    found: list[Any] = []
    found.append(found)
    return found


def lines_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records]


# NVIDIA FLARE


def weights(seed: int) -> dict[str, Any]:
    random = np.random.default_rng(seed)
    return {"w": (3 + 0.1 * random.standard_normal((20, 30))).astype(np.float32)}


def result(name: str, params: Any, steps: Any = 1, **more: Any) -> FLModel:
    meta = {"client_name": name, "NUM_STEPS_CURRENT_ROUND": steps}
    return FLModel(params_type="FULL", params=params, meta=meta, **more)


def flare(tmp_path: Path, *results: FLModel, **settings: Any) -> tuple[FLModel, Any]:
    """What a round of four honest clients and some others comes to, and what was written down."""
    found = ConsilienceAggregator(record=str(tmp_path / "run.jsonl"), **settings)
    found.fl_ctx = FLContextManager().new_context()
    found.fl_ctx.set_prop(AppConstants.GLOBAL_MODEL, make_model_learnable(ZERO, {}))
    for one in [*results, *(result(f"site-{j}", weights(j)) for j in range(4))]:
        found.accept_model(one)
    model = found.aggregate_model()
    assert float(np.abs(model.params["w"] - 3).max()) < 0.5
    (only,) = Record.read(tmp_path / "run.jsonl")
    return model, only


COUNTS = {
    "nan": float("nan"),
    "nan in words": "nan",
    "words": "5",
    "infinite": float("inf"),
    "too large for a float": 10**400,
    "too long to be written": 10**5000,
    "larger than any data": 1e300,
    "smaller than any data": 1e-300,
    "true": True,
    "none": None,
    "list": [5],
    "deep": deep(),
    "array": np.ones(3),
    "zero": 0,
}


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("method", ["pairwise", "mean"])
def test_flare_counts(count: str, method: str, tmp_path: Path):
    _, round = flare(tmp_path, result("eve", weights(9), COUNTS[count]), method=method)
    assert set(round.rejected) == {"eve"}
    assert "its sample count is" in round.rejected["eve"]
    assert "expected a positive number" in round.rejected["eve"]


def test_flare_counts_of_numpy_are_numbers(tmp_path: Path):
    _, round = flare(tmp_path, result("ann", weights(9), np.int64(5)))
    assert not round.rejected


class Hostile(dict):
    def items(self) -> Any:
        raise SystemError("no")

    keys = values = __iter__ = get = __getitem__ = items


@pytest.mark.parametrize(
    "metrics",
    [[1, 2], 7, "accuracy", {"a": deep()}, {"a": endless()}, {"a": 10**400}, {1: 1.0}, Hostile()],
    ids=["list", "number", "text", "deep", "endless", "huge", "no name", "hostile"],
)
def test_flare_metrics(metrics: Any, tmp_path: Path):
    poison = result("eve", weights(9))
    poison.metrics = metrics
    model, _ = flare(tmp_path, poison)
    assert model.metrics is None
    good = {"a": 0.5}
    weight = {"ann": 0.4, "bob": 0.4, "eve": 0.2}
    assert typical_metrics({"ann": good, "bob": good, "eve": metrics}, weight) == good


def torch_tensors(dtype: str) -> Any:
    torch = pytest.importorskip("torch")
    return {"w": torch.from_numpy(weights(9)["w"]).to(getattr(torch, dtype))}


@pytest.mark.parametrize("make", [deep, endless, lambda: {"w": deep()}, Hostile])
def test_flare_params_that_cannot_be_walked_through(make: Any, tmp_path: Path):
    _, round = flare(tmp_path, result("eve", make()))
    assert set(round.rejected) == {"eve"}
    assert len(round.parties) == 4


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_flare_params_of_another_library_do_not_decide_what_the_model_is(
    dtype: str, tmp_path: Path
):
    first = result("a client that comes first", torch_tensors(dtype))
    model, round = flare(tmp_path, first)
    assert type(model.params["w"]) is np.ndarray
    assert model.params["w"].dtype == np.float32
    assert len(round.parties) == 5


@pytest.mark.parametrize("meta", [[1], "text", {"client_name": ["eve"]}])
def test_flare_meta(meta: Any, tmp_path: Path):
    model = FLModel(params_type="FULL", params=weights(9))
    model.meta = meta
    _, round = flare(tmp_path, model)
    assert len(round.parties) + len(round.rejected) == 5


def test_flare_memory_that_cannot_be_written(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    nowhere = tmp_path / "nowhere" / "memory.npz"
    _, round = flare(tmp_path, memory=str(nowhere))
    assert len(round.parties) == 4
    assert f"the memory is not kept in {nowhere}" in caplog.text


def test_flare_names_do_not_forge_a_line(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    flare(tmp_path, result(FORGED, {"w": np.zeros(3)}), result("a" * 10**6, {FORGED: np.ones(3)}))
    said = lines_of(caplog)
    assert any("eve\\n\\x1b" in line for line in said)
    named = [line for line in said if line.startswith("round")]
    assert len(named) >= 2
    assert all(line.isprintable() and len(line) < 1000 for line in named)


# Flower


def answers(**more: Any) -> RecordDict:
    return RecordDict({"arrays": arrays(GOOD), "metrics": MetricRecord({"num-examples": 5})} | more)


def smuggled(key: str, value: Any) -> RecordDict:
    """A reply with a metric that Flower's own client would not send."""
    found = content(GOOD)
    found.metric_records["metrics"].__dict__["_data"][key] = value
    return found


@pytest.mark.parametrize("count", COUNTS)
def test_flower_counts(count: str):
    chosen = strategy()
    bad = Party(lambda m: smuggled("num-examples", COUNTS[count]))
    found = chosen.start(federation(bad), initial(), num_rounds=1)
    assert distance(found.arrays) < 0.5
    assert set(chosen.rounds.last.rejected) == {"15"}
    assert "num-examples is" in chosen.reasons["15"]


@pytest.mark.parametrize(
    "value",
    [10**400, 10**5000, deep(), endless(), "text", None, True],
    ids=["huge", "long", "deep", "endless", "text", "none", "true"],
)
@pytest.mark.parametrize("kind", ["train", "evaluate"])
def test_flower_metrics(value: Any, kind: str):
    def answer(message: Message) -> RecordDict:
        return smuggled("loss", value) if message.metadata.message_type == kind else content(GOOD)

    grid = federation(Party(answer))
    for node in range(11, 15):
        grid.parties[node] = sends(noisy(node), loss=0.5)
    found = strategy(fraction_evaluate=1.0).start(grid, initial(), num_rounds=1)
    assert found.train_metrics_clientapp[1]["loss"] == 0.5
    assert found.evaluate_metrics_clientapp[1]["loss"] == 0.5


@pytest.mark.parametrize(
    "claim",
    [10**5000, deep(), FORGED, "x" * 10**6, b"0", True, None, ""],
    ids=["long", "deep", "forged", "text", "bytes", "true", "none", "empty"],
)
def test_flower_claims(claim: Any, caplog: pytest.LogCaptureFixture):
    grid = federation(Party(lambda m: smuggled("who", claim)), good=0)
    for node in range(3):
        grid.parties[node] = honest(node, who=node)
    chosen = strategy(party_key="who")
    chosen.start(grid, initial(), num_rounds=1)
    assert set(chosen.consensus.weights) == {"0", "1", "2", "node-11"}
    assert all(line.isprintable() for line in lines_of(caplog) if line.startswith("node"))


def header(text: str) -> bytes:
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode()


def headed(shape: str, descr: str = "'<f4'", data: bytes = bytes(80)) -> Array:
    text = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}\n"
    return Array("float32", (20,), "numpy.ndarray", header(text) + data)


@pytest.mark.parametrize(
    "bias",
    [
        headed("(-1,)"),
        headed("(True, 20)"),
        headed("(2305843009213693952, 2305843009213693952)"),
        headed("(" + "2305843009213693952, " * 300 + ")"),
        headed("(" + "0, " * 100 + ")", data=b""),
        headed("(" * 4000),
        headed("(20,)", "[('x', '<f4')]"),
        headed("(20,)", "'(1000000000,)f4'"),
        headed("(20,)", "'|O'"),
        headed("(20,)", "'<M8[s]'", bytes(160)),
        headed("(20,)", "'<c8'", bytes(160)),
        headed("(21,)"),
        headed("(19,)"),
        Array("float32", (20,), "numpy.ndarray", header("\x00" * 100)),
        Array("float32", (20,), FORGED * 10**4, b""),
        Array("float32", (20,), "", b""),
    ],
    ids=range(16),
)
def test_flower_arrays(bias: Array, caplog: pytest.LogCaptureFixture):
    record = arrays(GOOD)
    record["bias"] = bias
    chosen = strategy()
    bad = Party(lambda m: answers(arrays=record))
    found = chosen.start(federation(bad), initial(), num_rounds=1)
    assert distance(found.arrays) < 0.5
    assert set(chosen.rounds.last.rejected) == {"15"}
    (line,) = [line for line in lines_of(caplog) if "party 15" in line and "round" in line]
    assert line.isprintable()
    assert len(line) < 500


@pytest.mark.parametrize("descr", ["'>f4'", "'<f2'", "'<f8'", "'>f8'", "'<f16'"])
def test_flower_arrays_of_other_floats_are_read_and_change_nothing(descr: str):
    dtype = np.dtype(descr[1:-1])
    record = arrays(GOOD)
    data = GOOD["bias"].astype(dtype).tobytes()
    text = f"{{'descr': {descr}, 'fortran_order': False, 'shape': (20,), }}"
    for padding in range(3):  # numbers that begin at any place
        record["bias"] = Array(
            "x", (20,), "numpy.ndarray", header(text + " " * padding + "\n") + data
        )
        chosen = strategy()
        party = Party(lambda m: answers(arrays=record))
        found = chosen.start(federation(party), initial(), num_rounds=1)
        assert not chosen.rounds.last.rejected
        assert distance(found.arrays) < 0.5
        assert found.arrays["bias"].numpy().dtype == np.dtype("<f4")


class Hollow(Party):
    def replies(self, message: Message, node: int) -> list[Message]:
        (reply,) = super().replies(message, node)
        reply.__dict__["_content"] = None
        return [reply]


@pytest.mark.parametrize("key", [None, "who"])
def test_flower_replies_without_content(key: str | None):
    chosen = strategy(fraction_evaluate=1.0, party_key=key)
    grid = federation(Hollow(lambda m: content(GOOD)))
    found = chosen.start(grid, initial(), num_rounds=2)
    assert distance(found.arrays) < 0.5
    (reason,) = chosen.rounds.last.rejected.values()
    assert "holds nothing" in reason


def test_flower_names_do_not_forge_a_line(caplog: pytest.LogCaptureFixture):
    bad = [
        sends({**GOOD, FORGED: np.ones(3, "f4")}),
        Party(lambda m: Error(7, f"boom\n{FORGED}\x1b]0;{'x' * 10**6}")),
        Party(lambda m: Error(7, "\n\n")),
        Party(lambda m: RecordDict({FORGED: arrays(GOOD), "b": arrays(GOOD)})),
        Party(lambda m: answers(config=ConfigRecord({FORGED: FORGED}))),
    ]
    with caplog.at_level(logging.WARNING):
        strategy(fraction_evaluate=1.0).start(federation(*bad), initial(), num_rounds=1)
    said = [line for line in lines_of(caplog) if line.startswith("round")]
    assert len(said) >= 4
    assert all(line.isprintable() and len(line) < 500 for line in said)


def test_flower_a_stranger_cannot_name_the_node_it_speaks_for():
    grid = federation(good=0)
    for node in range(3):
        grid.parties[node] = honest(node, who=node)
    grid.parties[3] = Party(lambda m: content(noisy(3), who=7), source=2)
    chosen = strategy(party_key="who")
    chosen.start(grid, initial(), num_rounds=1)
    assert "node-3" in chosen.rounds.last.rejected
    grid.parties[3] = honest(3, who=3)
    chosen.start(grid, initial(), num_rounds=1)
    assert set(chosen.consensus.weights) == {"0", "1", "2", "3"}


class InMemoryGrid(LocalGrid):
    """Of the name of Flower's own for simulations, where node ids are drawn anew in each run."""


def test_flower_an_id_is_kept_for_its_party_over_a_restart(tmp_path: Path):
    parties = {n: honest(n, who=n) for n in range(4)}
    kept = {"checkpoint": tmp_path / "run", "party_key": "who"}
    strategy(**kept).start(LocalGrid(parties), initial(), num_rounds=1)
    # Party 3 is late, and somebody else claims to be it.
    late = {**{n: parties[n] for n in range(3)}, 66: honest(66, who=3)}
    chosen = strategy(**kept)
    chosen.start(LocalGrid(late), initial(), num_rounds=2)
    assert set(chosen.consensus.weights) == {"0", "1", "2", "node-66"}
    chosen = strategy(**kept)
    chosen.start(LocalGrid({**late, 3: parties[3]}), initial(), num_rounds=3)
    assert set(chosen.consensus.weights) == {"0", "1", "2", "3", "node-66"}


def test_flower_a_simulation_taken_up_again_has_other_nodes(tmp_path: Path):
    for total in (1, 2):
        grid = InMemoryGrid({100 * total + n: honest(n, who=n) for n in range(4)})
        chosen = strategy(checkpoint=tmp_path / "run", party_key="who")
        chosen.start(grid, initial(), num_rounds=total)
        assert set(chosen.consensus.weights) == {"0", "1", "2", "3"}
    assert chosen.memory.rounds == 2


# Any framework


def test_who_makes_the_aggregation_fail_is_found_and_named(monkeypatch: pytest.MonkeyPatch):
    """Whatever a party finds that nobody thought of."""
    from consilience.integrations import rounds as module

    def fails(updates: Any, *more: Any, **settings: Any) -> cs.Consensus:
        if any(isinstance(u, dict) and u["w"][0, 0] == 666 for u in updates.values()):
            raise SystemError(FORGED)
        return cs.aggregate(updates, *more, **settings)

    monkeypatch.setattr(module, "aggregate", fails)
    monkeypatch.setattr("consilience.engines.alone.aggregate", fails)
    evil = {"w": np.full((20, 30), 666.0, np.float32)}
    sent = {f"site-{j}": weights(j) for j in range(4)}
    ended = Rounds().close(1, {**sent, "eve": evil}, ZERO)
    assert float(np.abs(ended.model["w"] - 3).max()) < 0.5
    assert "SystemError" in ended.rejected["eve"]
    assert ended.rejected["eve"].isprintable()


def test_an_error_that_cannot_say_what_it_is(monkeypatch: pytest.MonkeyPatch):
    class MuteError(Exception):
        def __str__(self) -> str:
            raise MuteError

    def fails(updates: Any, *more: Any, **settings: Any) -> cs.Consensus:
        raise MuteError

    monkeypatch.setattr("consilience.integrations.rounds.aggregate", fails)
    monkeypatch.setattr("consilience.engines.alone.aggregate", fails)
    assert "MuteError" in str(Rounds().close(1, {"eve": weights(1)}, ZERO).note)


@pytest.mark.parametrize("step", [None, 1.0])
def test_no_party_makes_the_model_infinite(step: float | None):
    """Parties may send wider numbers than the model's, and a mean believes them."""
    sent = {f"site-{j}": {"w": weights(j)["w"].astype(float)} for j in range(4)}
    rounds = Rounds("mean", step=step)
    first = rounds.close(1, {**sent, "eve": {"w": np.full((20, 30), 1e45)}}, ZERO).model
    assert first is not None
    assert first["w"].dtype == np.float32
    assert np.isfinite(first["w"]).all()
    second = rounds.close(2, sent, first)
    assert second.consensus is not None
    assert np.isfinite(second.model["w"]).all()


def test_a_mapping_that_cannot_be_written_to():
    sent: dict[str, Any] = {"ann": MappingProxyType(weights(1)), "bob": weights(2)}
    assert Rounds("mean").close(1, sent, ZERO).consensus is not None


def test_a_checkpoint_with_a_flipped_bit_is_refused(tmp_path: Path):
    model = {"w": np.arange(6.0, dtype=np.float32).reshape(2, 3)}
    Checkpoint(3, model, Memory(), {"eve": {"times": 1, "round": 3, "why": "NaN"}}).save(tmp_path)
    files = sorted((tmp_path / "round-000003").iterdir())
    assert len(files) == 4
    random = np.random.default_rng(0)
    for file in files:
        content = file.read_bytes()
        for bit in random.choice(8 * len(content), 60, replace=False):
            flipped = bytearray(content)
            flipped[bit // 8] ^= 1 << (bit % 8)
            file.write_bytes(flipped)
            with pytest.raises(CheckpointError, match="round-000003"):
                latest(tmp_path)
        file.write_bytes(content)
    assert latest(tmp_path).round == 3


def test_a_checkpoint_without_its_checksums_is_refused(tmp_path: Path):
    Checkpoint(1, ZERO, Memory()).save(tmp_path)
    (tmp_path / "round-000001" / "SHA256SUMS").unlink()
    with pytest.raises(CheckpointError, match="SHA256SUMS"):
        latest(tmp_path)


def test_the_last_of_a_million_rounds_is_found(tmp_path: Path):
    for round in (999_999, 1_000_000):
        Checkpoint(round, ZERO, Memory()).save(tmp_path)
    assert latest(tmp_path).round == 1_000_000
