"""Backdoors: method × kind × heterogeneity × number of adversaries, by federated averaging.

Ten honest parties and f adversaries each train the 784-100-10 network locally: 20 steps of SGD per
round, batches of 25, rate 0.1. An update is the change of the model; the server, with a memory,
adds their consensus. `attacks.backdoors` has the kinds and defines success, `pictures` says who
holds what, `lineup` has the methods and the oracle. The oracle's success is the share of pictures
that a model takes for the target although nobody taught it to.

Reported are the success at the end, and the largest in the last third of the rounds. The attack
`replacement` replaces the model at the beginning of that third.

    plan = replace(PLAN, methods=("mean",), own={"careful": Pairwise(...)})    # and your own method
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from consilience import methods
from consilience.estimators.catalogue import DEFAULT, Method
from consilience.lab.attacks.backdoors import TRIGGERS, Trigger
from consilience.lab.experiments.lineup import NONE, ORACLE, Seen, among, check, method_of, quiet
from consilience.lab.experiments.pictures import DATA, HETEROGENEITY, Pictures, adversary, shards
from consilience.lab.federation import Federation, Local, Rule, add
from consilience.lab.models import Model, Tensor, mlp, torch
from consilience.lab.runner import Cell, Row, Tick
from consilience.lab.training import Samples, Trainers

BATCH, STEPS, RATE = 25, 20, 0.1


@dataclass(frozen=True)
class Plan:
    """Which cells to run: every combination, and the oracle."""

    methods: tuple[str, ...]
    kinds: tuple[str, ...]
    heterogeneity: tuple[str, ...]
    adversaries: tuple[int, ...]
    rounds: int
    seeds: int
    data: str = "mnist"
    own: Mapping[str, Method | Rule] = field(default_factory=dict)  # your own methods, by any name

    @property
    def experiment(self) -> str:
        """The name under which its cells are kept."""
        return f"backdoors-{self.data}"

    def check(self) -> None:
        """Raise an error that tells the first unknown name or invalid number."""
        check(self.methods, self.heterogeneity, self.adversaries)
        among("backdoor", self.kinds, tuple(TRIGGERS))
        among("data set", (self.data,), DATA)


PLAN = Plan(
    methods=tuple(name for name in methods() if name != "icov-full"),
    kinds=tuple(TRIGGERS),
    heterogeneity=HETEROGENEITY,
    adversaries=(1, 2, 4),
    rounds=30,
    seeds=1,
)
# What --quick changes.
QUICK: dict[str, Any] = {
    "methods": ("mean", "coordinate-median", DEFAULT),
    "kinds": ("patch",),
    "heterogeneity": ("iid",),
    "adversaries": (1, 4),
}


def cells(plan: Plan) -> list[Cell]:
    """Return one cell per combination. Cells with the same data are neighbours."""
    found = []
    for seed in range(plan.seeds):
        for heterogeneity in plan.heterogeneity:
            cases = [(ORACLE, NONE, 0)]
            cases += [
                (method, kind, count)
                for method in (*plan.methods, *plan.own)
                for kind in plan.kinds
                for count in plan.adversaries
            ]
            for method, kind, count in cases:
                settings: dict[str, int | float | str] = {
                    "method": method,
                    "kind": kind,
                    "heterogeneity": heterogeneity,
                    "adversaries": count,
                    "seed": seed,
                    "rounds": plan.rounds,
                }
                run = partial(_run, plan.data, settings, plan.own.get(method))
                found.append(Cell(plan.experiment, settings, run))
    return found


def _run(
    data: str, settings: Mapping[str, Any], own: Method | Rule | None, tick: Tick
) -> list[Row]:
    pictures, kind, count = Pictures(data), settings["kind"], settings["adversaries"]
    seed, rounds = settings["seed"], settings["rounds"]
    late = 2 * rounds // 3
    honest, test = shards(pictures, settings["heterogeneity"], seed)
    bad = {f"adversary{k}": adversary(pictures, seed, k) for k in range(count)}
    model, seen = mlp(), Seen(list(honest), list(bad))
    federation = Federation(
        Trainers(model, {**honest, **bad}, seed, BATCH),
        list(honest),
        method_of(settings["method"], count, count) if own is None else own,
        add,
        adversaries=list(bad),
        attack=kind,
        settings={"at": late} if kind == "replacement" else {},
        local=Local(STEPS, RATE),
        watch=seen,
    )
    triggers = list(TRIGGERS.values()) if kind == NONE else [TRIGGERS[kind]]
    with quiet():
        evaluate = Evaluation(model, test, triggers)
        records = federation.run(rounds, evaluate, tick)
    records[-1] |= {"final": records[-1]["accuracy"], **seen.summary()}
    for trigger in triggers:
        shares = [record[trigger.name] for record in records if record["round"] > late]
        records[-1][f"most_{trigger.name}"] = max(shares)
    return records


class Evaluation:
    """Measures the accuracy of parameters, and each backdoor's success under its trigger's name."""

    def __init__(self, model: Model, test: Samples, triggers: Sequence[Trigger]) -> None:
        self.model, self.test, self.triggered = model, test, {}
        for trigger in triggers:
            victims = test.inputs[torch.from_numpy(trigger.victims(test.targets.numpy()))]
            changed = torch.from_numpy(trigger.put(victims.numpy()))
            self.triggered[trigger.name] = (trigger.target, changed)

    def __call__(self, parameters: Tensor) -> Row:
        """Return one record. A model that is not finite classifies nothing as the target."""
        finite = bool(torch.isfinite(parameters).all())
        found: Row = {"accuracy": round(self.model.accuracy(parameters, *self.test), 4)}
        for name, (target, inputs) in self.triggered.items():
            taken = self.model.predict(parameters, inputs) == target
            found[name] = round(float(taken.double().mean()), 4) if finite else 0.0
        return {**found, "broken": not finite}
