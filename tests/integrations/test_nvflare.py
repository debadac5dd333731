"""The aggregator with FLARE's own models and Shareables, and in FLARE's simulator."""

import copy
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from threading import Event, Thread
from typing import Any

import ml_dtypes
import numpy as np
import psutil
import pytest
from nvflare.apis.dxo import DXO, DataKind, from_shareable
from nvflare.apis.fl_context import FLContext, FLContextManager
from nvflare.apis.shareable import ReservedHeaderKey, Shareable, make_reply
from nvflare.app_common.abstract.fl_model import FLModel
from nvflare.app_common.abstract.model import make_model_learnable
from nvflare.app_common.app_constant import AppConstants
from nvflare.app_common.ccwf.comps.simple_model_shareable_generator import (
    SimpleModelShareableGenerator,
)
from nvflare.app_common.utils.fl_model_utils import FLModelUtils, params_type_to_data_kind

import consilience as cs
from consilience.integrations.nvflare import ConsilienceAggregator
from consilience.integrations.rounds import Rounds
from consilience.record import Record
from consilience.updates.tensors import Tensor
from documented import blocks

EXAMPLE = Path(__file__).parents[2] / "examples" / "nvflare"
JOBS = Path(__file__).parents[1] / "flare_app.py"


def weights(seed: int, about: float = 3.0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return {"w": (about + 0.1 * rng.standard_normal((20, 30))).astype(np.float32)}


def sent(name: str, params: Any, kind: str = "FULL", **more: Any) -> FLModel:
    meta = {"client_name": name, **more.pop("meta", {})}
    return FLModel(params_type=kind, params=params, meta=meta, **more)


def aggregator(model: dict[str, Any] | None, round: int = 0, **settings: Any) -> Any:
    found = ConsilienceAggregator(**settings)
    found.fl_ctx = FLContextManager().new_context()
    at(found, model, round)
    return found


def at(found: Any, model: dict[str, Any] | None, round: int) -> None:
    if model is not None:
        found.fl_ctx.set_prop(AppConstants.GLOBAL_MODEL, make_model_learnable(model, {}))
    found.fl_ctx.set_prop(AppConstants.CURRENT_ROUND, round)


def answer(found: Any, model: dict[str, Any], *results: FLModel) -> dict[str, Any]:
    """What FLARE makes the next model from."""
    found.reset_stats()
    for result in results:
        found.accept_model(result)
    start = FLModel(params=dict(model))
    after: dict[str, Any] = FLModelUtils.update_model(start, found.aggregate_model()).params
    return after


ZERO = {"w": np.zeros((20, 30), np.float32)}
GOOD = [sent(f"site-{j}", weights(j)) for j in range(4)]
BAD = {
    "nan": (sent("eve", {"w": np.full((20, 30), np.nan, "f4")}), "holds nan"),
    "shape": (sent("eve", {"w": np.zeros(3, "f4")}), "has shape (3,)"),
    "missing": (sent("eve", {}), "'w' is missing"),
    "extra": (sent("eve", {**weights(9), "x": np.zeros(3)}), "'x' is not expected"),
    "no-tensor": (sent("eve", {"w": "rm -rf"}), "expected a tensor, found str"),
    "no-tree": (sent("eve", "rm -rf"), "expected a tensor, found str"),
    "kind": (sent("eve", weights(9), "DIFF"), "sent DIFF, expected FULL"),
    "count": (
        sent("eve", weights(9), meta={"NUM_STEPS_CURRENT_ROUND": -1}),
        "its sample count is -1",
    ),
    "nan-count": (
        sent("eve", weights(9), meta={"NUM_STEPS_CURRENT_ROUND": float("nan")}),
        "its sample count is nan",
    ),
    "huge-count": (
        sent("eve", weights(9), meta={"NUM_STEPS_CURRENT_ROUND": 10**400}),
        "its sample count is no usable int",
    ),
}


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("name", BAD)
def test_a_bad_result_is_rejected_by_name(name: str, known: bool, tmp_path: Path):
    bad, reason = BAD[name]
    found = aggregator(ZERO if known else None, record=str(tmp_path / "run.jsonl"))
    after = answer(found, ZERO, *GOOD, bad)
    assert float(np.abs(after["w"] - 3).max()) < 0.5
    assert after["w"].dtype == np.float32
    (only,) = Record.read(tmp_path / "run.jsonl")
    assert reason in only.rejected["eve"]
    assert len(only.parties) == 4


def test_a_result_that_is_being_spooled_counts_when_the_round_ends(tmp_path: Path):
    """In a swarm, results come in threads of their own."""
    begun, go_on = Event(), Event()

    class Slow(dict[str, Any]):
        def items(self) -> Any:
            begun.set()
            assert go_on.wait(20)
            return super().items()

    record = tmp_path / "run.jsonl"
    found = aggregator(ZERO, spool=str(tmp_path / "spool"), record=str(record))
    for result in copy.deepcopy(GOOD):
        found.accept_model(result)
    threads = [Thread(target=found.accept_model, args=[sent("slow", Slow(weights(9)))])]
    threads[0].start()
    assert begun.wait(20)
    threads.append(Thread(target=found.aggregate_model))
    threads[1].start()
    threads[1].join(0.2)
    go_on.set()
    for thread in threads:
        thread.join(20)
    (only,) = Record.read(record)
    assert set(only.parties) == {"slow", "site-0", "site-1", "site-2", "site-3"}


def test_two_results_of_one_client_count_for_nothing(tmp_path: Path):
    found = aggregator(ZERO, record=str(tmp_path / "run.jsonl"))
    answer(found, ZERO, *GOOD, GOOD[0])
    assert "2 results in one round" in Record.read(tmp_path / "run.jsonl")[0].rejected["site-0"]


def test_poison_and_metrics():
    found = aggregator(ZERO)
    poison = sent("eve", weights(9, about=-30.0), metrics={"accuracy": 1e9})
    good = [sent(f"site-{j}", weights(j), metrics={"accuracy": 0.5 + j / 100}) for j in range(4)]
    for result in [*good, poison]:
        found.accept_model(result)
    after = found.aggregate_model()
    assert float(np.abs(after.params["w"] - 3).max()) < 0.5
    assert 0.5 <= after.metrics["accuracy"] <= 0.53


@pytest.mark.parametrize("known", [True, False])
def test_differences(known: bool):
    start = {"w": np.ones((20, 30), np.float32)}
    found = aggregator(start if known else None, params_type="DIFF")
    results = [sent(f"site-{j}", weights(j), "DIFF") for j in range(4)]
    after = answer(found, start, *results)
    assert float(np.abs(after["w"] - 4).max()) < 0.5


@pytest.mark.parametrize("known", [True, False])
def test_too_few_good_results_leave_the_model(known: bool):
    start = {"w": np.full((20, 30), 7.0, np.float32)}
    found = aggregator(start if known else None)
    assert answer(found, start, GOOD[0], BAD["nan"][0])["w"].min() == 7.0
    assert answer(found, start)["w"].min() == 7.0


def test_spooled_results_are_judged_as_others_are(tmp_path: Path):
    """Every kind of result, in files and in memory: the same model and the same reasons."""
    kept, after = tmp_path / "kept", {}
    for spool in (str(kept), None):
        bad = [replace_name(copy.copy(model), f"bad-{name}") for name, (model, _) in BAD.items()]
        found = aggregator(ZERO, spool=spool, record=str(tmp_path / f"{spool is None}.jsonl"))
        good = [copy.copy(model) for model in GOOD]
        after[spool] = answer(found, ZERO, *good, *bad)["w"]
        if spool:  # as soon as they were accepted
            assert all(isinstance(model.params["w"], Tensor) for model in good)
    np.testing.assert_array_equal(after[str(kept)], after[None])
    (in_files,), (in_memory,) = (Record.read(tmp_path / f"{n}.jsonl") for n in (False, True))
    assert in_files.rejected == in_memory.rejected
    assert list(kept.iterdir()) == []


def replace_name(model: FLModel, name: str) -> FLModel:
    model.meta = {**model.meta, "client_name": name}
    return model


def test_a_folder_that_cannot_be_used_is_said_and_the_model_stays(tmp_path: Path):
    (tmp_path / "file").write_text("")
    found = aggregator(ZERO, spool=str(tmp_path / "file"), record=str(tmp_path / "run.jsonl"))
    after = answer(found, ZERO, *(copy.copy(model) for model in GOOD))
    assert not after["w"].any()
    (only,) = Record.read(tmp_path / "run.jsonl")
    assert "could not be spooled" in only.rejected["site-0"]


def test_memory_is_kept_over_rounds_and_jobs(tmp_path: Path):
    kept = str(tmp_path / "memory.npz")
    for job in range(2):
        found = aggregator(ZERO, memory=kept)
        for round in range(2):
            at(found, ZERO, round)
            answer(found, ZERO, *GOOD)
            assert cs.Memory.load(kept).rounds == 2 * job + round + 1


@pytest.mark.parametrize("lone", [0, 500])
def test_clients_that_count_no_steps_are_not_rejected(lone: int, tmp_path: Path):
    found = aggregator(ZERO, record=str(tmp_path / "run.jsonl"))
    steps = [0, 0, 0, lone]
    results = [
        sent(f"site-{j}", weights(j), meta={"NUM_STEPS_CURRENT_ROUND": count})
        for j, count in enumerate(steps)
    ]
    answer(found, ZERO, *results)
    (only,) = Record.read(tmp_path / "run.jsonl")
    assert not only.rejected
    assert only.weights["site-3"] == pytest.approx(0.25, rel=0.1)


def test_trusted_counts(tmp_path: Path):
    found = aggregator(ZERO, record=str(tmp_path / "run.jsonl"), trusted_counts=True)
    results = [
        sent(f"site-{j}", weights(j), meta={"NUM_STEPS_CURRENT_ROUND": 10 ** (3 - j // 2)})
        for j in range(6)
    ]
    answer(found, ZERO, *results)
    (only,) = Record.read(tmp_path / "run.jsonl")
    assert only.weights["site-0"] / only.weights["site-5"] == pytest.approx(100, rel=0.1)


def test_a_round_that_does_not_count_leaves_the_model(tmp_path: Path):
    require = {"parties": 3.5}
    found = aggregator(ZERO, record=str(tmp_path / "run.jsonl"), require=require)
    few = [*GOOD[:3], sent("eve", weights(9, about=-30.0))]
    assert answer(found, ZERO, *few)["w"].max() == 0
    at(found, ZERO, 1)
    assert float(np.abs(answer(found, ZERO, *GOOD)["w"] - 3).max()) < 0.5
    notes = [r.note for r in Record.read(tmp_path / "run.jsonl")]
    assert "effective parties, expected 3.5 at least" in notes[0]
    assert notes[1] is None


def test_layers_that_stay_local():
    start = {**ZERO, "head": np.ones(3, np.float32)}
    found = aggregator(start, tensors=["!head"], evidence=["w"])
    own = [sent(f"site-{j}", {**weights(j), "head": np.zeros(j)}) for j in range(4)]
    after = answer(found, start, *own)
    assert float(np.abs(after["w"] - 3).max()) < 0.5
    np.testing.assert_array_equal(after["head"], np.ones(3, np.float32))


# Shareables, as in swarm learning


def shareable(model: FLModel, round: int = 0) -> Shareable:
    """What a client sends, whatever is in it."""
    kind = params_type_to_data_kind[model.params_type.value]
    meta = {k: v for k, v in model.meta.items() if k != "client_name"}
    found = Shareable()
    found.set_header(ReservedHeaderKey.CONTENT_TYPE, "DXO")
    found["DXO"] = {"kind": kind, "data": model.params, "meta": meta}
    found.add_cookie(AppConstants.CONTRIBUTION_ROUND, round)
    return found


def context(start: Any, round: int = 0, sender: str | None = None) -> FLContext:
    found = FLContextManager().new_context()
    found.set_prop(AppConstants.GLOBAL_MODEL, make_model_learnable(start, {}) if start else None)
    found.set_prop(AppConstants.CURRENT_ROUND, round)
    if sender:
        found.set_peer_context(FLContextManager(identity_name=sender).new_context())
    return found


def shared(found: Any, start: Any, *results: tuple[str, Shareable], round: int = 0) -> list[bool]:
    return [found.accept(each, context(start, round, name)) for name, each in results]


def swarm(found: Any, start: Any, *results: FLModel, known: bool = True) -> dict[str, Any]:
    """What a client of a swarm that aggregates makes the next model from."""
    results_ = [(result.meta["client_name"], shareable(result)) for result in results]
    shared(found, start if known else None, *results_)
    came = found.aggregate(context(start if known else None))
    after = SimpleModelShareableGenerator().shareable_to_learnable(came, context(dict(start)))
    weights: dict[str, Any] = after["weights"]
    return weights


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("name", BAD)
def test_a_bad_shareable_is_rejected_by_name(name: str, known: bool, tmp_path: Path):
    bad, reason = BAD[name]
    reason = {
        "kind": "sent WEIGHT_DIFF, expected WEIGHTS",
        "no-tree": "sent what cannot be read: ValueError: invalid DXO",
    }.get(name, reason)
    found = ConsilienceAggregator(record=str(tmp_path / "run.jsonl"))
    after = swarm(found, ZERO, *GOOD, bad, known=known)
    assert float(np.abs(after["w"] - 3).max()) < 0.5
    assert after["w"].dtype == np.float32
    (only,) = Record.read(tmp_path / "run.jsonl")
    assert reason in only.rejected["eve"]
    assert len(only.parties) == 4


def headless() -> Shareable:
    found = Shareable()
    found[ReservedHeaderKey.HEADERS] = "none"
    return found


def of_round(round: Any) -> Shareable:
    found = shareable(GOOD[0])
    found.add_cookie(AppConstants.CONTRIBUTION_ROUND, round)
    return found


UNREADABLE = {
    "empty": (Shareable(), "sent what cannot be read"),
    "headers": (headless(), "sent what cannot be read"),
    "error": (make_reply("EXECUTION_EXCEPTION"), "sent no update, but EXECUTION_EXCEPTION"),
    "metrics": (DXO(DataKind.METRICS, {"a": 1.0}).to_shareable(), "sent METRICS, expected WEIGHTS"),
    "collection": (DXO(DataKind.COLLECTION, {}).to_shareable(), "sent COLLECTION, expected"),
    "round": (of_round(np.zeros(3)), "sent what cannot be read"),
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_what_is_no_model_is_rejected_by_name(name: str, tmp_path: Path):
    bad, reason = UNREADABLE[name]
    found = ConsilienceAggregator(record=str(tmp_path / "run.jsonl"))
    assert shared(found, ZERO, ("eve", bad), ("ann", shareable(GOOD[0]))) == [False, True]
    after = swarm(found, ZERO, *GOOD)
    assert float(np.abs(after["w"] - 3).max()) < 0.5
    assert reason in Record.read(tmp_path / "run.jsonl")[0].rejected["eve"]


def test_a_late_result_costs_nobody_the_next(tmp_path: Path):
    found = ConsilienceAggregator(record=str(tmp_path / "run.jsonl"))
    names = [result.meta["client_name"] for result in GOOD]
    late = (names[0], shareable(GOOD[0], round=0))
    timely = [(n, shareable(result, round=1)) for n, result in zip(names, GOOD, strict=True)]
    assert shared(found, ZERO, late, *timely, round=1) == [False, True, True, True, True]
    found.aggregate(context(ZERO, round=1))
    (only,) = Record.read(tmp_path / "run.jsonl")
    assert only.round == 2
    assert set(only.parties) == set(names)
    assert not only.rejected


def test_a_client_cannot_choose_its_name(tmp_path: Path):
    found = ConsilienceAggregator(record=str(tmp_path / "run.jsonl"))
    forged = shareable(GOOD[3])
    forged["DXO"]["meta"]["client_name"] = "site-0"
    shared(found, ZERO, ("eve", forged))
    swarm(found, ZERO, *GOOD[:3])
    (only,) = Record.read(tmp_path / "run.jsonl")
    assert set(only.parties) == {"site-0", "site-1", "site-2", "eve"}


@pytest.mark.parametrize("known", [True, False])
def test_differences_stay_differences_in_a_swarm(known: bool):
    start = {"w": np.ones((20, 30), np.float32), "n": np.array(7)}
    sent_ = [sent(f"s{j}", {**weights(j, 1e-5), "n": np.array(3)}, "DIFF") for j in range(4)]
    found = ConsilienceAggregator(params_type="DIFF")
    shared(found, start if known else None, *((m.meta["client_name"], shareable(m)) for m in sent_))
    came = from_shareable(found.aggregate(context(start if known else None)))
    assert came.data_kind == DataKind.WEIGHT_DIFF
    mean = np.mean([m.params["w"] for m in sent_], 0)
    np.testing.assert_allclose(came.data["w"], mean, atol=0.02)
    if known:  # the federation's counters are its own
        assert set(came.data) == {"w"}
        after = SimpleModelShareableGenerator().shareable_to_learnable(
            came.to_shareable(), context(dict(start))
        )
        assert after["weights"]["n"] == 7


def test_differences_of_adapters_are_tensors_like_others():
    shapes = {"q.lora_A.weight": (4, 50), "q.lora_B.weight": (60, 4)}
    start = {name: np.ones(shape, np.float32) for name, shape in shapes.items()}
    rng = np.random.default_rng(0)
    own = [
        {
            name: (3 + 0.1 * rng.standard_normal(shape)).astype("f4")
            for name, shape in shapes.items()
        }
        for _ in range(4)
    ]
    found = ConsilienceAggregator(params_type="DIFF")
    after = swarm(found, start, *(sent(f"s{j}", each, "DIFF") for j, each in enumerate(own)))
    for values in after.values():
        assert float(np.abs(values - 4).max()) < 0.5


@pytest.mark.parametrize("kind", ["FULL", "DIFF"])
@pytest.mark.parametrize("known", [True, False])
def test_too_few_good_shareables_leave_the_model(known: bool, kind: str):
    start = {"w": np.full((20, 30), 7.0, np.float32)}
    found = ConsilienceAggregator(params_type=kind)
    after = swarm(found, start, sent("ann", weights(0), kind), BAD["nan"][0], known=known)
    np.testing.assert_array_equal(after["w"], start["w"])


def test_a_job_that_asks_for_no_number_of_updates_is_told():
    """As JSON's null, it may reach us from a job's configuration."""
    with pytest.raises(cs.ConsilienceError, match="expected a whole number, found NoneType"):
        Rounds(minimum=None)


@pytest.mark.parametrize("spooled", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_models_of_torch_stay_so(dtype: str, spooled: bool, tmp_path: Path):
    torch = pytest.importorskip("torch")
    kind = getattr(torch, dtype)
    start = {"w": torch.zeros(20, 30, dtype=kind), "n": torch.tensor(7)}
    own = [
        sent(f"s{j}", {"w": torch.from_numpy(weights(j)["w"]).to(kind), "n": torch.tensor(7)})
        for j in range(4)
    ]
    found = ConsilienceAggregator(spool=str(tmp_path) if spooled else None)
    after = swarm(found, start, *own)
    assert after["w"].dtype == kind
    assert after["w"].shape == (20, 30)
    assert float((after["w"] - 3).abs().max()) < 0.5
    assert int(after["n"]) == 7


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_models_of_bfloat16_stay_so_and_finite(library: str):
    """Even if a party sends wider numbers, and a mean believes them."""
    if library == "torch":
        torch = pytest.importorskip("torch")
        start: Any = torch.zeros(20, 30, dtype=torch.bfloat16)
    else:
        start = np.zeros((20, 30), ml_dtypes.bfloat16)
    found = aggregator({"w": start})
    for j in range(4):
        found.accept_model(sent(f"s{j}", {"w": np.full((20, 30), 3.4e38, np.float32)}))
    after = found.aggregate_model().params["w"]
    assert after.dtype == start.dtype
    assert type(after) is type(start)
    assert float(after[0, 0]) == float(ml_dtypes.finfo(ml_dtypes.bfloat16).max)


def in_simulator(command: list[str], where: Path) -> Path:
    """Run a job of FLARE's simulator, again if it hangs; return the folder that it ran in.

    The simulator finds a free port for each client, and frees it until the client has started. If
    another process takes it in between, the job waits for that client for ever.
    """
    for attempt in range(3):
        folder = shutil.copytree(EXAMPLE, where / str(attempt))
        with (folder / "log").open("w") as log:
            job = subprocess.Popen(
                command,
                env={
                    **os.environ,
                    "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
                    "OMP_NUM_THREADS": "1",
                    "PYTHONWARNINGS": "ignore",
                },
                cwd=folder,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
            try:
                code = job.wait(timeout=120)
            except subprocess.TimeoutExpired:
                for process in [*psutil.Process(job.pid).children(recursive=True), job]:
                    process.kill()  # clients have sessions of their own, and may wait on
                job.wait()
                continue
        assert code == 0, (folder / "log").read_text()[-3000:]
        return folder
    pytest.fail("three jobs hung: " + (folder / "log").read_text()[-3000:])


@pytest.mark.integration
def test_the_example_in_flares_simulator(tmp_path: Path):
    """The command of its README, as it stands there."""
    (command,) = blocks(EXAMPLE / "README.md", "sh")
    out = in_simulator(["bash", "-euc", command], tmp_path) / "nan-run"
    record = Record.read(out / "run.jsonl")
    assert [r.round for r in record] == [1, 2]
    for found in record:
        assert set(found.parties) == {"site-1", "site-2"}
        assert "holds nan" in found.rejected["site-3"]
    assert cs.Memory.load(out / "memory.npz").rounds == 2


def simulated(kind: str, where: Path, **settings: Any) -> tuple[Path, list[Any]]:
    """Run a job of flare_app.py, with updates spooled; return its folder and its two rounds."""
    folder = in_simulator([sys.executable, str(JOBS), kind, ".", json.dumps(settings)], where)
    assert list((folder / "spool").iterdir()) == []
    rounds: list[Any] = Record.read(folder / "run.jsonl")
    assert [r.round for r in rounds] == [1, 2]
    return folder, rounds


@pytest.mark.integration
def test_a_swarm_in_flares_simulator(tmp_path: Path):
    folder, (first, second) = simulated("swarm", tmp_path)
    assert set(first.parties) == {"site-1", "site-2", "site-3"}
    assert "has shape (4999,)" in first.rejected["site-4"]
    assert set(second.parties) == {"site-1", "site-2", "site-3", "site-4"}
    ends = list(folder.glob("work/site-*/simulate_job/models/last_global_model.npy"))
    assert len(ends) == 4
    for end in ends:
        assert float(np.abs(np.load(end) - 3).max()) < 0.5


@pytest.mark.integration
def test_what_a_federation_can_ask_for_in_flares_simulator(tmp_path: Path):
    settings = {"trusted_counts": True, "require": {"suspects": 0.1}, "evidence": ["numpy*"]}
    _, (first, second) = simulated("fedavg", tmp_path, **settings)
    assert first.note is not None
    assert "1 of 5 parties are rejected or move together (site-4)" in first.note
    assert "has shape (4999,)" in first.rejected["site-4"]
    assert second.note is None
    assert second.weights["site-4"] == pytest.approx(0.01 * second.weights["site-1"], rel=0.2)
    assert list(second.reasons) == ["site-5"]  # by the lab's filter
    assert second.weights["site-5"] < 0.001
