"""What docs/flower.md and the example's README tell people to type, as it stands there.

Of the example's README the ``sh`` blocks are run. Its ``bash`` blocks are not: they install
something, or take Ray, or several machines.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import LocalDpMod

import warm
from consilience.record import Record
from deployment import listening
from documented import blocks, indented
from flower_local import LocalGrid, honest, in_a_run

ROOT = Path(__file__).parents[2]
PAGE, EXAMPLE = ROOT / "docs" / "flower.md", ROOT / "examples" / "flower"
BIN = Path(sys.executable).parent


@pytest.mark.integration
@pytest.mark.skipif(listening("127.0.0.1:8000"), reason="something else listens on port 8000")
def test_the_commands_of_the_example(tmp_path: Path):
    with warm.commands() as commands:
        the_commands_of_the_example(tmp_path, commands)


def the_commands_of_the_example(tmp_path: Path, commands: Path) -> None:
    here = shutil.copytree(EXAMPLE, tmp_path / "example")
    environment = {
        **os.environ,
        "PATH": os.pathsep.join([str(commands), str(BIN), os.environ["PATH"]]),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "PYTHONWARNINGS": "ignore",
        "no_proxy": "*",
    }
    with open(tmp_path / "log", "wb") as log:
        shell = subprocess.Popen(
            ["bash", "-euc", "\n".join(blocks(EXAMPLE / "README.md", "sh"))],
            env=environment,
            cwd=here,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = shell.wait(300)
        finally:
            os.killpg(shell.pid, signal.SIGKILL)  # the SuperLink and its nodes
    said = (tmp_path / "log").read_text(errors="replace")
    assert code == 0, said[-5000:]
    assert re.search(r"accuracy after round 2: 0\.8\d", said)
    record = Record.read(here / "run.jsonl")
    assert [round.round for round in record] == [1, 2]
    assert {"4", "5"} <= set(record[-1].reasons)
    assert (here / "report.html").exists()


class Model:
    """Whatever has a state dict."""

    def state_dict(self) -> Any:
        torch = pytest.importorskip("torch")
        return {"weight": torch.zeros(30, 20), "bias": torch.zeros(20)}


def test_the_pieces_of_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """With the names that the text around them takes for granted."""
    from nvflare.app_common.ccwf.ccwf_job import CCWFJob, SwarmClientConfig, SwarmServerConfig
    from nvflare.app_common.ccwf.comps.np_file_model_persistor import NPFileModelPersistor
    from nvflare.app_common.ccwf.comps.simple_model_shareable_generator import (
        SimpleModelShareableGenerator,
    )
    from nvflare.app_common.np.recipes.fedavg import NumpyFedAvgRecipe
    from nvflare.job_config.script_runner import FrameworkType, ScriptRunner

    from consilience.integrations.nvflare import ConsilienceAggregator

    in_a_run(monkeypatch.setattr)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "client.py").write_text("")
    np.save(tmp_path / "start.npy", np.zeros(3))
    known = {
        "grid": LocalGrid({node: honest(node) for node in range(10)}),
        "model": Model(),
        "recipe": NumpyFedAvgRecipe(model=[0.0], min_clients=2, train_script="client.py"),
    }
    for one in (
        *(ArrayRecord, ClientApp, LocalDpMod, CCWFJob, SwarmClientConfig, SwarmServerConfig),
        *(NPFileModelPersistor, SimpleModelShareableGenerator, FrameworkType, ScriptRunner),
        ConsilienceAggregator,
    ):
        known[one.__name__] = one
    pieces = blocks(PAGE, "python")
    assert len(pieces) >= 5
    for piece in pieces:
        exec(piece.replace("/data/", f"{tmp_path}/"), known)
    assert len(Record.read(tmp_path / "run.jsonl")) == 20


@pytest.mark.integration
def test_the_benchmarks_take_what_they_are_said_to_take():
    """They run for hours: here they are asked for help, after the words that were given."""
    commands = [line for line in indented(PAGE) if line.startswith("python -m benchmarks.")]
    assert len(commands) >= 7
    asked = "import runpy, sys\n" + "\n".join(
        f"sys.argv = {words[2:]!r} + ['--help']\n"
        f"try: runpy.run_module({words[2]!r}, run_name='__main__')\n"
        f"except SystemExit as end: assert end.code == 0, {words!r}"
        for words in (command.split() for command in commands)
    )
    done = subprocess.run(
        [sys.executable, "-c", asked], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr[-2000:]
