"""The paper's experiments, one module each, and two of ours: `robustness` and `backdoors`.

A module of the paper's has ``cells(scale, seeds)``, the pieces to run, and ``figures(records)``. A
`Scale` says how much to run: all of the protocol, or so little that everything takes minutes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from consilience import ICOV, IVAR, Consensus
from consilience.estimators.catalogue import Method

# The paper's methods, in the order of its table, and this library's default.
DRAWN: dict[str, str | Method] = {
    "Uniform average": "mean",
    "Geometric median": "geometric-median",
    "Coordinate median": "coordinate-median",
    "IVAR-VB": "ivar-vb",
    "IVAR-MLE": "ivar-mle",
    "ICOV-VB": "icov-vb",
    "ICOV-MLE": "icov-mle",
    "Pairwise": "pairwise",
}
# Variants with a fault mended. In tables only: eleven lines are too many for a figure.
MENDED: dict[str, str | Method] = {
    # The weights sum to one, so no prior at zero shrinks the step.
    "IVAR-VB, normalised": IVAR("vb", estimate="gls"),
    # A party's variance is at least half of that of the closest pair.
    "IVAR-MLE, floor": IVAR("mle", epsilon=0.5),
    # The exact posterior. Noise per party and learned rank, as in ICOV-VB.
    "ICOV-VB, joint": ICOV("vb", posterior="joint"),
}
METHODS = {**DRAWN, **MENDED}


def rank(consensus: Consensus | None) -> int:
    """Return the rank of the latent factors that were inferred; ICOV-VB of rank 0 is IVAR-VB."""
    latent = None if consensus is None or consensus.beliefs is None else consensus.beliefs.latent
    return 0 if latent is None else latent.factors.shape[1]


@dataclass(frozen=True)
class Scale:
    """How much of the experiments to run."""

    name: str
    methods: Mapping[str, str | Method]
    seeds: Mapping[str, int]  # by experiment
    regression_rounds: int
    mnist_rounds: int
    shakespeare_rounds: int
    hidden: int  # units of the character LSTM
    random_local_rounds: int
    one_round_adversaries: tuple[int, ...]


FULL = Scale(
    "full",
    methods=METHODS,
    seeds={"fig1": 10, "one-round": 10, "fig2": 3, "fig3": 3, "random-local": 3},
    regression_rounds=120,
    mnist_rounds=500,
    shakespeare_rounds=800,
    hidden=128,
    random_local_rounds=250,
    one_round_adversaries=tuple(range(11)),
)
QUICK = Scale(
    "quick",
    methods=DRAWN,
    seeds={"fig1": 1, "one-round": 1, "fig2": 1, "fig3": 1, "random-local": 1},
    regression_rounds=20,
    mnist_rounds=30,
    shakespeare_rounds=20,
    hidden=32,
    random_local_rounds=10,
    one_round_adversaries=(0, 5, 10),
)
