"""Figure 3: the next character of Shakespeare, 5 honest parties and 0, 5 or 10 adversaries.

A party holds whole plays: all 37 are dealt out by length to 15 parties. The first five are honest,
and have 1.3 million characters to train on. The model is an LSTM with one layer (McMahan et al.:
two layers of 256 units); it passes an accuracy of 0.50 in a minute on one core. Parties send
gradients on 8 windows of 80 characters. The server steps with Adam and a one-cycle learning rate.
Adversaries send N(0, 1). Accuracy is that on the last fifth of the lines of each role in the honest
parties' plays, in windows of 200 characters.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import cache, partial
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from consilience.lab import shakespeare
from consilience.lab.experiments import METHODS, Scale
from consilience.lab.federation import Federation, adam, one_cycle
from consilience.lab.figures import curves
from consilience.lab.models import Tensor, char_lstm, torch
from consilience.lab.runner import Cell, Row, Tick
from consilience.lab.training import Samples, Trainers, windows

HONEST = 5
ADVERSARIES = (0, 5, 10)
BATCH, LENGTH = 8, 80
RATE, LONGEST = 0.04, 0.3  # peak learning rate; length to which a consensus is clipped
EMBEDDING, LAYERS, FORGET = 16, 1, 1.0
TEST_WINDOWS, TEST_LENGTH = 200, 200
SHORTEST = 1000  # characters; roles that say less are left out


def cells(scale: Scale, seeds: int) -> list[Cell]:
    """Return one cell per number of adversaries, method and seed; those of Table 1 come first."""
    return [
        Cell(
            "fig3",
            {
                "R": count,
                "method": label,
                "seed": seed,
                "rounds": scale.shakespeare_rounds,
                "hidden": scale.hidden,
            },
            partial(_run, count, label, seed, scale.shakespeare_rounds, scale.hidden),
        )
        for seed in range(seeds)
        for count in sorted(ADVERSARIES, key=lambda count: count != 5)
        for label in scale.methods
    ]


@cache
def data() -> tuple[dict[str, Samples], Samples, int]:
    """Return the parties' shards, the honest first; the test set; the size of the vocabulary."""
    roles = shakespeare.load(minimum=SHORTEST)
    characters = shakespeare.vocabulary(roles.values())
    plays: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for role, lines in roles.items():
        plays[role.partition("/")[0]].append(shakespeare.split(lines))
    longest = sorted(plays, key=lambda play: (-sum(len(train) for train, _ in plays[play]), play))
    parties = HONEST + max(ADVERSARIES)
    shards, held_out = {}, []
    for party in range(parties):
        texts = [split for play in longest[party::parties] for split in plays[play]]
        first, rest = "".join(text[0] for text in texts), "\n".join(text[1] for text in texts)
        shards[f"party{party:02}"] = windows(shakespeare.encode(first, characters), LENGTH)
        if party < HONEST:
            held_out.append(windows(shakespeare.encode(rest, characters), TEST_LENGTH))
    inputs, targets = (torch.cat(parts) for parts in zip(*held_out, strict=True))
    chosen = torch.from_numpy(np.linspace(0, len(inputs) - 1, TEST_WINDOWS).astype(np.int64))
    return shards, Samples(inputs[chosen], targets[chosen]), len(characters)


def train(
    adversaries: int,
    label: str,
    seed: int,
    rounds: int,
    hidden: int,
    tick: Tick,
    kind: type[Federation] = Federation,
    **attack: Any,
) -> list[Row]:
    """Train by one method with adversaries; return the accuracy over the rounds."""
    shards, test, size = data()
    model, names = char_lstm(size, hidden, EMBEDDING, LAYERS, FORGET), list(shards)
    federation = kind(
        Trainers(model, shards, seed, BATCH),
        names[:HONEST],
        METHODS[label],
        adam(one_cycle(RATE, rounds), second=0.99, longest=LONGEST),
        adversaries=names[HONEST : HONEST + adversaries],
        **attack,
    )

    def evaluate(parameters: Tensor) -> Row:
        return {"accuracy": round(model.accuracy(parameters, *test), 4)}

    return federation.run(rounds, evaluate, tick, every=max(10, rounds // 20))


def _run(
    adversaries: int, label: str, seed: int, rounds: int, hidden: int, tick: Tick
) -> list[Row]:
    return train(adversaries, label, seed, rounds, hidden, tick)


def figures(records: Sequence[Row]) -> dict[str, Figure]:
    """Return Figure 3: accuracy by round, a panel per number of adversaries."""
    titles = {count: f"{HONEST} honest parties, {count} adversaries" for count in ADVERSARIES}
    return {"fig3": curves(records, "R", titles, "accuracy", "test accuracy")}
