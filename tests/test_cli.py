"""The command line as a person meets it, mistakes included."""

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import consilience as cs
from consilience.cli import app


def run(*words: str) -> tuple[int, str]:
    found = CliRunner().invoke(app, list(words))
    return found.exit_code, found.output


def test_it_says_its_version_and_methods():
    assert run("--version") == (0, f"consilience {cs.__version__}\n")
    assert run("methods") == (0, "\n".join(cs.methods()) + "\n")


@pytest.mark.parametrize("figure", ["nowhere/at/all.png", "figure.doc"])
def test_a_figure_that_cannot_be_written_is_told_before_any_work(figure):
    code, output = run("demo", "--figure", figure)
    assert code == 2
    assert figure in output.replace("\n", "")


def test_an_unknown_experiment_is_told_the_choices():
    code, output = run("reproduce", "fig9")
    assert code == 2
    assert "fig9" in output
    assert "one-round" in output


@pytest.mark.parametrize("missing", ["torch", "matplotlib"])
def test_a_missing_extra_is_named(missing):
    script = (
        f"import sys; sys.modules['{missing}'] = None\n"
        "from consilience.cli import app\n"
        "app(['reproduce', 'fig1'])"
    )
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert found.returncode == 2
    assert "consilience[lab]" in found.stderr.replace("\n", "")
    assert "Traceback" not in found.stderr


@pytest.mark.integration
def test_the_demo_on_real_mnist(tmp_path: Path):
    command = Path(sys.executable).with_name("consilience")
    figure = tmp_path / "demo.png"
    found = subprocess.run(
        [command, "demo", "--figure", figure], capture_output=True, text=True, timeout=600
    )
    assert found.returncode == 0, found.stderr
    accuracy = {
        cells[1].strip(): float(cells[2])
        for line in found.stdout.splitlines()
        if (cells := line.split("│"))[1:2] and len(cells) == 4
    }
    assert accuracy["ivar-vb"] > 0.9
    assert accuracy["ivar-vb"] > accuracy["mean"] + 0.2
    assert figure.read_bytes().startswith(b"\x89PNG")
