"""Checkpoints: whole or not there, whatever happens meanwhile."""

import os
import subprocess
import sys
import time
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


ENDLESS = """
import sys
import numpy as np
from consilience.integrations.rounds import Rounds

model = {"x": np.zeros(20_000, np.float32)}
rounds = Rounds(checkpoint=sys.argv[1] + "/run", record=sys.argv[1] + "/run.jsonl", step=1.0)
found = rounds.resume(model)
number, model = (found.round, found.model) if found else (0, model)
while True:
    number += 1
    draw = np.random.default_rng(number)
    sent = {str(j): {"x": (1 + draw.standard_normal(20_000) / 10).astype("f4")} for j in range(4)}
    model = rounds.close(number, {**sent, "eve": {"x": np.full(20_000, np.nan, "f4")}}, model).model
    print(number, flush=True)
"""


@pytest.mark.integration
def test_a_kill_at_any_moment_loses_at_most_the_round_at_hand(tmp_path: Path):
    said = 0
    for attempt in range(5):
        process = subprocess.Popen(
            [sys.executable, "-c", ENDLESS, tmp_path], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        first = int(process.stdout.readline())
        assert first in (said + 1, said + 2)  # what was killed before it could be said was kept
        time.sleep(0.05 + 0.037 * attempt)
        process.kill()
        rest = process.stdout.read().split()
        process.stdout.close()
        process.wait(30)
        said = int(rest[-1]) if rest else first
        found = latest(tmp_path / "run")
        assert found is not None
        assert found.round in (said, said + 1)
        assert found.memory.rounds == found.round
        assert found.rejections["eve"]["times"] == found.round
        # As many steps of one as there were rounds: none was lost, none was made twice.
        assert float(found.model["x"].mean()) == pytest.approx(found.round, rel=0.01)


def test_a_disk_that_cannot_be_written_does_not_end_the_run(tmp_path: Path, caplog):
    (tmp_path / "file").write_text("in the way")
    rounds = Rounds(checkpoint=tmp_path / "file" / "run", record=tmp_path / "none" / "run.jsonl")
    ended = rounds.close(1, {str(j): {"x": np.ones(3)} for j in range(3)}, {"x": np.zeros(3)})
    np.testing.assert_allclose(ended.model["x"], 1.0)
    assert "no checkpoint of round 1" in caplog.text
    assert "round 1 is missing in the record" in caplog.text
