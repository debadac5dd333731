"""Figure 3: the next character of Shakespeare, with 0, 5 and 10 adversaries beside 5 honest
parties.

A party is a speaking role; the 15 roles with the most to say take part, the largest five honest.
The model is that of McMahan et al., a 2-layer LSTM on embeddings of 8, here with fewer than its
256 units so that all methods and seeds fit an afternoon. Parties send gradients on 32 windows of
40 characters; the server steps with Adam. Adversaries send N(0, 1), or honest gradients on
random characters. Accuracy is on the last fifth of the honest roles' lines.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial

import numpy as np
from matplotlib.figure import Figure

from consilience.lab import shakespeare
from consilience.lab.experiments import METHODS, Scale
from consilience.lab.federation import Federation, adam
from consilience.lab.figures import curves
from consilience.lab.models import Tensor, char_lstm, torch
from consilience.lab.runner import Cell, Row, Tick
from consilience.lab.training import Samples, Trainers, windows

HONEST = 5
ADVERSARIES = (0, 5, 10)
ATTACKS = {"gaussian": "random vectors", "random_local": "random local updates"}
BATCH, LENGTH, RATE = 32, 40, 0.01
TEST_WINDOWS = 500


def cells(scale: Scale, seeds: int) -> list[Cell]:
    """One cell per attack, number of adversaries, method and seed."""
    return [
        Cell(
            "fig3",
            {
                "attack": attack,
                "R": count,
                "method": label,
                "seed": seed,
                "rounds": scale.shakespeare_rounds,
                "hidden": scale.hidden,
            },
            partial(_run, attack, count, label, seed, scale.shakespeare_rounds, scale.hidden),
        )
        for seed in range(seeds)
        for attack in ATTACKS
        for count in (ADVERSARIES if attack == "gaussian" else ADVERSARIES[1:])
        for label in METHODS
    ]


@cache
def _data() -> tuple[dict[str, Samples], Samples, int]:
    roles = shakespeare.load(minimum=10_000)
    largest = sorted(roles, key=lambda role: (-len(roles[role]), role))[: HONEST + max(ADVERSARIES)]
    characters = shakespeare.vocabulary(roles.values())
    shards, held_out = {}, []
    for role in largest:
        train, test = shakespeare.split(roles[role])
        shards[role] = windows(shakespeare.encode(train, characters), LENGTH)
        if len(shards) <= HONEST:
            held_out.append(windows(shakespeare.encode(test, characters), LENGTH))
    inputs, targets = (torch.cat(parts) for parts in zip(*held_out, strict=True))
    chosen = torch.from_numpy(np.linspace(0, len(inputs) - 1, TEST_WINDOWS).astype(np.int64))
    return shards, Samples(inputs[chosen], targets[chosen]), len(characters)


def _run(
    attack: str, adversaries: int, label: str, seed: int, rounds: int, hidden: int, tick: Tick
) -> list[Row]:
    shards, test, size = _data()
    model, names = char_lstm(size, hidden), list(shards)
    federation = Federation(
        Trainers(model, shards, seed, BATCH),
        names[:HONEST],
        METHODS[label],
        adam(RATE),
        adversaries=names[HONEST : HONEST + adversaries],
        attack=attack,
    )

    def evaluate(parameters: Tensor) -> Row:
        return {"accuracy": model.accuracy(parameters, *test)}

    return federation.run(rounds, evaluate, tick, every=max(1, rounds // 20))


def figures(records: Sequence[Row]) -> dict[str, Figure]:
    """Return Figure 3: accuracy by round, a panel per number of adversaries, for each attack."""
    found = {}
    for attack, words in ATTACKS.items():
        counts = ADVERSARIES if attack == "gaussian" else ADVERSARIES[1:]
        titles = {count: f"{HONEST} honest, {count} adversaries: {words}" for count in counts}
        mine = [record for record in records if record["attack"] == attack]
        name = "fig3" if attack == "gaussian" else "fig3-random-local"
        found[name] = curves(mine, "R", titles, "accuracy", "test accuracy")
    return found
