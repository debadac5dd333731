"""Adversaries whose errors last, and who choose them with the method in mind.

    python -m consilience.lab.studies.disguise           # docs/data/disguise.json
    python -m consilience.lab.studies.disguise --lone    # docs/data/lone.json

The robustness protocol on MNIST, beside 10 honest parties.

- *Disguised*: 4 adversaries. Each sends μ − sd plus its own noise, as long as sd and the same in
  every round: two of them have a correlation of one half, as honest parties with similar data do.
- *Lone*: one adversary sends μ − z·sd in every round. It knows the bar on what lasts, and tries all
  sizes z below and above it. No worker momentum, which hides what lasts.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console

from consilience.lab.attacks import SUITE
from consilience.lab.experiments.robustness import PLANS, Plan
from consilience.lab.robustness import bench

DISGUISED = {"disguise": ("alie", {"z": 1.0, "noise": 1.0, "steady": True})}
METHODS = "pairwise,mean,coordinate-median"
LONE = {f"lone-{z:g}": ("alie", {"z": z}) for z in (0.6, 0.8, 1.0, 1.25, 1.5, 2.0)}


def plan(seeds: int, methods: str = METHODS, *, lone: bool) -> Plan:
    """Return the cells to run. Their attacks join the suite."""
    attacks = LONE if lone else DISGUISED
    SUITE.update(attacks)
    every = replace(PLANS["mlp"], attacks=tuple(attacks), seeds=seeds)
    if not lone:
        return replace(every, methods=tuple(methods.split(",")))
    return replace(
        every,
        methods=("pairwise", "geometric-median"),
        heterogeneity=("dirichlet-1", "dirichlet-0.1"),
        momentum=(0.0,),
        adversaries=(1,),
    )


def main() -> None:
    """Run every cell, and save the summary."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="docs/data/disguise.json, or lone.json")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--methods", default=METHODS)
    parser.add_argument("--lone", action="store_true", help="one adversary, of many sizes")
    how = parser.parse_args()
    out = how.out or Path("docs/data/lone.json" if how.lone else "docs/data/disguise.json")
    with TemporaryDirectory() as folder:
        bench(plan(how.seeds, how.methods, lone=how.lone), Path(folder), Console())
        out.write_text((Path(folder) / "summary.json").read_text())


if __name__ == "__main__":
    main()
