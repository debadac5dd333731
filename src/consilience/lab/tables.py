"""Tables: records reduced to mean and spread over seeds, and written as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from consilience.lab.runner import Row

# Table 1 of the paper: synthetic error (lower is better), MNIST one-round accuracy with 5
# adversaries, Shakespeare accuracy with 5 (higher is better).
PAPER: dict[str, tuple[float | str, ...]] = {
    "Uniform average": (10.17, 0.4926, 0.16),
    "Geometric median": (8.13, 0.5233, 0.41),
    "Coordinate median": (6.131, 0.7987, 0.29),
    "IVAR-VB": (4.62, 0.8943, 0.56),
    "IVAR-MLE": (4.66, 0.9043, 0.50),
    "ICOV-VB": (2.89, 0.8932, 0.52),
    "ICOV-MLE": (8.75, 0.5253, "N.A."),
    "Pairwise": ("–", "–", "–"),  # the paper does not have it
}


def where(records: Iterable[Row], **settings: Any) -> list[Row]:
    """Return the records with these settings."""
    wanted = settings.items()
    return [r for r in records if all(r.get(key) == value for key, value in wanted)]


def last(records: Sequence[Row], value: str) -> list[float]:
    """Return the value at each seed's last round."""
    seeds = sorted({record["seed"] for record in records})
    each = [where(records, seed=seed) for seed in seeds]
    return [float(max(mine, key=lambda r: r.get("round", 0))[value]) for mine in each]


def spread(values: Sequence[float], digits: int = 3) -> str:
    """Return mean ± standard deviation, or the mean alone where there is one value."""
    if not values:
        return ""
    text = f"{np.mean(values):.{digits}f}"
    return text if len(values) == 1 else f"{text} ± {np.std(values, ddof=1):.{digits}f}"


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"
