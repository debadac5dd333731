"""A federation in one process: parties send updates, adversaries send what they like.

In each round the server asks some parties for updates at its parameters, aggregates them by one
method, with a memory of the parties, and takes a step with the consensus. An update is a gradient,
or, with `Local` steps, how far a party's own training moved the server's parameters.

The method may be a `Rule`, any function of an array, such as another library's aggregator. A rule
screens nothing, so it gets all that was sent, with NaN for what does not fit into an array.
Training is broken once the honest updates, or the result of the aggregation, are not finite, or the
aggregator raises: the parameters are NaN from then on.
"""

from __future__ import annotations

import copy
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from consilience import Consensus, Memory, UpdateError, aggregate
from consilience.arrays import Array
from consilience.estimators.catalogue import Method
from consilience.lab.attacks import Attack, Knowledge, Poison, make
from consilience.lab.models import Tensor, torch
from consilience.lab.runner import Row, Tick
from consilience.lab.training import Trainers
from consilience.record import Record

_log = logging.getLogger(__name__)

Rule = Callable[[Array], Array]  # (J, K) -> (K,); may keep a state, may be deep-copied
Optimizer = Callable[[Tensor, Tensor], Tensor]  # parameters, consensus -> parameters


class Local(NamedTuple):
    """The training that a party does by itself in a round."""

    steps: int
    rate: float


class Scene(NamedTuple):
    """The current round, as far as adversaries may use it."""

    parameters: Tensor
    round: int
    honest: Sequence[str]
    bad: Sequence[str]


class Watched(NamedTuple):
    """The result of one round."""

    value: Array  # (K,)
    oracle: Array  # (K,): the mean of the honest updates, which no server can know
    consensus: Consensus | None  # None for a rule, which returns only the value
    seconds: float  # of the aggregation

    @property
    def miss(self) -> float:
        """The distance from the oracle, relative to the oracle's norm."""
        apart = np.linalg.norm(self.value.astype(np.float64) - self.oracle)
        return float(apart / np.linalg.norm(self.oracle))


@dataclass
class Federation:
    """Who takes part, and what the server does with a consensus."""

    parties: Trainers
    honest: Sequence[str]
    method: str | Method | Rule
    optimizer: Optimizer
    adversaries: Sequence[str] = ()
    attack: str = "gaussian"
    settings: Mapping[str, Any] = field(default_factory=dict)  # of the attack
    local: Local | None = None  # None: parties send gradients
    per_round: int | None = None  # how many take part in a round, at random; None: all
    memory: Memory = field(default_factory=lambda: Memory(seed=0))  # experiments must repeat
    watch: Callable[[Watched], None] = lambda round: None  # called after every round
    record: Record | None = None  # to which every round is added
    _plot: Attack | None = field(default=None, init=False)  # made once: an attack may have a state
    _scene: Scene | None = field(default=None, init=False)

    def run(
        self,
        rounds: int,
        evaluate: Callable[[Tensor], Row],
        tick: Tick,
        every: int = 1,
    ) -> list[Row]:
        """Train; return what `evaluate` says about the parameters every ``every`` rounds."""
        parameters = self.parties.model.initial(self.parties.seed)
        records = [{"round": 0, **evaluate(parameters)}]
        for round in range(rounds):
            consensus, found = None, {}
            if np.isfinite(parameters.numpy()).all():  # else there is nothing left to train
                parameters, consensus = self.step(parameters, round)
            if (round + 1) % every == 0 or round + 1 == rounds:
                found = evaluate(parameters)
                records.append({"round": round + 1, **found})
            if self.record is not None:
                note = "no consensus" if consensus is None else None
                accuracy = found.get("accuracy")
                self.record.append(consensus, round=round + 1, accuracy=accuracy, note=note)
            tick(round + 1, rounds)
        self._plot = self._scene = None  # breaks a cycle: the attack refers to this federation
        return records

    def step(self, parameters: Tensor, round: int) -> tuple[Tensor, Consensus | None]:
        """Return the parameters after one round, and its consensus."""
        rng = np.random.default_rng([self.parties.seed, round])
        everyone = [*self.honest, *self.adversaries]
        asked = set(everyone)
        if self.per_round is not None:
            asked = set(rng.choice(everyone, self.per_round, replace=False))
        honest = [party for party in self.honest if party in asked]
        bad = [party for party in self.adversaries if party in asked]
        known = self._updates(parameters, round, honest)  # (H, K)
        if not np.isfinite(known).all():
            return torch.full_like(parameters, torch.nan), None
        updates = dict(zip(honest, known, strict=True))
        if bad:
            self._scene = Scene(parameters, round, honest, bad)
            updates |= zip(bad, self._bad(self._scene, known, rng), strict=True)
        started = perf_counter()
        value, consensus = self._answer(updates, parameters.numel(), self.method, self.memory)
        if honest:
            seconds = perf_counter() - started
            self.watch(Watched(value, known.mean(0), consensus, seconds))
        return self.optimizer(parameters, torch.from_numpy(value)), consensus

    def _updates(
        self, parameters: Tensor, round: int, parties: Sequence[str], poison: Poison | None = None
    ) -> Array:
        """The honest updates of these parties, (J, K), perhaps on poisoned data."""
        if not parties:
            return np.zeros((0, parameters.numel()), np.float32)
        if self.local is None:
            rows = self.parties.gradients(parameters, round, parties, poison)
        else:
            ends = self.parties.local_steps(parameters, round, *self.local, parties, poison)
            rows = ends - parameters
        made: Array = rows.numpy()
        return made

    def _bad(self, scene: Scene, known: Array, rng: np.random.Generator) -> Any:
        """What the adversaries of this round send, who know the honest updates, (H, K)."""
        if self._plot is None:
            classes = self.parties.model.classes
            knowledge = Knowledge(train=self._train, aggregate=self._ask, classes=classes)
            self._plot = make(self.attack, knowledge, **self.settings)
        return self._plot(known.astype(np.float32), len(scene.bad), rng)

    def _train(self, poison: Poison, count: int) -> Array:
        """What adversaries would send in this round if they trained on poisoned data."""
        assert self._scene is not None
        parameters, round, _, bad = self._scene
        return self._updates(parameters, round, bad[:count], poison)

    def _ask(self, rows: Array) -> Array:
        """What the server would make of these updates in this round."""
        assert self._scene is not None
        updates = dict(zip([*self._scene.honest, *self._scene.bad], rows, strict=True))
        # Copies, so that asking has no effect.
        method = copy.deepcopy(self.method)
        return self._answer(updates, rows.shape[1], method, self.memory.copy())[0]

    def _answer(
        self, updates: dict[str, Any], size: int, method: str | Method | Rule, memory: Memory
    ) -> tuple[Array, Consensus | None]:
        if isinstance(method, str) or not callable(method):
            try:
                seed = self.parties.seed  # so that experiments repeat
                consensus = aggregate(updates, method, memory=memory, exact=True, seed=seed)
            except UpdateError:  # no update was usable
                return np.full(size, np.nan, np.float32), None
            return np.asarray(consensus.value), consensus
        try:
            value = np.asarray(method(_stacked(updates, size)), np.float32)
            return value.reshape(size), None
        except Exception as error:  # a foreign rule may raise anything; then training is broken
            _log.warning("the rule raised %s: %s", type(error).__name__, error)
            return np.full(size, np.nan, np.float32), None


