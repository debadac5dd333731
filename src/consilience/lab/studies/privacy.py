"""How far one client can move a consensus of clipped updates: what noise for privacy must hide.

    python -m consilience.lab.studies.privacy [--out docs/data/privacy.json]

Central differential privacy clips every update to a norm C and adds noise in proportion to C/n: the
most by which one of n clients moves their mean, by sending C or nothing. Here one client sends
different things, and the largest move of the value is given in units of C/n. It is found by trying,
so the true sensitivity may be larger. The clients are IID, have different data (heterogeneous), or
form two camps.
"""

from __future__ import annotations

import argparse
import json
from itertools import combinations
from pathlib import Path

import numpy as np

import consilience as cs
from consilience.arrays import Array
from consilience.lab.tables import markdown

CLIENTS, SIZE, SEEDS = 10, 2000, 3
METHODS = ("mean", "coordinate-median", "geometric-median", "krum", "ivar-vb", "pairwise")
WORLDS = {"IID": (0.3, 0.0), "heterogeneous": (2.0, 0.0), "two camps": (0.3, 3.0)}


def clipped(updates: Array) -> Array:
    """Return updates clipped to length C = 1."""
    lengths = np.linalg.norm(updates, axis=-1, keepdims=True)
    found: Array = updates / np.maximum(lengths, 1.0)
    return found


def others(world: str, random: np.random.Generator) -> Array:
    """Return the updates of all clients but one: (n − 1, K)."""
    noise, apart = WORLDS[world]
    shared, camp = random.standard_normal((2, SIZE))
    side = np.where(np.arange(CLIENTS - 1) % 2, apart, -apart)
    each = noise * random.standard_normal((CLIENTS - 1, SIZE))
    return clipped(shared + side[:, None] * camp + each)


def choices(sent: Array, random: np.random.Generator) -> list[Array]:
    """Return what this client may send: nothing, the same as others, the opposite, or noise."""
    mean = sent.mean(axis=0)
    noise = random.standard_normal(SIZE)
    tries = [0 * mean, mean, *sent[:2], -sent[0], 100 * mean, -100 * mean, noise, sent[:2].mean(0)]
    return list(clipped(np.array(tries)))


def moved(method: str, world: str, seed: int) -> float:
    """Return the largest move of the value that was found, in units of C/n."""
    random = np.random.default_rng(seed)
    sent = others(world, random)
    values = [cs.aggregate(np.vstack([sent, mine]), method).value for mine in choices(sent, random)]
    return CLIENTS * max(float(np.linalg.norm(a - b)) for a, b in combinations(values, 2))


def main() -> None:
    """Try all methods in all worlds, and save the largest moves over seeds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("docs/data/privacy.json"))
    out = parser.parse_args().out
    found = {
        method: {
            world: max(moved(method, world, seed) for seed in range(SEEDS)) for world in WORLDS
        }
        for method in METHODS
    }
    out.write_text(json.dumps(found, indent=1) + "\n")
    rows = [[m, *(f"{move:.2g}" for move in row.values())] for m, row in found.items()]
    print(markdown(["method", *WORLDS], rows))


if __name__ == "__main__":
    main()
