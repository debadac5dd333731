"""From two parties with one number each to twenty with a thousand: how large is the error?

    python -m consilience.lab.studies.sizes [--out docs/data/sizes.json] [--seeds 200]

Parties send y + N(0, 1). Four scenes: nothing else (clean); one party is 10 standard deviations off
in every coordinate, in either direction (outlier); three in ten are (outliers); or standard
deviations are spread geometrically from 1 to 30 (spread). Mean squared errors over the seeds, for
`pairwise` and its peers; and the share of honest parties that are named although nobody is noisy.
For a thousand coordinates a quarter of the seeds is used.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from consilience import aggregate
from consilience.arrays import Matrix, Vector
from consilience.lab.runner import write_rows

PARTIES, COORDINATES = (2, 3, 4, 5, 7, 10, 20), (1, 2, 3, 5, 10, 30, 100, 1000)
SCENES = {"clean": 2, "outlier": 4, "outliers": 7, "spread": 3}  # and the fewest parties of each
PEERS = ("mean", "coordinate-median", "geometric-median", "ivar-vb")


def drawn(scene: str, parties: int, size: int, seed: int) -> tuple[Matrix, Vector]:
    """Return the updates and the truth, which is far from zero, so that no prior there helps."""
    random = np.random.default_rng([seed, parties, size])
    truth = 10 * random.standard_normal(size)
    noise, off = np.ones(parties), np.zeros((parties, size))
    bad = {"outlier": 1, "outliers": round(0.3 * parties)}.get(scene, 0)
    off[parties - bad :] = 10 * random.choice([-1.0, 1.0], (bad, size))
    if scene == "spread":
        noise = np.geomspace(1, 30, parties)
    return truth + off + noise[:, None] * random.standard_normal((parties, size)), truth


def errors(scene: str, parties: int, size: int, seeds: int) -> dict[str, float]:
    """Return mean squared errors, and the share of parties that `pairwise` names."""
    found = dict.fromkeys(("pairwise", *PEERS, "named"), 0.0)
    for seed in range(seeds):
        X, truth = drawn(scene, parties, size, seed)
        for name in ("pairwise", *PEERS):
            consensus = aggregate(X, name)
            found[name] += float(np.mean((consensus.value - truth) ** 2)) / seeds
            if name == "pairwise":
                found["named"] += len(consensus.reasons) / parties / seeds
    return found


def rows(seeds: int) -> Iterator[dict[str, Any]]:
    """Yield a row for each scene and size."""
    for scene, least in SCENES.items():
        for parties in PARTIES:
            for size in COORDINATES if parties >= least else ():
                some = seeds if size < 1000 else max(1, seeds // 4)
                told = {k: float(f"{v:.4g}") for k, v in errors(scene, parties, size, some).items()}
                yield {"scene": scene, "parties": parties, "coordinates": size, **told}


def ratio(row: dict[str, Any]) -> float:
    """Return the error over that of the mean if all are equal, else over that of the best peer
    (with spread noise, the better one of the medians)."""
    peers = {"clean": PEERS[:1], "spread": PEERS[1:3]}.get(row["scene"], PEERS)
    return float(row["pairwise"] / min(row[peer] for peer in peers))


def table(found: list[dict[str, Any]], scene: str) -> str:
    """Return the ratios of a scene as a table in Markdown."""
    lines = ["| parties | " + " | ".join(map(str, COORDINATES)) + " |"]
    lines.append("| --- " * (1 + len(COORDINATES)) + "|")
    for parties in PARTIES:
        here = [r for r in found if (r["scene"], r["parties"]) == (scene, parties)]
        if here:
            told = (f"{ratio(row):.2f}" for row in here)
            lines.append(f"| {parties} | " + " | ".join(told) + " |")
    return "\n".join(lines)


def main() -> None:
    """Run all cells, print tables and save the errors."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("docs/data/sizes.json"))
    parser.add_argument("--seeds", type=int, default=200)
    how = parser.parse_args()
    found = list(rows(how.seeds))
    for scene in SCENES:
        print(scene, table(found, scene), sep="\n", flush=True)
    write_rows(how.out, found)


if __name__ == "__main__":
    main()
