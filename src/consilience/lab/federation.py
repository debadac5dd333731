"""A federation in one process: parties send gradients, adversaries send what they like.

Each round the server asks some parties for updates at its parameters, aggregates them by one
method, with a memory of the parties, and takes a step with the consensus.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from consilience import Consensus, Memory, aggregate
from consilience.catalogue import Method
from consilience.lab.attacks import Knowledge, make
from consilience.lab.models import Tensor, torch
from consilience.lab.runner import Record, Tick
from consilience.lab.training import Parties

Optimizer = Callable[[Tensor, Tensor], Tensor]  # parameters, consensus -> parameters


@dataclass
class Federation:
    """Who takes part, and what the server does with a consensus."""

    parties: Parties
    honest: Sequence[str]
    method: str | Method
    optimizer: Optimizer
    adversaries: Sequence[str] = ()
    attack: str = "gaussian"
    per_round: int | None = None  # how many take part in a round, drawn at random; None: all
    memory: Memory = field(default_factory=Memory)
    watch: Callable[[Consensus], None] = lambda consensus: None  # told of every round's consensus

    def run(
        self,
        rounds: int,
        evaluate: Callable[[Tensor], Record],
        tick: Tick,
        every: int = 1,
    ) -> list[Record]:
        """Train, and return what `evaluate` says of the parameters every so many rounds."""
        parameters = self.parties.model.initial(self.parties.seed)
        records = [{"round": 0, **evaluate(parameters)}]
        for round in range(rounds):
            parameters = self.step(parameters, round)
            if (round + 1) % every == 0 or round + 1 == rounds:
                records.append({"round": round + 1, **evaluate(parameters)})
            tick(round + 1, rounds)
        return records

    def step(self, parameters: Tensor, round: int) -> Tensor:
        """Return the parameters after one round."""
        rng = np.random.default_rng([self.parties.seed, round])
        everyone = [*self.honest, *self.adversaries]
        asked = set(everyone)
        if self.per_round is not None:
            asked = set(rng.choice(everyone, self.per_round, replace=False))
        honest = [party for party in self.honest if party in asked]
        bad = [party for party in self.adversaries if party in asked]
        updates = self._honest(parameters, round, honest)
        if bad:
            updates |= zip(bad, self._bad(parameters, round, updates, bad, rng), strict=True)
        consensus = aggregate(updates, self.method, memory=self.memory)
        self.watch(consensus)
        value = torch.from_numpy(np.asarray(consensus.value))
        return self.optimizer(parameters, value)

    def _honest(self, parameters: Tensor, round: int, parties: Sequence[str]) -> dict[str, Any]:
        if not parties:
            return {}
        rows = self.parties.gradients(parameters, round, parties).numpy()
        return dict(zip(parties, rows, strict=True))

    def _bad(
        self,
        parameters: Tensor,
        round: int,
        honest: dict[str, Any],
        bad: Sequence[str],
        rng: np.random.Generator,
    ) -> Any:
        def train(poison: Any, count: int) -> Any:
            return self.parties.gradients(parameters, round, bad[:count], poison).numpy()

        attack = make(self.attack, Knowledge(train=train, classes=self.parties.model.classes))
        known = np.array(list(honest.values())) if honest else np.zeros((0, parameters.numel()))
        return attack(known.astype(np.float32), len(bad), rng)


def sgd(rate: float, momentum: float = 0.0) -> Optimizer:
    """Gradient descent with the server's momentum."""
    velocity: Tensor | None = None

    def step(parameters: Tensor, consensus: Tensor) -> Tensor:
        nonlocal velocity
        velocity = consensus if velocity is None else momentum * velocity + consensus
        return parameters - rate * velocity

    return step


def adam(rate: float, first: float = 0.9, second: float = 0.999) -> Optimizer:
    """Adam (Kingma and Ba 2015), with the consensus for a gradient."""
    mean = square = torch.zeros(())
    steps = 0

    def step(parameters: Tensor, consensus: Tensor) -> Tensor:
        nonlocal mean, square, steps
        steps += 1
        mean = first * mean + (1 - first) * consensus
        square = second * square + (1 - second) * consensus**2
        scale = (square / (1 - second**steps)).sqrt() + 1e-8
        return parameters - rate * mean / (1 - first**steps) / scale

    return step
