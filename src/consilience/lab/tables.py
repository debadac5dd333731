"""Tables in Markdown: means over seeds, and paired differences."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import t as student

from consilience.lab.runner import Row

# Table 1 of the paper: synthetic error (lower is better), MNIST one-round accuracy with 5
# adversaries, Shakespeare accuracy with 5 (higher is better). Other methods are not in it.
PAPER: dict[str, tuple[float | str, ...]] = {
    "Uniform average": (10.17, 0.4926, 0.16),
    "Geometric median": (8.13, 0.5233, 0.41),
    "Coordinate median": (6.131, 0.7987, 0.29),
    "IVAR-VB": (4.62, 0.8943, 0.56),
    "IVAR-MLE": (4.66, 0.9043, 0.50),
    "ICOV-VB": (2.89, 0.8932, 0.52),
    "ICOV-MLE": (8.75, 0.5253, "N.A."),
}
BySeed = Mapping[int, float]
SHOWN = 5e-4  # half a unit in the last digit of tables


def where(records: Iterable[Row], **settings: Any) -> list[Row]:
    """Return the records with these settings."""
    wanted = settings.items()
    return [r for r in records if all(r.get(key) == value for key, value in wanted)]


def last(records: Sequence[Row], value: str) -> dict[int, float]:
    """Return the value in the last round, by seed."""
    seeds = sorted({record["seed"] for record in records})
    each = {seed: where(records, seed=seed) for seed in seeds}
    return {
        seed: float(max(mine, key=lambda r: r.get("round", 0))[value])
        for seed, mine in each.items()
    }


class Difference(NamedTuple):
    """The mean difference of two methods on the same seeds, and whether it is a tie."""

    mean: float
    error: float  # its standard error; NaN with one seed
    tie: bool


def difference(mine: BySeed, other: BySeed, test_error: float = 0.0) -> Difference:
    """Compare two methods seed by seed.

    It is a tie if the mean difference is within its 95 % interval over the seeds (Student's t),
    within the standard error of the test set, which all seeds share, or less than tables show.
    """
    pairs = np.array([mine[seed] - other[seed] for seed in mine.keys() & other.keys()])
    if not len(pairs):
        return Difference(np.nan, np.nan, False)
    mean, margin, error = float(pairs.mean()), 0.0, np.nan
    if len(pairs) > 1:
        error = float(pairs.std(ddof=1) / np.sqrt(len(pairs)))
        margin = float(student.ppf(0.975, len(pairs) - 1)) * error
    return Difference(mean, error, abs(mean) <= max(margin, test_error, SHOWN))


def sampling_error(share: float, size: int | None) -> float:
    """Return the standard error of an accuracy on a test set of this size; 0 without a size."""
    return float(np.sqrt(max(0.0, share * (1 - share)) / size)) if size else 0.0


def best(columns: Mapping[str, BySeed], lower: bool, size: int | None = None) -> set[str]:
    """Return the methods with the best mean, and those that tie with it."""
    means = {label: float(np.mean(list(v.values()))) for label, v in columns.items() if v}
    if not means:
        return set()
    first = (min if lower else max)(means, key=lambda label: means[label])
    error = sampling_error(means[first], size)
    tied = {k for k in means if difference(columns[k], columns[first], error).tie}
    return {first, *tied}


def spread(values: Iterable[float], digits: int = 3) -> str:
    """Return mean ± its standard error, or the mean alone if there is one value."""
    found = list(values)
    if not found:
        return ""
    text = f"{np.mean(found):.{digits}f}"
    if len(found) == 1:
        return text
    return f"{text} ± {np.std(found, ddof=1) / np.sqrt(len(found)):.{digits}f}"


def compared(mine: BySeed, other: BySeed, size: int | None, digits: int = 3) -> str:
    """Return the mean, and in brackets its paired difference from another method's."""
    if not mine:
        return ""
    mean, apart = float(np.mean(list(mine.values()))), ""
    if other and mine is not other:
        found = difference(mine, other, sampling_error(float(np.mean(list(other.values()))), size))
        error = "" if np.isnan(found.error) else f" ± {found.error:.{digits}f}"
        apart = " (=)" if found.tie else f" ({found.mean:+.{digits}f}{error})"
    return f"{mean:.{digits}f}{apart}"


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"
