"""Breakdown curves: the quick version, from the command line to the page."""

import json

from rich.console import Console
from typer.testing import CliRunner

from consilience.cli.commands import app
from consilience.lab.breakdown import Plan, bench, summarise


def test_quick_run_and_what_pairwise_withstands(tmp_path):
    ran = CliRunner().invoke(app, ["bench", "breakdown", "--quick", "--out", str(tmp_path)])
    assert ran.exit_code == 0, ran.output
    summary = json.loads((tmp_path / "breakdown.json").read_text())
    worst = summary["worst"]
    assert worst["pairwise"]["2"]["ratio"] <= 1.10
    assert worst["pairwise"]["5"]["ratio"] <= 1.10
    assert worst["mean"]["0"]["ratio"] == 1
    assert worst["mean"]["2"]["ratio"] > 1e20  # huge
    assert "adaptive" not in summary["pairwise"]
    assert summary["outnumbered"]["pairwise"]["y ~ 1, 20 of N(0, 10²)"] <= 1.05
    spread = summary["spread"]
    assert max(spread["pairwise"].values()) < min(spread["mean"].values())
    assert (tmp_path / "figures" / "breakdown.svg").exists()
    assert "| pairwise | 1.00 |" in (tmp_path / "breakdown.md").read_text()
    again = CliRunner().invoke(app, ["bench", "breakdown", "--quick", "--out", str(tmp_path)])
    assert "3 of 3 cells are finished already" in again.output


def test_multi_krum_is_left_out_where_it_declines(tmp_path):
    plan = Plan(("multi-krum",), (7, 8), ("gaussian", "adaptive"), size=100, seeds=1)
    bench(plan, tmp_path, Console(quiet=True))
    summary = json.loads((tmp_path / "breakdown.json").read_text())
    assert list(summary["worst"]["multi-krum"]) == ["7"]
    assert summary["outnumbered"]["multi-krum"] == {}


def test_the_worst_is_the_worst_mean_over_seeds():
    same = {"scene": "attacked", "method": "mean", "f": 1}
    records = [
        {**same, "attack": attack, "seed": seed, "ratio": ratio}
        for attack, ratios in {"a": (1.0, 4.0), "b": (3.0, 3.0)}.items()
        for seed, ratio in enumerate(ratios)
    ]
    found = summarise(records)["worst"]["mean"]["1"]
    assert (found["attack"], found["ratio"]) == ("b", 3.0)
