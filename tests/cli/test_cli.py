"""The command line as a person meets it, mistakes included."""

import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

import consilience as cs
from consilience.cli.commands import app
from consilience.lab import demo, softmax
from consilience.passes import loops


def run(*words: str) -> tuple[int, str]:
    found = CliRunner().invoke(app, list(words))
    return found.exit_code, found.output


def test_it_says_its_version_and_methods():
    assert run("--version") == (0, f"consilience {cs.__version__}, {loops.described()}\n")
    code, said = run("methods")
    assert code == 0
    assert tuple(line.split()[0] for line in said.splitlines()) == cs.methods()
    assert all(20 < len(line) <= 80 for line in said.splitlines())


@pytest.mark.parametrize("figure", ["nowhere/at/all.png", "figure.doc"])
def test_a_figure_that_cannot_be_written_is_told_before_any_work(figure):
    code, output = run("demo", "--figure", figure)
    assert code == 2
    assert figure in output.replace("\n", "")
    code, output = run("demo", "--page", figure)
    assert code == 2
    assert figure in output.replace("\n", "")


def test_an_unknown_experiment_is_told_the_choices():
    code, output = run("reproduce", "fig9")
    assert code == 2
    assert "fig9" in output
    assert "one-round" in output


def test_a_file_of_cells_that_is_none_is_named(tmp_path):
    file = tmp_path / "cells.jsonl"
    file.write_text("hello\n")
    code, output = run("reproduce", "page", "--from", str(file), "--out", str(tmp_path / "out"))
    assert code == 2
    assert "line 1: expected a finished cell" in " ".join(output.split())


@pytest.mark.parametrize("missing", ["torch", "matplotlib"])
def test_a_missing_extra_is_named(missing):
    script = (
        f"import sys; sys.modules['{missing}'] = None\n"
        "from consilience.cli.commands import app\n"
        "app(['reproduce', 'fig1'])"
    )
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert found.returncode == 2
    assert "consilience[lab]" in found.stderr.replace("\n", "")
    assert "Traceback" not in found.stderr


# It says "!" when the package begins to be imported: from then on the command handles a Ctrl-C.
# What comes before is Python's own start.
COMMAND = """
import os, signal, sys
import consilience_command

class Begun:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "consilience":
            os.write(1, b"!")

signal.signal(signal.SIGINT, eval(sys.argv.pop(1)))
sys.meta_path.insert(0, Begun)
consilience_command.main()
"""


def interrupted(handler: str, seconds: float, *words: str) -> tuple[int, bytes]:
    """Return how a command ends that gets a Ctrl-C so many seconds after its start."""
    found = subprocess.Popen(
        [sys.executable, "-c", COMMAND, handler, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    with found:
        found.stdout.read(1)
        time.sleep(seconds)
        found.send_signal(signal.SIGINT)
        return found.wait(120), found.stderr.read()


@pytest.mark.integration
@pytest.mark.parametrize("seconds", [0.005, 0.05, 0.15, 0.3, 0.6])
def test_cancelled_at_any_moment_it_says_130_and_nothing_else(tmp_path: Path, seconds):
    words = ["watch", str(tmp_path / "run.jsonl")]
    assert interrupted("signal.default_int_handler", seconds, *words) == (130, b"")


@pytest.mark.integration
def test_in_the_background_it_is_not_cancelled():
    assert interrupted("signal.SIG_IGN", 0.05, "methods") == (0, b"")


def test_the_command_is_the_one_that_can_be_cancelled():
    project = tomllib.loads(Path(__file__).parents[2].joinpath("pyproject.toml").read_text())
    assert project["project"]["scripts"] == {"consilience": "consilience_command:main"}


def test_python_runs_the_package_as_the_command():
    words = [sys.executable, "-m", "consilience", "--version"]
    found = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert (found.returncode, found.stderr) == (0, "")
    assert cs.__version__ in found.stdout


@pytest.mark.integration
def test_the_intruder_fails_where_hospitals_differ_more(monkeypatch: pytest.MonkeyPatch):
    """Else errors that last because data differ are taken for settled ones, and 28 % succeed."""
    monkeypatch.delenv("CONSILIENCE_CACHE", raising=False)  # the user's: one download is enough
    softmax.digits.cache_clear()
    softmax.shard.cache_clear()
    run = demo.federate(demo.gather(1, 0.5), ("pairwise",), 1)["pairwise"]
    softmax.digits.cache_clear()
    softmax.shard.cache_clear()
    assert run.success[-1] < 0.05
    assert run.accuracy[-1] > 0.85


@pytest.mark.integration
def test_the_demo_on_real_mnist(tmp_path: Path):
    command = Path(sys.executable).with_name("consilience")
    figure, page = tmp_path / "demo.png", tmp_path / "demo.html"
    found = subprocess.run(
        [command, "demo", "--figure", figure, "--page", page],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert found.returncode == 0, found.stderr
    rows = [[cell.strip() for cell in line.split("│")] for line in found.stdout.splitlines()]
    end = {row[1]: (float(row[2]), row[3]) for row in rows if len(row) == 5 and row[3][-1:] == "%"}
    accuracy, success = end["pairwise"]
    assert accuracy > end["hospitals alone"][0] - 0.01
    assert accuracy > end["mean"][0] + 0.03
    assert success in ("0%", "1%", "2%")
    assert int(end["mean"][1][:-1]) > 50  # the backdoor works where nobody is judged
    believed = {row[1]: row for row in rows if len(row) == 6}
    assert "nan at position 0" in " ".join(row[4] for row in rows[-12:] if len(row) == 6)
    assert all(float(believed[party][3]) < 0.03 for party in demo.OTHERS)
    assert "consilience merge" in found.stdout  # what to do next
    assert figure.read_bytes().startswith(b"\x89PNG")
    assert "hospital A" in page.read_text("utf-8")
