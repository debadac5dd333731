"""The robustness benchmark on a few pictures: data, cells, page, heat maps, command line."""

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

from consilience.cli.commands import app
from consilience.lab import runner
from consilience.lab.attacks import SUITE
from consilience.lab.experiments import robustness as cells_of
from consilience.lab.experiments.lineup import Seen
from consilience.lab.experiments.pictures import Pictures, adversary, forget, shards
from consilience.lab.experiments.robustness import PLANS, PROTOCOLS, Plan
from consilience.lab.robustness import bench, summary
from consilience.lab.tables import where
from consilience.passes.parallel import cores
from parallel import fail, work

TINY = Plan(
    "mlp",
    ("mean", "byzfl-trmean"),
    ("none", "gaussian", "loud"),
    ("iid", "one-class"),
    adversaries=(4,),
    momentum=(0.0,),
    rounds=25,
    seeds=1,
)
QUIET = Console(quiet=True)


@pytest.fixture(autouse=True)
def _few(tiny_mnist: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    suite = {"gaussian": ("gaussian", {}), "loud": ("gaussian", {"scale": 30.0})}
    monkeypatch.setattr(cells_of, "SUITE", suite)
    forget()
    yield
    forget()


def test_a_run_from_pictures_to_page(tmp_path: Path) -> None:
    page = bench(TINY, tmp_path, QUIET).read_text()
    rows = json.loads((tmp_path / "summary.json").read_text())
    assert len(rows) == 2 * (1 + 2 * 3)  # oracle, and methods by attacks, for each heterogeneity

    def below(**settings: str) -> float:
        (row,) = where(rows, **settings)
        return float(row["below"])

    # Told of four, the trimmed mean learns among four loud adversaries; the mean does not.
    assert where(rows, method="oracle", heterogeneity="iid")[0]["final"] > 0.9
    assert below(method="mean", attack="loud", heterogeneity="iid") < -10
    assert below(method="byzfl-trmean", attack="loud", heterogeneity="iid") > -5
    # Without an attack, the mean is the oracle, and trimming costs where parties differ.
    assert below(method="mean", attack="none", heterogeneity="one-class") == 0
    assert below(method="byzfl-trmean", attack="none", heterogeneity="one-class") < -5
    for method in TINY.methods:
        mine = [row for row in where(rows, method=method) if row["attack"] != "none"]
        worst = min(mine, key=lambda row: row["below"])
        where_ = f"{worst['attack']}, {worst['heterogeneity']} | {worst['final']:.3f}"
        assert f"| {method} | {worst['below']:+.1f} | {where_} |" in page
    name = "robustness-4-adversaries-momentum-0"
    assert f"figures/{name}.svg" in page
    assert (tmp_path / "figures" / f"{name}.png").read_bytes().startswith(b"\x89PNG")


def test_it_goes_on_where_it_was_and_the_page_keeps_what_was_there(tmp_path: Path) -> None:
    small = replace(TINY, heterogeneity=("iid",), rounds=3)
    bench(replace(small, methods=("mean",)), tmp_path, QUIET)
    written = {file: file.stat().st_mtime_ns for file in tmp_path.glob("cells/*/*.json")}
    assert len(written) == 4
    page = bench(replace(small, methods=("byzfl-trmean",)), tmp_path, QUIET).read_text()
    assert all(file.stat().st_mtime_ns == time for file, time in written.items())
    assert "| mean |" in page
    assert "| byzfl-trmean |" in page
    # Another number of rounds is another experiment.
    other = bench(replace(small, methods=("mean",), rounds=2), tmp_path, QUIET).read_text()
    assert "| byzfl-trmean |" not in other


def test_a_cell_keeps_distance_time_and_whom_it_trusts_least() -> None:
    plan = replace(TINY, methods=("geometric-median",), attacks=("loud",), heterogeneity=("iid",))
    oracle, attacked = (cell.run(lambda *_: None) for cell in cells_of.cells(plan))
    assert set(attacked[-1]["least_trusted"]) == {f"adversary{k}" for k in range(4)}
    assert attacked[-1]["distance"] > oracle[-1]["distance"] == 0
    assert attacked[-1]["seconds"] > 0
    assert attacked[-1]["best"] >= attacked[-1]["final"]
    assert oracle[-1]["least_trusted"] is None  # all alike
    assert len(attacked) <= 20


def test_honest_data_do_not_depend_on_the_adversaries() -> None:
    honest, test = shards(Pictures(), "dirichlet-1", 0)
    assert len(honest) == 10
    assert sum(len(shard.targets) for shard in honest.values()) == 150
    uneven, _ = shards(Pictures(), "dirichlet-0.1", 3)
    assert all(len(shard.targets) for shard in uneven.values())
    one_class, _ = shards(Pictures(), "one-class", 0)
    assert [set(shard.targets.tolist()) for shard in one_class.values()] == [{c} for c in range(10)]
    own = [adversary(Pictures(), 0, k) for k in range(2)]
    assert [len(shard.targets) for shard in own] == [15, 15]
    assert own[0].targets.tolist() != own[1].targets.tolist()
    assert (test.inputs.min(), test.inputs.max()) == (0, pytest.approx(0.98, abs=0.02))


def test_byzfls_protocol_normalises_and_keeps_a_fifth_aside() -> None:
    honest, test = shards(PROTOCOLS["byzfl"].pictures, "gamma-0", 0)
    assert sum(len(shard.targets) for shard in honest.values()) == 120
    assert float(test.inputs.min()) == pytest.approx(-0.1307 / 0.3081)
    plan = replace(PLANS["byzfl"], methods=("byzfl-nnm-trmean",), attacks=("gaussian",), rounds=1)
    found = cells_of.cells(replace(plan, adversaries=(1,)))[1].run(lambda *_: None)
    assert found[-1]["round"] == 1
    assert not found[-1]["broken"]


def test_a_broken_run_is_told() -> None:
    rows = summary(
        [
            {**settings, "final": final, "best": 0.9, "distance": None, "seconds": 1, "broken": b}
            for settings, final, b in (
                (_settings("oracle", "none", 0), 0.9, False),
                (_settings("mean", "nan", 4), 0.1, True),
            )
        ]
    )
    assert rows[1]["broken"] == 1
    assert rows[1]["below"] == -80
    assert rows[1]["distance"] is None


def _settings(method: str, attack: str, adversaries: int) -> dict[str, object]:
    where_ = {"heterogeneity": "iid", "adversaries": adversaries, "momentum": 0.9, "seed": 0}
    return {"method": method, "attack": attack, **where_, "least_trusted": None}


def test_trust_is_summed_over_rounds() -> None:
    seen = Seen(["party0", "party1"], ["adversary0"])
    for weights in ({"party0": 0.5, "party1": 0.1, "adversary0": 0.4},) * 2 + (
        {"party0": 0.5, "party1": 0.5, "adversary0": -0.9},
    ):
        seen(_Round(weights))
    assert seen.summary()["least_trusted"] == ["adversary0"]
    assert seen.summary()["distance"] == 0.25


class _Round:
    miss, seconds = 0.25, 0.1

    def __init__(self, weights: dict[str, float]) -> None:
        self.consensus = type("Consensus", (), {"weights": weights})


def test_cells_in_processes_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    monkeypatch.delenv("CONSILIENCE_THREADS", raising=False)
    cells = [runner.Cell("x", {"seed": k}, partial(work, k)) for k in range(4)]
    runner.store(cells[0], tmp_path)
    runner.complete(cells, tmp_path, QUIET, workers=2)
    records = [runner.load(cell, tmp_path)[0] for cell in cells]
    assert [record["value"] for record in records] == [0, 1, 2, 3]
    assert [record["process"] == os.getpid() for record in records] == [True, False, False, False]
    assert [record["threads"] for record in records] == [[2, cores()], [1, 1], [1, 1], [1, 1]]
    with pytest.raises(ValueError, match="this cell cannot be run"):
        runner.complete([runner.Cell("y", {}, fail)], tmp_path, QUIET, workers=2)


def test_the_command_line(tmp_path: Path) -> None:
    def run(*words: str) -> tuple[int, str]:
        found = CliRunner().invoke(app, ["bench", "robustness", "--out", str(tmp_path), *words])
        return found.exit_code, found.output.replace("\n", " ")

    chosen = "--methods mean --attacks none,loud --heterogeneity iid --adversaries 2,3 --momentum 0"
    code, output = run(*chosen.split(), "--rounds", "2", "--seeds", "2")
    assert code == 0, output
    rows = json.loads((tmp_path / "summary.json").read_text())
    assert {row["adversaries"] for row in rows} == {0, 2, 3}
    assert {row["seeds"] for row in rows} == {2}
    for words, complaint in (
        (["--methods", "meen"], "no method is called 'meen'"),
        (["--attacks", "lout"], "no attack is called 'lout'"),
        (["--heterogeneity", "dirichlet"], "no heterogeneity is called 'dirichlet'"),
        (["--adversaries", "12"], "expected 1 to 9"),
        (["--protocol", "other"], "choose from mlp, byzfl"),
    ):
        code, output = run("--methods", "mean", "--attacks", "none", *words)
        assert code == 2
        assert complaint in output


def test_seeds_repeat_a_cell_and_differ() -> None:
    plan = replace(TINY, methods=("byzfl-caf",), attacks=("gaussian",), heterogeneity=("iid",))
    first, other = [
        cell for cell in cells_of.cells(replace(plan, seeds=2, rounds=3)) if "caf" in cell.name
    ]
    runs = [cell.run(lambda *_: None) for cell in (first, first, other)]
    accuracy = [[record["accuracy"] for record in run] for run in runs]
    distance = [run[-1]["distance"] for run in runs]
    assert (accuracy[0], distance[0]) == (accuracy[1], distance[1])
    assert not np.isclose(distance[0], distance[2])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--adversaries", "four"], "--adversaries takes whole numbers"),
        (["--momentum", "2"], "momentum is 2, expected at least 0 and less than 1"),
        (["--attacks", "gaussian@3"], "only adaptive, alie-optimised, ipm-optimised take an @"),
        (["--attacks", "alie-best@3"], "no attack is called 'alie-best'"),
        (["--out", "FILE"], "a file, expected a folder"),
    ],
)
def test_mistakes_on_the_command_line_are_named(tmp_path, arguments, said):
    file = tmp_path / "notes.txt"
    file.write_text("mine")
    arguments = [str(file) if word == "FILE" else word for word in arguments]
    quick = ["bench", "robustness", "--quick", "--attacks", "gaussian"]
    found = CliRunner().invoke(app, [*quick, *arguments])
    assert found.exit_code == 2
    assert said in " ".join(found.stderr.split())
    assert file.read_text() == "mine"


@pytest.mark.parametrize("label", ["alie-optimised@", "alie-optimised@0", "adaptive@often"])
def test_how_often_to_search_is_a_number(monkeypatch, label):
    monkeypatch.setattr(cells_of, "SUITE", SUITE)
    with pytest.raises(ValueError, match="only adaptive, alie-optimised, ipm-optimised take an @"):
        cells_of._attack(label)
    assert cells_of._attack("alie-optimised@3") == ("optimised_alie", {"every": 3})
