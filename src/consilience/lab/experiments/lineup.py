"""The methods of an experiment by name, and the summary of its rounds.

Names are those of `consilience.methods()`, of `peers()`, of `RULES` and of `TOLD`: our versions of
published methods, told the true number of adversaries. The oracle is the mean of the honest
updates, which a server could form only if it knew the adversaries.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from consilience import ARC, CAF, MDA, NNM, DnC, GeometricMedian, Krum, methods
from consilience.estimators.catalogue import Method
from consilience.lab.experiments.pictures import HONEST, divider
from consilience.lab.federation import Rule, Watched
from consilience.lab.peers import peer, peers
from consilience.lab.rules import RULES
from consilience.lab.runner import Row

NONE, ORACLE = "none", "oracle"
TOLD: dict[str, Callable[[int], Method]] = {
    "told-krum": Krum,
    "told-multi-krum": lambda f: Krum(f, selected=None),
    "told-mda": MDA,
    "told-dnc": DnC,
    "told-caf": CAF,
    "told-nnm": lambda f: NNM(GeometricMedian(), f),
    "told-arc": lambda f: ARC(NNM(GeometricMedian(), f), f),
}


def method_of(name: str, adversaries: int, present: int) -> str | Method | Rule:
    """Return the method of that name; peers and `TOLD` are told the number of adversaries.

    ``present`` is how many of them take part. Most methods refuse a number f that is half of the n
    parties or more, and Krum one with n < 2f + 3, so a method is told no more than it takes.
    """
    spare = 3 if name in ("told-krum", "told-multi-krum") else 1
    told = min(adversaries, (HONEST + present - spare) // 2)
    if name == ORACLE:
        return "mean"  # only honest parties take part
    if name in TOLD:
        return TOLD[name](told)
    if name in RULES:
        return RULES[name]()
    return peer(name, told) if name in peers() else name


def check(names: Sequence[str], heterogeneity: Sequence[str], adversaries: Sequence[int]) -> None:
    """Raise an error that tells the first unknown name or invalid number."""
    among("method", names, (*methods(), *TOLD, *RULES, *peers()))
    for name in names:
        method_of(name, adversaries=1, present=1)  # raises if ByzFL is not installed
    for kind in heterogeneity:
        divider(kind)
    for count in adversaries:
        if not 0 < count < HONEST:
            raise ValueError(f"{count} adversaries beside {HONEST} honest, expected 1 to 9")


def among(what: str, found: Sequence[str], known: Sequence[str]) -> None:
    """Raise an error that tells the first unknown name."""
    for name in found:
        if name not in known:
            raise ValueError(f"no {what} is called {name!r}; there are: {', '.join(known)}")


@contextmanager
def quiet() -> Iterator[None]:
    """Silence the warnings about rejected updates, which would come in every round."""
    logger = logging.getLogger("consilience")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


class Seen:
    """What a cell keeps of its rounds."""

    def __init__(self, honest: list[str], adversaries: list[str]) -> None:
        self.adversaries = len(adversaries)
        self.weights = dict.fromkeys([*honest, *adversaries], 0.0)
        self.misses: list[float] = []
        self.seconds: list[float] = []

    def __call__(self, round: Watched) -> None:
        """Add a round."""
        self.seconds.append(round.seconds)
        miss = round.miss
        if np.isfinite(miss):
            self.misses.append(miss)
        if round.consensus is not None:
            for party, weight in round.consensus.weights.items():
                self.weights[party] += weight

    def summary(self) -> Row:
        """Return the median distance from the oracle and time, and the least trusted parties."""
        least = sorted(self.weights, key=lambda party: self.weights[party])
        differs = self.weights[least[-1]] - self.weights[least[0]] > 1e-6
        return {
            "distance": round(float(np.median(self.misses)), 4) if self.misses else None,
            "seconds": round(float(np.median(self.seconds)), 5),
            # As many as there are adversaries; None if all weigh the same.
            "least_trusted": least[: self.adversaries or 1] if differs else None,
        }
