"""The whole path on a few kilobytes: fetch, train, attack, aggregate, tabulate, plot."""

import json
import pickle
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

from consilience.cli.commands import app
from consilience.lab import reproduce, runner, shakespeare
from consilience.lab.experiments import (
    DRAWN,
    FULL,
    METHODS,
    Scale,
    mnist_sgd,
    random_local,
    text_sgd,
)
from consilience.lab.figures import lines, save, spaced
from consilience.lab.tables import best, compared, difference, last, sampling_error, spread, where

SOME = ("Uniform average", "Geometric median", "IVAR-VB", "Pairwise", "ICOV-VB, joint")
TINY = Scale(
    "tiny",
    methods={label: METHODS[label] for label in SOME},
    seeds=dict.fromkeys(reproduce.EXPERIMENTS, 1),
    regression_rounds=2,
    mnist_rounds=2,
    shakespeare_rounds=2,
    hidden=4,
    random_local_rounds=2,
    one_round_adversaries=(0, 5, 10),
)


@pytest.fixture
def tiny_data(tiny_mnist: None, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    words = ["to be or not to be\n", "that is the question\n", "whether tis nobler\n"]
    roles = {f"Play {j:02}/ROLE": "".join(rng.choice(words, 80 + j)) for j in range(15)}
    monkeypatch.setattr(shakespeare, "load", lambda minimum=0: roles)
    monkeypatch.setattr(text_sgd, "TEST_WINDOWS", 5)
    mnist_sgd._data.cache_clear()
    text_sgd.data.cache_clear()
    yield
    mnist_sgd._data.cache_clear()
    text_sgd.data.cache_clear()


@pytest.fixture
def quiet() -> Console:
    return Console(quiet=True)


@pytest.mark.usefixtures("tiny_data")
def test_everything_is_run_drawn_and_tabulated(tmp_path: Path, quiet: Console) -> None:
    out = tmp_path / "out"
    page = reproduce.reproduce("all", TINY, None, out, quiet).read_text()
    for name in ("fig1", "one-round", "one-round-convergence", "fig2", "fig3", "random-local"):
        assert f"figures/{name}.svg" in page
        assert (out / "figures" / f"{name}.svg").read_text().startswith("<?xml")
        assert (out / "figures" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    for label in SOME:
        # Table 1, a table per figure, two of Figure 1, and two of random local updates.
        assert page.count(f"| {label} |") == (8 if label in random_local.LINE_UP else 6)
    cells = [json.loads(line) for line in (out / "cells.jsonl").read_text().splitlines()]
    assert len([c for c in cells if c["experiment"] == "fig2"]) == 3 * len(SOME)
    (one_round,) = [c["records"] for c in cells if c["experiment"] == "one-round"]
    ends = {r["method"]: r["accuracy"] for r in one_round if r["R"] == 10 and "iteration" not in r}
    # Told nothing, IVAR-VB knows the bars among 10 random adversaries; the mean does not.
    assert ends["IVAR-VB"] > 0.9 > ends["Uniform average"]


def _tables(page: str) -> dict[str, list[str]]:
    """Return the tables of each section of a page."""
    sections = re.findall(r"^## (.*)\n((?:(?!## ).*\n?)*)", page, re.MULTILINE)
    return {name: re.findall(r"(?:^\|.*\n?)+", body, re.MULTILINE) for name, body in sections}


def test_the_tables_of_the_docs_are_those_of_the_data() -> None:
    docs = Path(__file__).parents[2] / "docs"
    cells = map(json.loads, (docs / "data" / "reproduction.jsonl").read_text().splitlines())
    records: dict[str, list[runner.Row]] = {name: [] for name in reproduce.EXPERIMENTS}
    for cell in cells:
        told = [{**cell["settings"], **record} for record in cell["records"]]
        records[cell["experiment"]] += told
    made = _tables(reproduce.write_page(records, FULL))
    shown = _tables((docs / "results.md").read_text())
    assert len(made) == 6
    for name, tables in made.items():
        assert [t.strip() for t in tables] == [t.strip() for t in shown[name][: len(tables)]], name


@pytest.mark.usefixtures("tiny_data")
def test_cells_finished_elsewhere_are_not_run_again(
    tmp_path: Path, quiet: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = replace(TINY, methods={"Uniform average": "mean", "IVAR-MLE": "ivar-mle"}, mnist_rounds=2)
    here, there = tmp_path / "here", tmp_path / "there"
    reproduce.reproduce("fig1", few, None, there, quiet)
    ran: list[str] = []
    run = runner.store
    monkeypatch.setattr(runner, "store", lambda c, *rest: (ran.append(c.experiment), run(c, *rest)))
    page = reproduce.reproduce("fig2", few, None, here, quiet, there / "cells.jsonl").read_text()
    assert set(ran) == {"fig2"}
    assert "Figure 1" in page
    assert len((here / "cells.jsonl").read_text().splitlines()) == 6 + 6
    reproduce.reproduce("fig1", few, None, here, quiet)
    again = reproduce.reproduce("page", few, None, tmp_path / "x", quiet, here / "cells.jsonl")
    assert set(ran) == {"fig2"}
    assert again.read_text() == page


@pytest.mark.usefixtures("tiny_data")
def test_a_finished_cell_is_not_run_again_and_a_broken_one_is(
    tmp_path: Path, quiet: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    cells = reproduce.cells("fig1", TINY)[:3]
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
    cells = [c for c in reproduce.cells("fig2", TINY, 2) if c.settings["method"] == "IVAR-VB"]
    first = runner.complete(cells, tmp_path / "a", quiet)
    assert runner.complete(cells, tmp_path / "b", quiet) == first
    by_seed = [[r["accuracy"] for r in first if r["seed"] == seed] for seed in (0, 1)]
    assert by_seed[0] != by_seed[1]


def test_cells_can_run_in_processes_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = []

    def complete(cells: list[runner.Cell], folder: Path, console: Console, workers: int) -> None:
        sent.extend(pickle.dumps(cell) for cell in cells)
        assert workers == 2

    monkeypatch.setattr(reproduce, "complete", complete)
    command = ["reproduce", "all", "--full", "--workers", "2", "--out", str(tmp_path)]
    found = CliRunner().invoke(app, command)
    assert found.exit_code == 0, found.output
    assert len(sent) == len(reproduce.cells("all", FULL))


def test_table1_needs_only_its_own_cells() -> None:
    found = {(c.experiment, c.settings.get("R")) for c in reproduce.cells("table1", TINY)}
    assert found == {("fig1", None), ("one-round", None), ("fig3", 5)}


def test_last_takes_each_seeds_last_round() -> None:
    records = [
        {"seed": seed, "round": round, "value": 10 * seed + round}
        for seed in (0, 1)
        for round in (0, 5, 3)
    ]
    assert last(records, "value") == {0: 5, 1: 15}
    assert where(records, seed=1, round=3) == [{"seed": 1, "round": 3, "value": 13}]
    assert spread([5.0, 15.0], 1) == "10.0 ± 5.0"


def test_differences_are_paired_by_seed() -> None:
    # Seeds differ by far more than the methods do, and the order they finished in says nothing.
    first = {seed: 10.0 * seed for seed in range(5)}
    second = {seed: 10.0 * seed + 1 + 0.01 * seed for seed in reversed(range(5))}
    found = difference(second, first)
    assert found.mean == pytest.approx(1.02)
    assert found.error == pytest.approx(0.01 * np.std(range(5), ddof=1) / np.sqrt(5))
    assert not found.tie
    assert difference(second, {7: 1.0}).tie is False  # no seed in common: nothing to say
    assert compared(second, first, None) == "21.020 (+1.020 ± 0.007)"
    assert compared(first, first, None) == "20.000"


def test_what_is_within_chance_is_a_tie() -> None:
    noisy = {"a": {0: 0.90, 1: 0.92, 2: 0.94}, "b": {0: 0.93, 1: 0.90, 2: 0.95}}
    assert difference(noisy["a"], noisy["b"]).tie
    assert best(noisy, lower=False) == {"a", "b"}
    steady = {"a": {0: 0.900, 1: 0.920}, "b": {0: 0.902, 1: 0.922}, "c": {0: 0.95, 1: 0.97}}
    assert best(steady, lower=False) == {"c"}
    assert best(steady, lower=True) == {"a"}
    assert best({"a": {0: 2.0, 1: 3.0}, "b": {0: 2.0001, 1: 3.0001}}, lower=True) == {"a", "b"}
    # All seeds share one test set, so its own error does not show in their spread.
    assert sampling_error(0.9, 10_000) == pytest.approx(0.003)
    assert best(steady, lower=True, size=10_000) == {"a", "b"}
    assert compared(steady["b"], steady["a"], 10_000) == "0.912 (=)"


def test_figures_draw_no_more_than_can_be_told_apart() -> None:
    records = [
        {"panel": "full", "method": label, "seed": 0, "round": round, "distance": 1.0}
        for label in METHODS
        for round in (0, 1)
    ]
    (axis,) = reproduce.linear.figures(records)["fig1"].axes  # the other panels are not finished
    drawn = {line.get_label() for line in axis.lines if line.get_label()[0] != "_"}
    assert drawn == set(DRAWN)


def test_names_at_the_ends_of_lines_do_not_overlap() -> None:
    assert spaced(np.array([0.1, 0.5, 0.9]), 0.1).tolist() == pytest.approx([0.1, 0.5, 0.9])
    assert spaced(np.array([0.5, 0.5, 0.9]), 0.1).tolist() == pytest.approx([0.45, 0.55, 0.9])
    assert spaced(np.array([0.5, 0.5, 0.58]), 0.1).tolist() == pytest.approx(
        [0.427, 0.527, 0.627], abs=1e-3
    )
    assert spaced(np.array([]), 0.1).size == 0


def test_a_figure_is_dark_where_the_screen_is(tmp_path: Path) -> None:
    records = [{"R": 0, "method": label, "x": x, "y": 1.0} for label in DRAWN for x in (0, 1)]
    save(lines(records, "x", "y", "x", "y"), tmp_path, "some")
    text = (tmp_path / "some.svg").read_text()
    assert "prefers-color-scheme: dark" in text
    for colour in ("stroke: #000000", "fill: #ffffff"):  # what the dark form changes is there
        assert text.count(colour) > 1
    save(lines(records, "x", "y", "x", "y"), tmp_path, "some")
    assert (tmp_path / "some.svg").read_text() == text
