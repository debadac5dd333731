"""Robustness: method × attack × heterogeneity × number of adversaries × worker momentum, on MNIST.

Ten honest parties and f adversaries, batches of 25, rate 0.1. There are two protocols: `mlp`, our
own, and `byzfl`, the published configuration of ByzFL's benchmark: its network, normalised
pictures, four fifths of the training images, weight decay at the server, an evaluation every 50 of
800 steps. (Two things still differ: ByzFL's momentum starts at zero, ours at the first gradient;
and ByzFL draws batches without replacement.)

`pictures` says who holds what, `lineup` has the methods and the oracle. Under the attack `none`
only the honest parties take part, yet peers are still told f. It shows what robustness costs when
it is not needed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from consilience import methods
from consilience.estimators.catalogue import DEFAULT, Method
from consilience.lab.attacks import AIMED, BYZFL, NEEDS_AGGREGATOR, SUITE
from consilience.lab.experiments.lineup import NONE, ORACLE, Seen, among, check, method_of, quiet
from consilience.lab.experiments.pictures import HETEROGENEITY, Pictures, adversary, shards
from consilience.lab.federation import Federation, Rule, sgd
from consilience.lab.models import Model, Tensor, cnn_mnist, mlp, torch
from consilience.lab.peers import peers
from consilience.lab.runner import Cell, Row, Tick
from consilience.lab.training import Trainers

BATCH, RATE = 25, 0.1
EVALUATIONS = 16


@dataclass(frozen=True)
class Plan:
    """Which cells to run: every combination, and the oracle."""

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
        """The name under which its cells are kept."""
        return f"robustness-{self.protocol}"

    def check(self) -> None:
        """Raise an error that tells the first unknown name or invalid number."""
        check(self.methods, self.heterogeneity, self.adversaries)
        for label in self.attacks:
            _attack(label)
        for share in self.momentum:
            if not 0 <= share < 1:
                raise ValueError(f"momentum is {share:g}, expected at least 0 and less than 1")


@dataclass(frozen=True)
class Protocol:
    """What a cell needs besides its settings."""

    model: Callable[[], Model]
    pictures: Pictures
    weight_decay: float = 0.0


PROTOCOLS = {
    "mlp": Protocol(mlp, Pictures()),
    "byzfl": Protocol(cnn_mnist, Pictures(training_share=0.8, normalised=True), weight_decay=1e-4),
}
# Left out: icov-full, ByzFL's SMEA, which takes seconds, and our versions of published methods.
_PUBLISHED = ("mda", "dnc", "caf", "centred-clipping", "nnm", "arc")
_OURS = tuple(name for name in methods() if name not in ("icov-full", *_PUBLISHED))
_PEERS = tuple(name for name in peers() if "smea" not in name)
PLANS = {
    "mlp": Plan(
        "mlp",
        (*_OURS, *_PEERS),
        (NONE, *SUITE),
        HETEROGENEITY,
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
    """Return one cell per combination. Cells with the same data are neighbours."""
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
    present = 0 if settings["attack"] == NONE else settings["adversaries"]
    return run(
        protocol, method_of(settings["method"], settings["adversaries"], present), settings, tick
    )


def run(
    protocol: str,
    method: str | Method | Rule,
    settings: Mapping[str, Any],
    tick: Tick = lambda *_: None,
) -> list[Row]:
    """Train with these settings by any method. Return the accuracy over the rounds; the last record
    also has the summary of all rounds."""
    kind = PROTOCOLS[protocol]
    seed, rounds = settings["seed"], settings["rounds"]
    honest, test = shards(kind.pictures, settings["heterogeneity"], seed)
    present = 0 if settings["attack"] == NONE else settings["adversaries"]
    bad = {f"adversary{k}": adversary(kind.pictures, seed, k) for k in range(present)}
    attack, attack_settings = _attack(settings["attack"])
    model, seen = kind.model(), Seen(list(honest), list(bad))
    federation = Federation(
        Trainers(model, {**honest, **bad}, seed, BATCH, settings["momentum"]),
        list(honest),
        method,
        sgd(RATE, weight_decay=kind.weight_decay),
        adversaries=list(bad),
        attack=attack,
        settings=attack_settings,
        watch=seen,
    )

    def evaluate(parameters: Tensor) -> Row:
        finite = bool(torch.isfinite(parameters).all())
        return {"accuracy": round(model.accuracy(parameters, *test), 4), "broken": not finite}

    with quiet():
        records = federation.run(rounds, evaluate, tick, every=-(-rounds // EVALUATIONS))
    best = max(record["accuracy"] for record in records)
    records[-1] |= {"final": records[-1]["accuracy"], "best": best, **seen.summary()}
    return records


def _attack(label: str) -> tuple[str, dict[str, Any]]:
    """Return the attack of that label; ``alie-optimised@10`` searches in every tenth round only."""
    kind, _, every = label.partition("@")
    known = {NONE: ("gaussian", {}), **SUITE, **AIMED, **BYZFL}  # under "none" nobody sends it
    among("attack", (kind,), tuple(known))
    name, settings = known[kind]
    if kind == label:
        return name, settings
    if kind not in NEEDS_AGGREGATOR or not every.isdigit() or int(every) < 1:
        searching = ", ".join(sorted(NEEDS_AGGREGATOR))
        raise ValueError(f"{label!r}: only {searching} take an @ and a number of rounds after it")
    return name, {**settings, "every": int(every)}
