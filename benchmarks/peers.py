"""Published aggregators from the distances alone, beside ByzFL's, which read the updates again.

    python -m benchmarks.peers

Each pair gives the same answer in exact arithmetic, but for CAF, where ByzFL takes one step of the
power method in the place of the direction of most variance. Told f = 4 of 14 parties; the figures
are CPU seconds, best of several in turns, and ratios of them. Writes docs/data/peers.json.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np
import torch
from rich.console import Console

import consilience as cs
from benchmarks.timing import machine
from consilience.estimators.catalogue import Method
from consilience.lab.peers import byzfl
from consilience.lab.tables import markdown

PARTIES, ADVERSARIES, REPEATS = 14, 4, 5
Rule = Callable[[Any], Any]


def pairs(f: int, radius: float, coordinates: int) -> dict[str, tuple[Method, Rule]]:
    """Return our method and ByzFL's for each name; a radius is a norm."""
    rules, before = byzfl("aggregators"), byzfl("preaggregators")
    nnm, arc, mda = before.NNM(f), before.ARC(f), rules.MDA(f)
    clipping = cs.CentredClipping(radius / np.sqrt(coordinates), steps=1)
    return {
        "mda": (cs.MDA(f), mda),
        "caf": (cs.CAF(f), rules.CAF(f)),
        "centred-clipping": (clipping, lambda rows: rules.CenteredClipping(tau=radius)(rows)),
        "nnm, mean": (cs.NNM(cs.Mean(), f), lambda rows: nnm(rows).mean(0)),
        "nnm, mda": (cs.NNM(cs.MDA(f), f), lambda rows: mda(nnm(rows))),
        # ARC writes into what it is given.
        "arc, mda": (cs.ARC(cs.MDA(f), f), lambda rows: mda(arc(rows.clone()))),
        "arc, nnm, mda": (
            cs.ARC(cs.NNM(cs.MDA(f), f), f),
            lambda rows: mda(nnm(arc(rows.clone()))),
        ),
    }


def cpu(tasks: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Return each task's least CPU seconds, taking turns."""
    found = dict.fromkeys(tasks, float("inf"))
    for _ in range(REPEATS):
        for name, task in tasks.items():
            started = process_time()
            task()
            found[name] = min(found[name], process_time() - started)
    return found


def main() -> None:
    """Measure, print and save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--coordinates", type=int, default=1_000_000)
    parser.add_argument("--out", type=Path, default=Path("docs"))
    chosen = parser.parse_args()
    rng = np.random.default_rng(0)
    truth = rng.standard_normal(chosen.coordinates, dtype=np.float32)
    updates = truth + rng.standard_normal((PARTIES, truth.size), dtype=np.float32)
    updates[-ADVERSARIES:] *= 3
    rows, radius = torch.from_numpy(updates), float(np.linalg.norm(updates[0]))
    found: dict[str, dict[str, float]] = {}
    for name, (method, rule) in pairs(ADVERSARIES, radius, truth.size).items():
        tasks: dict[str, Callable[[], object]] = {
            "ours": lambda m=method: cs.aggregate(updates, m),
            "exact": lambda m=method: cs.aggregate(updates, m, exact=True),
            "ByzFL": lambda r=rule: r(rows),
        }
        found[name] = {which: round(seconds, 4) for which, seconds in cpu(tasks).items()}
    table = [
        [name, f"{s['ByzFL'] / s['ours']:.0f} ×", f"{s['ByzFL'] / s['exact']:.0f} ×"]
        for name, s in found.items()
    ]
    Console().print(markdown(["", "times faster than ByzFL (torch)", "exact"], table))
    record = {"machine": machine(), "parties": PARTIES, "coordinates": truth.size, "cpu": found}
    (chosen.out / "data" / "peers.json").write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
