"""Three parties, few coordinates: a bound on every rule.

    python -m consilience.lab.studies.frontier [--out docs/data/frontier.json]

In the first scene all parties are equally noisy; in the second their standard deviations are 1, 5.5
and 30. This study finds the least error in the second scene among rules whose error in the first is
within a given ratio of the mean's.

It is exact for rules that are equivariant under permutations of the parties, translations,
rotations, reflections and changes of scale. Such a rule sees only the shape of a triangle, two
numbers, and chooses a point in its plane. The point that minimises λ × (error in the first scene) +
(error in the second) is a weighted average of the truth, given the shape. Each λ gives one point of
the frontier. Shapes are sorted into 40 × 40 bins, from half a million triangles for each scene.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from consilience.arrays import Vector

SIZES = (1, 2, 3, 5)
SPREAD = (1.0, 30**0.5, 30.0)
DRAWS, CHUNK, BINS = 500_000, 50_000, 40
TRADES = np.geomspace(1e-3, 1e4, 141)  # λ
Array = npt.NDArray[np.float64]


class Scene(NamedTuple):
    """Sums over the triangles of each shape: all that a rule's error depends on."""

    weight: Vector  # squared longest sides
    along: Vector  # the truth's position along the longest side, times that weight
    across: Vector  # and across it
    squares: float  # mean squared distance of the truth from the first corner
    mean: float  # mean squared error of the mean
    median: float  # and of the better one of coordinate median and geometric median

    def error(self, along: Vector, across: Vector) -> float:
        """Return the mean squared error of a rule that chooses these points."""
        change = self.weight * (along**2 + across**2)
        change -= 2 * (along * self.along + across * self.across)
        return self.squares + float(change.sum())


def scene(noise: tuple[float, ...], size: int) -> Scene:
    """Draw triangles of parties with this noise around a truth at zero, and sum them by shape."""
    random = np.random.default_rng(size)
    sums, shapes = np.zeros(4), np.zeros((3, BINS * BINS))
    for _ in range(DRAWS // CHUNK):
        X = random.standard_normal((CHUNK, 3, size)) * np.array(noise)[:, None]
        shape, place, longest, start = placed(X)
        weight = longest**2
        for row, each in enumerate((weight, weight * place[0], weight * place[1])):
            shapes[row] += np.bincount(shape, each, BINS * BINS)
        middles = X.mean(axis=1), np.median(X, axis=1), _geometric_median(X)
        sums += [start.sum(), *(np.square(middle).sum() for middle in middles)]
    squares, mean, *medians = sums / DRAWS
    weight, along, across = shapes / DRAWS
    return Scene(weight, along, across, squares, mean, min(medians))


def placed(X: Array) -> tuple[npt.NDArray[np.intp], tuple[Vector, Vector], Vector, Vector]:
    """Return for each triangle the bin of its shape, the truth's position, the longest side, and
    the squared distance of the truth from the first corner.

    The first corner is opposite the shortest side. Positions are measured from there, along the
    longest side and across it towards the third corner, in units of the longest side.
    """
    pairs = (1, 2), (0, 2), (0, 1)
    sides = np.stack([np.linalg.norm(X[:, a] - X[:, b], axis=1) for a, b in pairs])
    order = np.argsort(sides, axis=0)
    first, second, third = np.take_along_axis(X.transpose(1, 0, 2), order[:, :, None], axis=0)
    longest = sides.max(axis=0)
    along = (second - first) / longest[:, None]
    far = ((third - first) * along).sum(axis=1)
    across = third - first - far[:, None] * along
    height = np.linalg.norm(across, axis=1)
    across /= np.maximum(height, 1e-12)[:, None]
    # The third corner is nearer to the second than to the first, so far/longest is at least ½.
    column = np.clip((2 * far / longest - 1) * BINS, 0, BINS - 1).astype(np.intp)
    row = np.clip(height / longest / 0.75**0.5 * BINS, 0, BINS - 1).astype(np.intp)
    place = -(first * along).sum(axis=1) / longest, -(first * across).sum(axis=1) / longest
    return column * BINS + row, place, longest, np.square(first).sum(axis=1)


def _geometric_median(X: Array) -> Array:
    found = X.mean(axis=1)
    for _ in range(30):
        near = 1 / np.maximum(np.linalg.norm(X - found[:, None], axis=2), 1e-9)
        found = (near[:, :, None] * X).sum(axis=1) / near.sum(axis=1)[:, None]
    return np.asarray(found)


def frontier(size: int) -> Iterator[tuple[float, float]]:
    """Yield the best rule's errors for each λ: with equal noise, relative to the mean's; with
    spread noise, relative to the better median's."""
    alike, spread = scene((1.0, 1.0, 1.0), size), scene(SPREAD, size)
    for trade in TRADES:
        weight = np.maximum(trade * alike.weight + spread.weight, 1e-300)
        along = (trade * alike.along + spread.along) / weight
        across = (trade * alike.across + spread.across) / weight
        yield alike.error(along, across) / alike.mean, spread.error(along, across) / spread.median


def main() -> None:
    """Print and save the frontier of each size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("docs/data/frontier.json"))
    how = parser.parse_args()
    found = {}
    for size in SIZES:
        alike, spread = np.array(list(frontier(size)))[::-1].T  # ascending, as np.interp needs
        within = np.interp([1.05, 1.1, 1.2], alike, spread)
        level = np.interp(-1.0, -spread, alike)
        found[size] = {
            "alike": np.round(alike, 4).tolist(),
            "spread": np.round(spread, 4).tolist(),
        }
        print(size, "alike 1.05, 1.1, 1.2: spread", np.round(within, 2), end="; ")
        print(f"spread 1: alike {level:.2f}", flush=True)
    how.out.write_text(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
