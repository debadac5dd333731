"""Checkpoints: whole or not there, whatever happens meanwhile."""

import os
from pathlib import Path

import numpy as np
import pytest

from consilience import Memory
from consilience.integrations.checkpoint import Checkpoint, CheckpointError, latest
from consilience.integrations.rounds import Rounds


def checkpoint(round: int) -> Checkpoint:
    model = {
        "z": np.full((3, 2), round, np.float32).T,
        "a": np.array(round),
        "half": np.ones(2, "f2"),
    }
    return Checkpoint(round, model, Memory(0.7), {"eve": {"times": round, "why": "NaN"}})


def test_what_is_saved_is_found(tmp_path: Path):
    for round in range(1, 5):
        checkpoint(round).save(tmp_path / "run")
    assert sorted(os.listdir(tmp_path / "run")) == ["round-000003", "round-000004"]
    found = latest(tmp_path / "run")
    assert found is not None
    assert (found.round, found.memory.decay) == (4, 0.7)
    assert found.rejections == {"eve": {"times": 4, "why": "NaN"}}
    expected = checkpoint(4).model
    assert list(found.model) == list(expected)
    for name, tensor in expected.items():
        np.testing.assert_array_equal(found.model[name], tensor)
        assert found.model[name].dtype == tensor.dtype


def test_nothing_there_yet(tmp_path: Path):
    assert latest(tmp_path / "new") is None
    (tmp_path / "file").write_text("x")
    with pytest.raises(CheckpointError, match="a file, expected a folder"):
        latest(tmp_path / "file")


@pytest.mark.parametrize("file", ["model.safetensors", "memory.npz", "state.json"])
def test_damage_is_named_and_left_alone(tmp_path: Path, file: str):
    checkpoint(1).save(tmp_path)
    checkpoint(2).save(tmp_path)
    damaged = tmp_path / "round-000002" / file
    damaged.write_bytes(damaged.read_bytes()[:20])
    with pytest.raises(CheckpointError, match=r"round-000002: not a .*remove it .* round-000001"):
        latest(tmp_path)
    assert damaged.stat().st_size == 20


def test_the_same_round_again_replaces_the_first(tmp_path: Path):
    checkpoint(1).save(tmp_path)
    again = checkpoint(1)
    again.model["z"] = np.full((2, 3), 9.0, np.float32)
    again.save(tmp_path)
    found = latest(tmp_path)
    assert found is not None
    assert found.model["z"].max() == 9.0
    assert os.listdir(tmp_path) == ["round-000001"]


def test_a_disk_that_cannot_be_written_does_not_end_the_run(tmp_path: Path, caplog):
    (tmp_path / "file").write_text("in the way")
    rounds = Rounds(checkpoint=tmp_path / "file" / "run", record=tmp_path / "none" / "run.jsonl")
    ended = rounds.close(1, {str(j): {"x": np.ones(3)} for j in range(3)}, {"x": np.zeros(3)})
    np.testing.assert_allclose(ended.model["x"], 1.0)
    assert "no checkpoint of round 1" in caplog.text
    assert "round 1 is missing in the record" in caplog.text
