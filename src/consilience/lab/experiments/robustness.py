"""Robustness: method × attack × heterogeneity × number of adversaries × worker momentum, on MNIST.

Ten honest parties, f adversaries beside them, batches of 25, rate 0.1. Two protocols: `mlp`, ours,
and `byzfl`, the published configuration of ByzFL's benchmark: its network, normalised pictures,
four fifths of the training images, weight decay at the server, an evaluation every 50 of 800
steps. (Its momentum starts at zero, ours at the first gradient; it draws batches without
replacement.)

The honest parties' data depend on the seed and the heterogeneity alone. An adversary that trains
has an IID sample of the training images, as large as a tenth of them.

The oracle is the mean of the honest updates: what a server would do that knew the adversaries.
Under the attack `none` nobody but the honest takes part, yet peers are still told f: what
robustness costs when it is not needed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np

from consilience import methods
from consilience.estimators.catalogue import DEFAULT
from consilience.lab import mnist
from consilience.lab.attacks import NEEDS_AGGREGATOR, SUITE
from consilience.lab.federation import Federation, Rule, Watched, sgd
from consilience.lab.models import Model, Tensor, cnn_mnist, mlp, torch
from consilience.lab.partitions import (
    Indices,
    Labels,
    dirichlet,
    gamma_similarity,
    iid,
    one_class_per_party,
)
from consilience.lab.peers import peer, peers
from consilience.lab.runner import Cell, Row, Tick
from consilience.lab.training import Samples, Trainers, images

HONEST, BATCH, RATE = 10, 25, 0.1
EVALUATIONS = 16
NONE, ORACLE = "none", "oracle"


@dataclass(frozen=True)
class Plan:
    """Which cells to run: every combination, and the oracle's."""

    protocol: str
    methods: tuple[str, ...]
    attacks: tuple[str, ...]
    heterogeneity: tuple[str, ...]
    adversaries: tuple[int, ...]
    momentum: tuple[float, ...]
    rounds: int
    seeds: int

    @property
    def experiment(self) -> str:
        """The name its cells are kept under."""
        return f"robustness-{self.protocol}"

    def check(self) -> None:
        """Raise an error that names the first thing that does not exist."""
        _among("method", self.methods, (*methods(), *peers()))
        for name in self.methods:
            _method(name, adversaries=1)  # raises if ByzFL is not installed
        for label in self.attacks:
            _attack(label)
        for name in self.heterogeneity:
            _divider(name)
        for share in self.momentum:
            if not 0 <= share < 1:
                raise ValueError(f"momentum is {share:g}, expected at least 0 and less than 1")
        for count in self.adversaries:
            if not 0 < count < HONEST:
                raise ValueError(f"{count} adversaries beside {HONEST} honest, expected 1 to 9")


@dataclass(frozen=True)
class Protocol:
    """What a cell is made of besides its settings."""

    model: Callable[[], Model]
    weight_decay: float = 0.0
    training_share: float = 1.0  # of the training images
    normalised: bool = False  # to mean 0 and variance 1 over all pixels of MNIST


PROTOCOLS = {
    "mlp": Protocol(mlp),
    "byzfl": Protocol(cnn_mnist, weight_decay=1e-4, training_share=0.8, normalised=True),
}
# Left out: icov-full, and what ByzFL takes seconds for.
_OURS = tuple(name for name in methods() if name != "icov-full")
_PEERS = tuple(name for name in peers() if "smea" not in name)
PLANS = {
    "mlp": Plan(
        "mlp",
        (*_OURS, *_PEERS),
        (NONE, *SUITE),
        ("iid", "dirichlet-1", "dirichlet-0.1", "one-class"),
        adversaries=(4,),
        momentum=(0.0, 0.9),
        rounds=300,
        seeds=1,
    ),
    "byzfl": Plan(
        "byzfl",
        ("pairwise", "byzfl-nnm-trmean", "byzfl-nnm-geometric-median"),
        (NONE, "sign-flip", "ipm-optimised", "alie-optimised"),
        ("gamma-0",),
        adversaries=(1, 2, 3, 4),
        momentum=(0.9,),
        rounds=800,
        seeds=1,
    ),
}
# What --quick changes, in either protocol.
QUICK: dict[str, Any] = {
    "methods": ("mean", DEFAULT, "byzfl-nnm-trmean"),
    "attacks": (NONE, "gaussian", "sign-flip"),
    "adversaries": (4,),
    "momentum": (0.9,),
    "rounds": 30,
}


