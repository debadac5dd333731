"""The adversaries.

An attack is a function of the honest updates (H, K), the number of adversaries f and a random
generator, and gives what the adversaries send, (f, K):

    knowledge = Knowledge(classes=10, train=train)     # what this protocol can tell an adversary
    attack = make("gaussian", knowledge)
    bad = attack(honest, 5, rng)

Whatever else an attack may need, the protocol puts into a `Knowledge`, the same for all attacks; an
attack's own settings are keywords of `make`. To add an attack, write a function that takes a
Knowledge and its settings, returns an Attack, and is decorated with `register`.

`SUITE` is the line-up of the benchmarks: each attack with its settings.

    for label, (name, settings) in SUITE.items():
        attack = make(name, knowledge, **settings)

Backdoors are not in it: they do not aim at accuracy, and have a benchmark of their own. `AIMED` has
attacks whose settings were chosen with `pairwise` in mind, `BYZFL` those of ByzFL's own code. A
benchmark runs them if they are named.
"""

from __future__ import annotations

from typing import Any

from consilience.lab.attacks import (
    adaptive,
    backdoors,
    blind,
    byzfl,
    crafted,
    optimised,
    poisoned,
)
from consilience.lab.attacks.registry import (
    Attack,
    Knowledge,
    Poison,
    Sent,
    attacks,
    make,
    register,
)

__all__ = [
    "AIMED",
    "BYZFL",
    "MALFORMED",
    "NEEDS_AGGREGATOR",
    "NEEDS_TRAINING",
    "SUITE",
    "Attack",
    "Knowledge",
    "Poison",
    "Sent",
    "adaptive",
    "attacks",
    "backdoors",
    "blind",
    "byzfl",
    "crafted",
    "make",
    "optimised",
    "poisoned",
    "register",
]

SUITE: dict[str, tuple[str, dict[str, Any]]] = {
    "gaussian": ("gaussian", {}),
    "random-local": ("random_local", {}),
    "label-flip": ("label_flip", {}),
    "sign-flip": ("sign_flip", {}),
    "ipm-0.1": ("ipm", {"tau": 0.1}),
    "ipm-0.5": ("ipm", {"tau": 0.5}),
    "ipm-1": ("ipm", {"tau": 1.0}),
    "ipm-2": ("ipm", {"tau": 2.0}),
    "ipm-10": ("ipm", {"tau": 10.0}),
    "ipm-100": ("ipm", {"tau": 100.0}),
    "ipm-optimised": ("optimised_ipm", {}),
    "alie-0.3": ("alie", {"z": 0.3}),
    "alie-0.5": ("alie", {"z": 0.5}),
    "alie-1": ("alie", {"z": 1.0}),
    "alie-1.5": ("alie", {"z": 1.5}),
    "alie-minus-1.5": ("alie", {"z": -1.5}),
    "alie": ("alie", {}),
    "alie-noisy-0.3": ("alie", {"z": 0.3, "noise": 0.5}),
    "alie-noisy-1": ("alie", {"z": 1.0, "noise": 0.5}),
    "alie-noisy-1.5": ("alie", {"z": 1.5, "noise": 0.5}),
    "alie-optimised": ("optimised_alie", {}),
    "adaptive": ("adaptive", {}),
    "mimic": ("mimic", {}),
    "sybil": ("sybil", {}),
    "sybil-noisy": ("sybil", {"noise": 0.1}),
    "far-copies": ("sybil", {"length": 10.0}),
    "min-max": ("min_max", {}),
    "min-sum": ("min_sum", {}),
    "inf": ("inf", {}),
    "nan": ("nan", {}),
    "huge": ("huge", {}),
    "zero": ("zero", {}),
    "wrong-shape": ("wrong_shape", {}),
    "missing-tensor": ("missing_tensor", {}),
}

# A disguise: each adversary adds noise of its own to μ − sd, as long as sd and the same in every
# round, so that two of them have a correlation of one half, like honest parties with similar data.
# And sizes below and above the bar on what lasts, between those of the suite.
AIMED: dict[str, tuple[str, dict[str, Any]]] = {
    "disguise": ("alie", {"z": 1.0, "noise": 1.0, "steady": True}),
    "alie-0.6": ("alie", {"z": 0.6}),
    "alie-0.8": ("alie", {"z": 0.8}),
    "alie-1.25": ("alie", {"z": 1.25}),
    "alie-2": ("alie", {"z": 2.0}),
}

# What ByzFL's benchmark runs, by ByzFL's own search.
BYZFL: dict[str, tuple[str, dict[str, Any]]] = {
    "byzfl-ipm": ("byzfl_ipm", {}),
    "byzfl-alie": ("byzfl_alie", {}),
}

# Labels of the suite: attacks that need `train` or `aggregate` of their Knowledge, and attacks
# whose updates every aggregator must reject.
NEEDS_TRAINING = frozenset({"random-local", "label-flip"})
NEEDS_AGGREGATOR = frozenset({"ipm-optimised", "alie-optimised", "adaptive"})
MALFORMED = frozenset({"inf", "nan", "wrong-shape", "missing-tensor"})
