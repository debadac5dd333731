"""When does modelling correlation pay? One-round linear regression in many settings.

    python -m consilience.lab.studies.overlap [--out docs/data/overlap.json]

Five parties estimate the same weights by least squares; their noise levels and the samples they
share vary. Each number is the distance of the consensus from the truth, the mean over eight
seeds.
"""

from __future__ import annotations

import argparse
import json
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from rich.progress import track

import consilience as cs
from consilience.estimators.catalogue import Method
from consilience.lab.synthetic import linear_regression

NOISE = {
    "equal": (2, 2, 2, 2, 2),
    "1 to 5": (1, 2, 3, 4, 5),
    "powers of two": (1, 2, 4, 8, 16),
    "powers of three": (1, 3, 9, 27, 81),
    "two bad": (1, 1, 1, 10, 10),
    "two good": (1, 1, 8, 8, 8),
}
STARTS = {  # where each party's 300 samples begin: 30 apart is an overlap of 90 %
    "no overlap": (0, 300, 600, 900, 1200),
    "chain of 50 %": (0, 150, 300, 450, 600),
    "chain of 80 %": (0, 60, 120, 180, 240),
    "first two": (0, 30, 600, 900, 1200),
    "last two": (0, 300, 600, 900, 930),
    "last three": (0, 300, 600, 630, 660),
}
METHODS: dict[str, str | Method] = {
    "mean": "mean",
    "geometric-median": "geometric-median",
    "coordinate-median": "coordinate-median",
    "ivar-vb": "ivar-vb",
    "ivar-mle": "ivar-mle",
    "icov-vb": "icov-vb",
    "icov-vb, joint": cs.ICOV(posterior="joint"),
}
SEEDS = 8


def errors(noise: tuple[int, ...], starts: tuple[int, ...]) -> dict[str, float]:
    """Return the mean error of each method, over the seeds."""
    found: dict[str, list[float]] = {}
    for seed in range(SEEDS):
        task = linear_regression(seed, noise=noise, starts=starts)
        updates = {p: np.linalg.lstsq(x, y)[0] for p, (x, y) in task.parties.items()}
        known = cs.GivenCovariance(task.covariance, list(updates))
        for name, method in {**METHODS, "known covariance": known}.items():
            value = cs.aggregate(updates, method).value
            found.setdefault(name, []).append(task.error(value))
    return {name: round(float(np.mean(values)), 2) for name, values in found.items()}


def main() -> None:
    """Measure, print as Markdown and save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("docs/data/overlap.json"))
    out = parser.parse_args().out
    records: list[dict[str, Any]] = []
    for (level, noise), (pattern, starts) in track(list(product(NOISE.items(), STARTS.items()))):
        records.append({"noise": level, "overlap": pattern, "error": errors(noise, starts)})
    names = list(records[0]["error"])
    print(f"| noise | overlap | {' | '.join(names)} |\n|{' --- |' * (len(names) + 2)}")
    for record in records:
        values = record["error"]
        best = min(value for name, value in values.items() if name != "known covariance")
        cells = (f"**{v}**" if v == best and n != "known covariance" else f"{v}"
                 for n, v in values.items())  # fmt: skip
        print(f"| {record['noise']} | {record['overlap']} | {' | '.join(cells)} |")
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(records, indent=0) + "\n")


if __name__ == "__main__":
    main()
