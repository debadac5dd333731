"""Shakespeare with adversaries that "perform a random local update", in four readings of this.

The paper's protocol was in its supplement, which is lost. An adversary sends

- the gradient on its windows, with random targets;
- the gradient on random characters, with random targets;
- the gradient on its windows, of a model that it has just initialised;
- or the position of its random walk, whose steps are as long as the mean honest update.

The data are those of Figure 3; the model is smaller, and there are fewer rounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from consilience.arrays import Array
from consilience.lab.experiments import Scale, text_sgd
from consilience.lab.federation import Federation, Scene
from consilience.lab.figures import curves
from consilience.lab.runner import Cell, Row, Tick
from consilience.lab.training import stream

ADVERSARIES = (5, 10)
HIDDEN = 64
LINE_UP = ("Uniform average", "Geometric median", "IVAR-VB", "IVAR-VB, normalised", "Pairwise")


@dataclass
class Fresh(Federation):
    """Each adversary trains a model that it has just initialised."""

    def _bad(self, scene: Scene, known: Array, rng: np.random.Generator) -> Array:
        seed, model = self.parties.seed, self.parties.model
        rows = []
        for party in scene.bad:
            start = int(stream(seed, f"{party} afresh", scene.round).integers(2**31))
            rows.append(self._updates(model.initial(start), scene.round, [party]))
        return np.vstack(rows)


@dataclass
class Walk(Federation):
    """Each adversary does a random walk, and sends its position."""

    places: Array | float = field(default=0.0, init=False)  # (f, K)

    def _bad(self, scene: Scene, known: Array, rng: np.random.Generator) -> Array:
        spread = np.sqrt(np.mean(known.mean(0) ** 2))
        steps = rng.standard_normal((len(scene.bad), known.shape[1]), dtype=np.float32)
        places: Array = self.places + spread * steps
        self.places = places
        return places


READINGS: dict[str, tuple[str, dict[str, Any]]] = {
    "targets": (
        "gradients on random targets",
        {"attack": "random_local", "settings": {"replace": "labels"}},
    ),
    "characters": (
        "gradients on random characters",
        {"attack": "random_local", "settings": {"replace": "both"}},
    ),
    "fresh": ("gradients of a fresh model", {"kind": Fresh}),
    "walk": ("a random walk", {"kind": Walk}),
}


def cells(scale: Scale, seeds: int) -> list[Cell]:
    """Return one cell per reading, number of adversaries, method and seed."""
    hidden = min(HIDDEN, scale.hidden)
    return [
        Cell(
            "random-local",
            {
                "reading": reading,
                "R": count,
                "method": label,
                "seed": seed,
                "rounds": scale.random_local_rounds,
            },
            partial(_run, reading, count, label, seed, scale.random_local_rounds, hidden),
        )
        for seed in range(seeds)
        for count in ADVERSARIES
        for reading in READINGS
        for label in LINE_UP
        if label in scale.methods
    ]


def _run(
    reading: str, adversaries: int, label: str, seed: int, rounds: int, hidden: int, tick: Tick
) -> list[Row]:
    attack = READINGS[reading][1]
    return text_sgd.train(adversaries, label, seed, rounds, hidden, tick, **attack)


def figures(records: Sequence[Row]) -> dict[str, Figure]:
    """Return accuracy by round with five adversaries, a panel per reading."""
    five = [record for record in records if record["R"] == ADVERSARIES[0]]
    titles = {reading: words for reading, (words, _) in READINGS.items()}
    return {"random-local": curves(five, "reading", titles, "accuracy", "test accuracy")}
