"""Beliefs as scalars: by the real packages, where they are installed."""

from pathlib import Path

import pytest

import consilience as cs
from consilience.integrations.rounds import Rounds
from consilience.integrations.tracking import _name

UPDATES = {
    "ann": [1.0, 2, 3],
    "bob": [1.1, 2.1, 2.9],
    "cy\u00e9": [1.0, 2, 3.1],
    "eve": [5.0, -3, 9],
}


def rounds(track: object) -> Rounds:
    found = Rounds(track=track, minimum=3)
    found.close(1, UPDATES)
    found.close(2, {"ann": UPDATES["ann"]})
    return found


def test_mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri((tmp_path / "runs").as_uri())
    with mlflow.start_run() as run:
        last = rounds(mlflow)
    client = mlflow.tracking.MlflowClient()
    found = client.get_metric_history(run.info.run_id, "consilience/weight/eve")
    assert next((one.step, one.value) for one in found) == (1, pytest.approx(0, abs=0.01))
    changed = client.get_metric_history(run.info.run_id, "consilience/model-changed")
    assert [(one.step, one.value) for one in changed] == [(1, 1), (2, 0)]
    assert last.last is not None
    assert any("weight/cy_-" in name for name in client.get_run(run.info.run_id).data.metrics)


def test_tensorboard(tmp_path: Path):
    pytest.importorskip("tensorboard")
    pytest.importorskip("torch")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(tmp_path) as writer:
        rounds(writer)
    found = EventAccumulator(str(tmp_path)).Reload()
    (weight,) = found.Scalars("consilience/weight/eve")
    assert (weight.step, weight.value) == (1, pytest.approx(0, abs=0.01))
    assert [one.value for one in found.Scalars("consilience/model-changed")] == [1, 0]


def test_a_tracker_that_fails_costs_no_round(caplog: pytest.LogCaptureFixture):
    class Down:
        def add_scalar(self, *_: object) -> None:
            raise ConnectionError("no server")

    assert rounds(Down()).memory.rounds == 1
    assert "the numbers of round 1 are not tracked" in caplog.text


def test_what_is_no_tracker_is_said_at_once():
    with pytest.raises(cs.ConsilienceError, match="track is str, expected a TensorBoard writer"):
        Rounds(track="mlruns")


def test_names_that_differ_stay_apart():
    assert _name("weight/site-1") == "weight/site-1"
    assert len({_name(key) for key in ("weight/a_", "weight/a:", "weight/a*", "w" * 999)}) == 4
    assert len(_name("w" * 999)) < 250
