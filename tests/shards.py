"""What the Dask workers of the tests load and save. They import it by this name."""

import time
from pathlib import Path

import numpy as np

HONEST, COORDINATES = 6, 60_000
LARGE = 1_100_000  # of eight parties, so much is sampled


def load(number, bad=None, size=COORDINATES, at=-7):
    """A shard of six honest parties and two copies of a lie; ``bad`` sends a NaN in shard 1."""
    random = np.random.default_rng(number)
    truth = random.standard_normal(size)
    noise = random.standard_normal((HONEST, size))
    parties = {f"h{j}": {"w": (truth + x).astype(np.float32)} for j, x in enumerate(noise)}
    lie = {"w": (-truth).astype(np.float32)}
    parties |= {"c0": lie, "c1": lie}
    if bad is not None and number == 1:
        parties[bad]["w"][at] = np.nan
    return parties


def poisoned(number, scale):
    """A shard of eleven parties, one of which alone says something."""
    X = np.random.default_rng(number).standard_normal((11, 5000))
    X[0, :25] += 40
    return {f"p{j}": (x * scale).astype(np.float32) for j, x in enumerate(X)}


def lacking(number):
    """A shard that one party has not sent."""
    parties = load(number)
    if number == 2:
        del parties["h3"]
    return parties


def nested(number):
    """A shard in which one party sent lists in lists in lists."""
    parties = load(number, size=1000)
    if number == 1:
        for _ in range(5000):
            parties["h4"] = [parties["h4"]]
    return parties


def failing(number):
    """A shard that nobody can load, for a reason deep below."""
    return failing(number)


def center(number):
    return {"w": np.random.default_rng(number).standard_normal(COORDINATES).astype(np.float32)}


def save(folder, number, value):
    """Slowly, so that somebody can die in the meantime."""
    (Path(folder) / f"begun-{number}").touch()
    time.sleep(0.2)
    path = Path(folder) / f"{number}.npy"
    np.save(path, value["w"])
    return str(path)
