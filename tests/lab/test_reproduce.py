"""The whole path on a few kilobytes: fetch, train, attack, aggregate, tabulate, plot."""

import json
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from consilience.lab import reproduce, runner, shakespeare
from consilience.lab.experiments import METHODS, Scale, mnist_sgd, text_sgd
from consilience.lab.tables import last, spread, where

TINY = Scale(
    "tiny",
    seeds=1,
    regression_rounds=4,
    mnist_rounds=12,
    shakespeare_rounds=2,
    hidden=4,
    one_round_adversaries=(0, 5, 10),
)


@pytest.fixture
def tiny_data(tiny_mnist: None, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    words = ["to be or not to be\n", "that is the question\n", "whether tis nobler\n"]
    roles = {f"Play/ROLE {j:02}": "".join(rng.choice(words, 20 + j)) for j in range(15)}
    monkeypatch.setattr(shakespeare, "load", lambda minimum=0: roles)
    mnist_sgd._data.cache_clear()
    text_sgd._data.cache_clear()
    yield
    mnist_sgd._data.cache_clear()
    text_sgd._data.cache_clear()


@pytest.fixture
def quiet() -> Console:
    return Console(quiet=True)


@pytest.mark.usefixtures("tiny_data")
def test_everything_is_run_drawn_and_tabulated(tmp_path: Path, quiet: Console) -> None:
    out = tmp_path / "out"
    page = reproduce.reproduce("all", TINY, 1, out, quiet).read_text()
    for name in ("fig1", "one-round", "one-round-convergence", "fig2", "fig3", "fig3-random-local"):
        assert f"figures/{name}.svg" in page
        assert (out / "figures" / f"{name}.svg").read_text().startswith("<?xml")
        assert (out / "figures" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    for label in METHODS:
        assert page.count(f"| {label} |") == 6  # Table 1, and one table per figure and attack
    summary = json.loads((out / "summary.json").read_text())
    ends = {(r["experiment"], r["R"], r["method"]): r["accuracy"][0] for r in summary if "R" in r}
    assert len([key for key in ends if key[0] == "fig2"]) == 3 * len(METHODS)
    # Told nothing, IVAR-VB knows the bars among 10 random adversaries; the mean does not.
    assert ends["one-round", 10, "IVAR-VB"] > 0.9 > ends["one-round", 10, "Uniform average"]


@pytest.mark.usefixtures("tiny_data")
def test_a_finished_cell_is_not_run_again_and_a_broken_one_is(
    tmp_path: Path, quiet: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    cells = reproduce.cells("fig1", TINY, 1)[:3]
    first = runner.complete(cells, tmp_path, quiet)
    written = {cell.name: cell.file(tmp_path).stat().st_mtime_ns for cell in cells}
    cells[1].file(tmp_path).write_text('{"version": 1, "settings"')
    again = runner.complete(cells, tmp_path, quiet)
    assert again == first
    changed = [c.name for c in cells if c.file(tmp_path).stat().st_mtime_ns != written[c.name]]
    assert changed == [cells[1].name]


def test_an_interrupted_run_keeps_what_is_finished(tmp_path: Path, quiet: Console) -> None:
    def interrupted(tick: runner.Tick) -> list[runner.Row]:
        raise KeyboardInterrupt

    done = runner.Cell("x", {"seed": 0}, lambda tick: [{"value": 1.5}])
    cut = runner.Cell("x", {"seed": 1}, interrupted)
    with pytest.raises(KeyboardInterrupt):
        runner.complete([done, cut], tmp_path, quiet)
    assert runner.load(done, tmp_path) == [{"seed": 0, "value": 1.5}]
    assert runner.load(cut, tmp_path) is None


@pytest.mark.usefixtures("tiny_data")
def test_seeds_make_a_run_repeatable_and_differ(tmp_path: Path, quiet: Console) -> None:
    cells = [c for c in reproduce.cells("fig2", TINY, 2) if c.settings["method"] == "ICOV-VB"]
    first = runner.complete(cells, tmp_path / "a", quiet)
    assert runner.complete(cells, tmp_path / "b", quiet) == first
    by_seed = [[r["accuracy"] for r in first if r["seed"] == seed] for seed in (0, 1)]
    assert by_seed[0] != by_seed[1]


def test_table1_needs_only_its_own_cells() -> None:
    found = {(c.experiment, c.settings.get("R")) for c in reproduce.cells("table1", TINY, 1)}
    assert found == {("fig1", None), ("one-round", None), ("fig3", 5)}


def test_last_takes_each_seeds_last_round() -> None:
    records = [
        {"seed": seed, "round": round, "value": 10 * seed + round}
        for seed in (0, 1)
        for round in (0, 5, 3)
    ]
    assert last(records, "value") == [5, 15]
    assert where(records, seed=1, round=3) == [{"seed": 1, "round": 3, "value": 13}]
    assert spread([5.0, 15.0], 1) == "10.0 ± 7.1"
