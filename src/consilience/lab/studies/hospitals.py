"""Hospitals of very different size: what verified sample counts gain, also for an attacker.

    python -m consilience.lab.studies.hospitals [--out docs/data/hospitals.json]

Synthetic updates of eight sites with 51.7 % to 0.6 % of the data: y plus noise of variance 1/n,
plus the site's own drift. One site multiplies its update. The error is ‖value − pooled‖ / ‖pooled‖,
where pooled is the mean weighted by samples without an attack. The largest and the smallest site,
and the attack, are those of KatherLab/MediSwarm #566; the six in between are not published, and
made up.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import mean

import numpy as np

import consilience as cs
from consilience.arrays import Array, Vector
from consilience.lab.tables import markdown

SAMPLES = np.array([17834, 6000, 4200, 2800, 1900, 1000, 571, 190], float)
NOISE, DRIFT, SIZE, SEEDS = 0.3, 0.3, 20_000, 5
ATTACKS = {
    "nobody": (0, 1.0),
    "0.6 % of the data, × 1000": (7, 1000.0),
    "0.6 % of the data, × −1000": (7, -1000.0),
    "51.7 % of the data, × 1000": (0, 1000.0),
    "51.7 % of the data, × −1000": (0, -1000.0),
}


def honest(seed: int) -> Array:
    """Return the updates of the sites without an attack: (8, K)."""
    random = np.random.default_rng(seed)
    truth = random.standard_normal(SIZE)
    lengths = np.sqrt(NOISE**2 * np.median(SAMPLES) / SAMPLES + DRIFT**2)
    errors: Array = lengths[:, None] * random.standard_normal((len(SAMPLES), SIZE))
    return truth + errors


def clipped(sent: Array) -> Array:
    """Return the mean, weighted by samples, of updates clipped to the median length."""
    lengths = np.linalg.norm(sent, axis=1)
    return pooled(sent * np.minimum(1, np.median(lengths) / lengths)[:, None])


def pooled(sent: Array, there: Vector | None = None) -> Array:
    """Return the mean weighted by samples, over all sites or some."""
    found: Array = np.average(sent, axis=0, weights=SAMPLES if there is None else SAMPLES * there)
    return found


def errors(seed: int, site: int, factor: float) -> dict[str, float]:
    """Return the error of each rule if one site multiplies its update by ``factor``."""
    good = honest(seed)
    sent = good.copy()
    sent[site] *= factor
    others = np.arange(len(SAMPLES)) != site if factor != 1 else np.ones(len(SAMPLES))
    counts: list[float] = SAMPLES.tolist()
    values = {
        "weighted mean": pooled(sent),
        "norm clipped": clipped(sent),
        "coordinate median": np.median(sent, axis=0),
        "pairwise": cs.aggregate(sent, sample_counts=counts).value,
        "pairwise, trusted counts": cs.aggregate(
            sent, sample_counts=counts, trusted_counts=True
        ).value,
        "weighted mean of the others": pooled(good, others),
    }
    wanted = pooled(good)
    return {
        rule: float(np.linalg.norm(value - wanted) / np.linalg.norm(wanted))
        for rule, value in values.items()
    }


def table(found: dict[str, dict[str, float]]) -> str:
    """Return the errors, a row for each attack."""
    rules = list(next(iter(found.values())))
    rows = [[attack, *(f"{row[rule]:.3g}" for rule in rules)] for attack, row in found.items()]
    return markdown(["attack", *rules], rows)


def main() -> None:
    """Measure all attacks over seeds; print and save the means."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("docs/data/hospitals.json"))
    out = parser.parse_args().out
    found = {}
    for attack, (site, factor) in ATTACKS.items():
        each = [errors(seed, site, factor) for seed in range(SEEDS)]
        found[attack] = {rule: mean(one[rule] for one in each) for rule in each[0]}
    out.write_text(json.dumps(found, indent=1) + "\n")
    print(table(found))


if __name__ == "__main__":
    main()
