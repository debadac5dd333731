"""The experiments of the paper, one module each: protocol in, records out.

Every module has ``cells(scale, seeds)``, the pieces to run, and ``figures(records)``. A `Scale`
says how much of the protocol to do: all of it, or little enough to see everything in minutes.
"""

from __future__ import annotations

from dataclasses import dataclass

# The paper's line-up, in the order of its table, and the method that this library recommends.
METHODS = {
    "Uniform average": "mean",
    "Geometric median": "geometric-median",
    "Coordinate median": "coordinate-median",
    "IVAR-VB": "ivar-vb",
    "IVAR-MLE": "ivar-mle",
    "ICOV-VB": "icov-vb",
    "ICOV-MLE": "icov-mle",
    "Pairwise": "pairwise",
}


@dataclass(frozen=True)
class Scale:
    """How much of the experiments to do."""

    name: str
    seeds: int
    regression_rounds: int
    mnist_rounds: int
    shakespeare_rounds: int
    hidden: int  # units of the character LSTM
    one_round_adversaries: tuple[int, ...]


FULL = Scale(
    "full",
    seeds=3,
    regression_rounds=120,
    mnist_rounds=500,
    shakespeare_rounds=250,
    hidden=64,
    one_round_adversaries=tuple(range(11)),
)
QUICK = Scale(
    "quick",
    seeds=1,
    regression_rounds=30,
    mnist_rounds=40,
    shakespeare_rounds=20,
    hidden=32,
    one_round_adversaries=(0, 5, 10),
)
