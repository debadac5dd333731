"""Adversaries in a lasting disguise, which `pairwise` cannot tell from honest parties.

    python -m consilience.lab.studies.disguise [--out docs/data/disguise.json] [--seeds 3]

The robustness protocol on MNIST, 4 adversaries beside 10 honest parties. Each sends μ − sd plus its
own noise, as long as sd and the same in every round: two of them have a correlation of one half, as
honest parties with similar data do.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console

from consilience.lab.attacks import SUITE
from consilience.lab.experiments.robustness import PLANS
from consilience.lab.robustness import bench

METHODS = ("pairwise", "mean", "coordinate-median")


def main() -> None:
    """Run the eight settings by each method, and save the summary."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("docs/data/disguise.json"))
    parser.add_argument("--seeds", type=int, default=3)
    how = parser.parse_args()
    SUITE["disguise"] = ("alie", {"z": 1.0, "noise": 1.0, "steady": True})
    plan = replace(PLANS["mlp"], methods=METHODS, attacks=("disguise",), seeds=how.seeds)
    with TemporaryDirectory() as folder:
        bench(plan, Path(folder), Console())
        how.out.write_text((Path(folder) / "summary.json").read_text())


if __name__ == "__main__":
    main()
