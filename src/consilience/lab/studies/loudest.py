"""A lone adversary where each class has one party: its harm, and what a tighter bound on it costs.

    python -m consilience.lab.studies.loudest [--out docs/data/loudest.json]

In both protocols of the robustness experiment, momentum 0.9, seed 0: no attack, four adversaries
that mimic a party, and one that optimises IPM every tenth round, for several bounds on the length
up to which `pairwise` trusts an update in full; beside them the geometric median after
nearest-neighbour mixing, told that there is one adversary. Best and final accuracies.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from consilience import Pairwise
from consilience.estimators.catalogue import Method
from consilience.estimators.medians import GeometricMedian
from consilience.estimators.mixing import NNM
from consilience.lab.experiments.robustness import run
from consilience.lab.runner import write_rows

LOUDEST = (2.0, 1.5, 1.25, 1.0)
METHODS: dict[str, Method] = {f"loudest={most:g}": Pairwise(loudest=most) for most in LOUDEST}
TOLD: dict[str, Method] = {"NNM, told": NNM(GeometricMedian(), adversaries=1)}
LONE = ("ipm-optimised@10", 1)
# Protocol, split, rounds; methods; attacks and how many adversaries.
PARTS: tuple[tuple[tuple[str, str, int], dict[str, Method], tuple[tuple[str, int], ...]], ...] = (
    (("mlp", "one-class", 300), METHODS, (("none", 0), ("mimic", 4), LONE)),
    (
        ("byzfl", "gamma-0", 120),
        {name: METHODS[name] for name in ("loudest=2", "loudest=1")} | TOLD,
        (("none", 0), LONE),
    ),
)


def main() -> None:
    """Run every case; print and save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("docs/data/loudest.json"))
    out = parser.parse_args().out
    rows: list[dict[str, Any]] = []
    for (protocol, split, rounds), methods, attacks in PARTS:
        for attack, adversaries in attacks:
            for name, method in methods.items():
                settings = {
                    "attack": attack,
                    "heterogeneity": split,
                    "adversaries": adversaries,
                    "momentum": 0.9,
                    "seed": 0,
                    "rounds": rounds,
                }
                end = run(protocol, method, settings)[-1]
                rows.append({"protocol": protocol, "attack": attack, "method": name})
                rows[-1] |= {"best": end["best"], "final": end["final"]}
                print(*rows[-1].values(), flush=True)
    write_rows(out, rows)


if __name__ == "__main__":
    main()