def cells(plan: Plan) -> list[Cell]:
    """One cell per combination. Those with the same data are neighbours."""
    found = []
    for seed in range(plan.seeds):
        for heterogeneity in plan.heterogeneity:
            for momentum in plan.momentum:
                kinds = [(ORACLE, NONE, 0)]
                kinds += [
                    (method, attack, count)
                    for method in plan.methods
                    for attack in plan.attacks
                    for count in plan.adversaries
                ]
                for method, attack, count in kinds:
                    settings: dict[str, int | float | str] = {
                        "method": method,
                        "attack": attack,
                        "heterogeneity": heterogeneity,
                        "adversaries": count,
                        "momentum": momentum,
                        "seed": seed,
                        "rounds": plan.rounds,
                    }
                    run = partial(_run, plan.protocol, settings)
                    found.append(Cell(plan.experiment, settings, run))
    return found


def _run(protocol: str, settings: Mapping[str, Any], tick: Tick) -> list[Row]:
    kind = PROTOCOLS[protocol]
    seed, rounds = settings["seed"], settings["rounds"]
    honest, test = _data(protocol, settings["heterogeneity"], seed)
    present = 0 if settings["attack"] == NONE else settings["adversaries"]
    # Most peers refuse to work with a majority of adversaries, which f may be of the honest alone.
    told = min(settings["adversaries"], (HONEST + present - 1) // 2)
    bad = {f"adversary{k}": _adversary(protocol, seed, k) for k in range(present)}
    attack, attack_settings = _attack(settings["attack"])
    model, seen = kind.model(), Seen(list(honest), list(bad))
    federation = Federation(
        Trainers(model, {**honest, **bad}, seed, BATCH, settings["momentum"]),
        list(honest),
        _method(settings["method"], told),
        sgd(RATE, weight_decay=kind.weight_decay),
        adversaries=list(bad),
        attack=attack,
        settings=attack_settings,
        watch=seen,
    )

    def evaluate(parameters: Tensor) -> Row:
        finite = bool(torch.isfinite(parameters).all())
        return {"accuracy": round(model.accuracy(parameters, *test), 4), "broken": not finite}

    with _quiet():
        records = federation.run(rounds, evaluate, tick, every=-(-rounds // EVALUATIONS))
    best = max(record["accuracy"] for record in records)
    records[-1] |= {"final": records[-1]["accuracy"], "best": best, **seen.summary()}
    return records


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the news, every round, that a malformed update was rejected."""
    logger = logging.getLogger("consilience")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _method(name: str, adversaries: int) -> str | Rule:
    if name == ORACLE:
        return "mean"  # nobody but the honest is there
    return peer(name, adversaries) if name in peers() else name


class Seen:
    """What a cell keeps of its rounds."""

    def __init__(self, honest: list[str], adversaries: list[str]) -> None:
        self.adversaries = len(adversaries)
        self.weights = dict.fromkeys([*honest, *adversaries], 0.0)
        self.misses: list[float] = []
        self.seconds: list[float] = []

    def __call__(self, round: Watched) -> None:
        """Take note of a round."""
        self.seconds.append(round.seconds)
        miss = round.miss
        if np.isfinite(miss):
            self.misses.append(miss)
        if round.consensus is not None:
            for party, weight in round.consensus.weights.items():
                self.weights[party] += weight

    def summary(self) -> Row:
        """The median distance from the oracle and time, and whom the method trusted least."""
        least = sorted(self.weights, key=lambda party: self.weights[party])
        differs = self.weights[least[-1]] - self.weights[least[0]] > 1e-6
        return {
            "distance": round(float(np.median(self.misses)), 4) if self.misses else None,
            "seconds": round(float(np.median(self.seconds)), 5),
            # As many as there are adversaries; None: the method makes no difference.
            "least_trusted": least[: self.adversaries or 1] if differs else None,
        }


@lru_cache(maxsize=1)  # some hundred megabytes
def _data(protocol: str, heterogeneity: str, seed: int) -> tuple[dict[str, Samples], Samples]:
    """The honest parties' shards, and the test set."""
    digits, train = _training(protocol, seed)
    parts = _divider(heterogeneity)(digits.train_labels[train], np.random.default_rng([seed, 1]))
    normalised = PROTOCOLS[protocol].normalised
    honest = {f"party{j}": _shard(digits, train[part], normalised) for j, part in enumerate(parts)}
    test = images(digits.test_images, digits.test_labels)
    return honest, _normalised(test) if normalised else test


def _adversary(protocol: str, seed: int, number: int) -> Samples:
    digits, train = _training(protocol, seed)
    rng = np.random.default_rng([seed, 2, number])
    chosen = rng.choice(train, len(train) // HONEST, replace=False)
    return _shard(digits, chosen, PROTOCOLS[protocol].normalised)


@lru_cache(maxsize=1)
def _training(protocol: str, seed: int) -> tuple[mnist.Mnist, Indices]:
    digits = mnist.load()
    count = len(digits.train_labels)
    order = np.random.default_rng([seed, 0]).permutation(count)
    return digits, np.sort(order[: round(PROTOCOLS[protocol].training_share * count)])


def _shard(digits: mnist.Mnist, index: Indices, normalised: bool) -> Samples:
    made = images(digits.train_images[index], digits.train_labels[index])
    return _normalised(made) if normalised else made


def _normalised(shard: Samples) -> Samples:
    return Samples((shard.inputs - 0.1307) / 0.3081, shard.targets)


def _divider(name: str) -> Callable[[Labels, np.random.Generator], list[Indices]]:
    """The partition of that name: iid, one-class, dirichlet-ALPHA or gamma-SHARE."""
    kind, _, number = name.partition("-")
    if name == "iid":
        return lambda labels, rng: iid(len(labels), HONEST, rng)
    if name == "one-class":
        return lambda labels, rng: one_class_per_party(labels, HONEST)
    try:
        value = float(number)
    except ValueError:
        kind = ""
    if kind == "gamma":
        return lambda labels, rng: gamma_similarity(labels, HONEST, value, rng)
    if kind == "dirichlet":
        return lambda labels, rng: _nobody_empty(labels, value, rng)
    raise ValueError(
        f"no heterogeneity is called {name!r}; there are: iid, dirichlet-ALPHA, one-class, "
        "gamma-SHARE"
    )


def _nobody_empty(labels: Labels, alpha: float, rng: np.random.Generator) -> list[Indices]:
    # A party without a sample has no gradient: such a draw is drawn again.
    while True:
        parts = dirichlet(labels, HONEST, alpha, rng)
        if all(len(part) for part in parts):
            return parts


def _attack(label: str) -> tuple[str, dict[str, Any]]:
    """The attack of that label in the suite; alie-optimised@10 searches every tenth round only."""
    kind, _, every = label.partition("@")
    _among("attack", (kind,), (NONE, *SUITE))
    name, settings = SUITE.get(kind, ("gaussian", {}))  # none: there is nobody to send it
    if kind == label:
        return name, settings
    if kind not in NEEDS_AGGREGATOR or not every.isdigit() or int(every) < 1:
        raise ValueError(f"{label!r}: only an attack that searches has an @, and rounds after it")
    return name, {**settings, "every": int(every)}


def _among(what: str, found: tuple[str, ...], known: tuple[str, ...]) -> None:
    for name in found:
        if name not in known:
            raise ValueError(f"no {what} is called {name!r}; there are: {', '.join(known)}")