def _stacked(updates: dict[str, Any], size: int) -> Array:
    """Return the updates as rows of a new array (J, K); NaN for those that are not vectors."""
    rows = np.full((len(updates), size), np.nan, np.float32)
    for row, update in zip(rows, updates.values(), strict=True):
        try:
            sent = np.asarray(update, np.float32)
        except (TypeError, ValueError):
            continue
        if sent.shape == (size,):
            row[:] = sent
    return rows


def sgd(rate: float, momentum: float = 0.0, weight_decay: float = 0.0) -> Optimizer:
    """Gradient descent with the server's momentum and weight decay."""
    velocity: Tensor | None = None

    def step(parameters: Tensor, consensus: Tensor) -> Tensor:
        nonlocal velocity
        if weight_decay:
            consensus = torch.add(consensus, parameters, alpha=weight_decay)
        if momentum:
            if velocity is None:
                velocity = torch.zeros_like(consensus)
            consensus = velocity.mul_(momentum).add_(consensus)
        return torch.add(parameters, consensus, alpha=-rate)

    return step


def add(parameters: Tensor, consensus: Tensor) -> Tensor:
    """The step of federated averaging, for updates that are differences of parameters."""
    return parameters + consensus


def one_cycle(peak: float, rounds: int, rise: float = 0.2) -> Callable[[int], float]:
    """A rate by round that rises to its peak and falls to zero, each along half a cosine."""

    def rate(round: int) -> float:
        share = (round + 0.5) / rounds
        to_peak = share / rise if share < rise else (1 - share) / (1 - rise)
        return peak * (1 - math.cos(math.pi * to_peak)) / 2

    return rate


def adam(
    rate: Callable[[int], float],
    first: float = 0.9,
    second: float = 0.999,
    longest: float = math.inf,
) -> Optimizer:
    """Adam (Kingma and Ba 2015), with the consensus as the gradient, and a rate for each round.

    A consensus longer than `longest` is shortened to it.
    """
    mean = square = torch.zeros(())
    steps = 0

    def step(parameters: Tensor, consensus: Tensor) -> Tensor:
        nonlocal mean, square, steps
        steps += 1
        norm = float(consensus.norm())
        consensus = consensus * min(1.0, longest / norm) if norm else consensus
        mean = first * mean + (1 - first) * consensus
        square = second * square + (1 - second) * consensus**2
        scale = (square / (1 - second**steps)).sqrt() + 1e-8
        return parameters - rate(steps - 1) * mean / (1 - first**steps) / scale

    return step
