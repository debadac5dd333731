"""`kill -9` of a Flower server with a checkpoint and a record, at moments that a seed decides.

CONSILIENCE_KILLS=100 pytest tests/hostile/test_server_kills.py
"""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import numpy as np
import pytest

import flower_server
from consilience.integrations import checkpoint
from consilience.record import Record, lines

KILLS = int(os.environ.get("CONSILIENCE_KILLS", "10"))


class Server:
    """Starts one server after another on the same folder."""

    def __init__(self, stdin: IO[str], stdout: IO[str]) -> None:
        self.stdin, self.stdout = stdin, stdout

    def run(self, rounds: int, step: int = 0, seconds: float = 0) -> list[int]:
        """Run a server to a round or until it is killed; return the rounds that it said ended."""
        self.stdin.write(f"{rounds} {step} {seconds}\n")
        self.stdin.flush()
        said = []
        while not (line := self.stdout.readline()).startswith("over"):
            assert line, "the servers' parent has died"
            said.append(int(line))
        expected = -signal.SIGKILL if step or seconds else 0
        assert line == f"over {expected}\n"
        return said


@contextmanager
def servers(folder: Path) -> Iterator[Server]:
    command = [sys.executable, flower_server.__file__, str(folder)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, **pipes, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield Server(process.stdin, process.stdout)
        finally:
            process.kill()


def check_checkpoint(folder: Path) -> int:
    """Return the round of the last checkpoint, which holds as many rounds as it says."""
    found = checkpoint.latest(folder / "run")
    if found is None:
        return 0
    for kept in (folder / "run").glob("round-*"):
        assert checkpoint._read(kept).round == int(kept.name[6:])
    assert found.memory.rounds == found.round
    assert found.rejections["1015"]["times"] == found.round
    assert found.names == flower_server.NAMES
    assert float(found.model["weight"].mean()) == pytest.approx(found.round, abs=0.3)
    return found.round


def check_record(folder: Path, last: int) -> None:
    """None is missing and none is read twice; one round more than the checkpoint's may be there."""
    path = folder / "run.jsonl"
    if not path.exists() or not path.stat().st_size:
        assert last == 0
        return
    rounds = [round.round for round in Record.read(path)]
    assert rounds == list(range(1, rounds[-1] + 1))
    assert rounds[-1] in (last, last + 1)
    written = np.diff([line["round"] for line in lines(path)[0]], prepend=1)
    assert set(written) <= {0, 1}


@pytest.mark.integration
@pytest.mark.skipif(not hasattr(os, "fork"), reason="each server is a fork")
def test_a_killed_server_goes_on_and_nothing_is_lost(tmp_path: Path):
    random = np.random.default_rng(0)
    last = 0
    with servers(tmp_path) as server:
        for kill in range(KILLS):
            if kill % 2:
                said = server.run(10**6, seconds=random.uniform(0.001, 0.5))
            else:
                said = server.run(10**6, step=int(random.integers(1, 160)))
            # The first is what the run begins with, from the next round on.
            assert said == list(range(last, last + len(said)))
            ended = said[-1] if said else last
            last = check_checkpoint(tmp_path)
            assert last in (ended, ended + 1)
            check_record(tmp_path, last)
        said = server.run(last + 3)
    assert said == list(range(last, last + 4))
    assert check_checkpoint(tmp_path) == last + 3
    check_record(tmp_path, last + 3)
    kept = [f"round-{round:06d}" for round in (last + 2, last + 3)]
    assert sorted(os.listdir(tmp_path / "run")) == kept
    assert os.listdir(tmp_path / "spool") == []
