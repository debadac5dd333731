"""When does modelling correlation pay? One-round linear regression over all of 36 set-ups.

    python -m consilience.lab.studies.overlap [--seeds 10] [--out docs/data/overlap.json]

Five parties estimate the same weights by least squares; their noise levels and the samples they
share vary. Each number is the distance of the consensus from the truth, one per seed. The first
table, of all set-ups together, is the one that nobody chose: distances relative to what is possible
with the covariance known, as geometric means, and how often a method has the least, or ties with
it.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from rich.progress import track

import consilience as cs
from consilience.lab.experiments import METHODS
from consilience.lab.runner import write_rows
from consilience.lab.synthetic import linear_regression
from consilience.lab.tables import best, markdown

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
KNOWN = "known covariance"
FIRST_SEED = 100  # set-ups were looked at with lower ones
Record = dict[str, Any]


def errors(noise: tuple[int, ...], starts: tuple[int, ...], seeds: int) -> dict[str, list[float]]:
    """Return the distances of each method, one per seed."""
    found: dict[str, list[float]] = {}
    for seed in range(FIRST_SEED, FIRST_SEED + seeds):
        task = linear_regression(seed, noise=noise, starts=starts)
        updates = {p: np.linalg.lstsq(x, y)[0] for p, (x, y) in task.parties.items()}
        known = cs.GivenCovariance(task.covariance, list(updates))
        for name, method in {**METHODS, KNOWN: known}.items():
            value = cs.aggregate(updates, method).value
            found.setdefault(name, []).append(round(task.error(value), 4))
    return found


def winners(record: Record) -> set[str]:
    """Return the methods with the least mean distance in a set-up, and those that tie with it."""
    found = record["distance"]
    return best({name: dict(enumerate(found[name])) for name in METHODS}, lower=True)


def together(records: Sequence[Record]) -> str:
    """Return the table of all set-ups together."""
    won, rows = [winners(record) for record in records], []
    for name in METHODS:
        ratios = [np.divide(r["distance"][name], r["distance"][KNOWN]) for r in records]
        logs = np.log(ratios).mean(0)  # one per seed
        error = logs.std(ddof=1) / np.sqrt(len(logs))
        mean = float(np.exp(logs.mean()))
        alone = sum(mine == {name} for mine in won)
        first = sum(name in mine for mine in won)
        rows.append([name, f"{mean:.2f} ± {mean * error:.2f}", str(first), str(alone)])
    return markdown(["method", "distance, relative", "best or tied", "best alone"], rows)


def each(records: Sequence[Record]) -> str:
    """Return the table of set-ups: mean distances, the best and its ties in bold."""
    rows = []
    for record in records:
        won, row = winners(record), [record["noise"], record["overlap"]]
        for name, values in record["distance"].items():
            text = f"{np.mean(values):.2f}"
            row.append(f"**{text}**" if name in won else text)
        rows.append(row)
    return markdown(["noise", "overlap", *records[0]["distance"]], rows)


def main() -> None:
    """Measure, print as Markdown and save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("docs/data/overlap.json"))
    parser.add_argument("--seeds", type=int, default=10)
    given = parser.parse_args()
    records: list[Record] = []
    for (level, noise), (pattern, starts) in track(list(product(NOISE.items(), STARTS.items()))):
        found = errors(noise, starts, given.seeds)
        records.append({"noise": level, "overlap": pattern, "distance": found})
    print(together(records), each(records), sep="\n")
    write_rows(given.out, records)


if __name__ == "__main__":
    main()
