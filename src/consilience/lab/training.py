"""What the parties compute: gradients at the global parameters, or parameters of their own.

All random choices of a party come from its own stream, a function of the seed, the party's id and
the round. So nothing depends on who else takes part, and a run can resume at any round, given the
parameters (and the momenta). The same seed and number of threads give the same bits.

    parties = Trainers(mlp(), shards, seed=0, batch=128)
    for round in range(200):
        updates = parties.gradients(parameters, round)      # (J, K), rows in the order of the ids
        parameters = parameters - 0.1 * updates.mean(0)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from hashlib import sha256
from typing import NamedTuple

import numpy as np
from scipy.optimize import minimize

from consilience.arrays import Array
from consilience.lab.attacks import Poison
from consilience.lab.models import Model, Tensor, torch


class Samples(NamedTuple):
    """A party's data. The first axis of both counts the samples."""

    inputs: Tensor
    targets: Tensor


def shard(inputs: Array, targets: Array) -> Samples:
    """A shard of float32 inputs, with targets as int64 classes or float32 numbers."""
    kind = np.int64 if np.issubdtype(targets.dtype, np.integer) else np.float32
    # Copies: torch shares memory with numpy, and a loader's arrays may be read-only.
    return Samples(
        torch.from_numpy(np.array(inputs, np.float32, order="C")),
        torch.from_numpy(np.array(targets, kind, order="C")),
    )


def images(pixels: Array, labels: Array) -> Samples:
    """A shard of pictures: bytes (N, 28, 28) become numbers from 0 to 1, (N, 784)."""
    inputs = pixels.reshape(len(pixels), -1) / np.float32(255)
    return Samples(torch.from_numpy(inputs), torch.from_numpy(labels.astype(np.int64)))


def windows(codes: Array, length: int) -> Samples:
    """A shard of text: each window of `length` characters, and the one that starts one place on.

    The N − length windows are views of one array, so they take no more memory than the text.
    """
    if len(codes) <= length:
        raise ValueError(
            f"a text of {len(codes)} characters has no window of {length} with a character to "
            "follow: leave this party out, join it with another, or take shorter windows"
        )
    text = torch.from_numpy(np.array(codes, np.int64, order="C"))
    return Samples(text[:-1].unfold(0, length, 1), text[1:].unfold(0, length, 1))


def stream(seed: int, party: str, round: int) -> np.random.Generator:
    """The party's own random numbers in a round."""
    return np.random.default_rng([seed, round, _digest(party)])


@cache
def _digest(party: str) -> int:
    return int.from_bytes(sha256(party.encode()).digest()[:16], "little")


def gradients(
    model: Model, parameters: Tensor, samples: Sequence[Samples], weight_decay: float = 0.0
) -> Tensor:
    """The gradient of each party's loss on its samples, (J, K).

    Parameters are (K,) if all parties share them, (J, K) if each has its own. One call does all
    parties if they have equally many samples and the model allows it.
    """
    if model.vmaps and len({len(party.targets) for party in samples}) == 1:
        inputs = torch.stack([party.inputs for party in samples])  # (J, B, ...)
        targets = torch.stack([party.targets for party in samples])
        if model.differentiate is not None:
            rows, parameters = torch.empty(len(samples), model.size), parameters.detach()
            model.differentiate(model.tensors(parameters), inputs, targets, model.tensors(rows))
            return rows.add_(parameters, alpha=weight_decay) if weight_decay else rows
        own = 0 if parameters.ndim == 2 else None
        batched = torch.func.vmap(torch.func.grad(model.loss), in_dims=(own, 0, 0, None))
        result: Tensor = batched(parameters.detach(), inputs, targets, weight_decay)
        return result
    found = []
    for row, party in zip(parameters.expand(len(samples), -1), samples, strict=True):
        leaf = row.detach().requires_grad_()
        found += torch.autograd.grad(model.loss(leaf, *party, weight_decay), leaf)
    return torch.stack(found)


@dataclass
class Trainers:
    """The parties of an experiment: their data, and what each computes.

    batch         samples drawn (with replacement) per round; None: all of a party's
    momentum      worker momentum β: a party sends m ← β·m + (1 − β)·gradient; its own m starts with
                  its first gradient, and does not change while the party is absent
    weight_decay  adds weight_decay/2 · ‖parameters‖² to each party's loss
    """

    model: Model
    shards: Mapping[str, Samples]
    seed: int
    batch: int | None = None
    momentum: float = 0.0
    weight_decay: float = 0.0
    momenta: dict[str, Tensor] = field(default_factory=dict)  # party → (K,)

    def gradients(
        self,
        parameters: Tensor,
        round: int,
        parties: Sequence[str] | None = None,
        poison: Poison | None = None,
    ) -> Tensor:
        """The updates (J, K) of the named parties (default: all) at the global parameters."""
        names = self._names(parties)
        streams = [stream(self.seed, name, round) for name in names]
        fresh = self._step(parameters, names, streams, poison)
        if not self.momentum:
            return fresh
        for name, gradient in zip(names, fresh, strict=True):
            before = self.momenta.get(name, gradient)
            self.momenta[name] = torch.lerp(gradient, before, self.momentum)
            gradient.copy_(self.momenta[name])
        return fresh

    def local_parameters(
        self,
        parties: Sequence[str] | None = None,
        poison: Poison | None = None,
        start: Tensor | None = None,
        iterations: int = 200,
    ) -> Tensor:
        """Parameters (J, K) of least loss on each party's whole shard, for one-round learning.

        In closed form if the model has one; else by L-BFGS from `start` (default: the initial
        parameters). Logistic regression on separable data has no finite optimum: give it a weight
        decay, or limit the `iterations`.
        """
        start = self.model.initial(self.seed) if start is None else start
        rows = []
        for name in self._names(parties):
            data = self._samples(name, stream(self.seed, name, 0), None, poison)
            rows.append(self._fit(data, start, iterations))
        return torch.stack(rows)

    def local_steps(
        self,
        parameters: Tensor,
        round: int,
        steps: int,
        rate: float,
        parties: Sequence[str] | None = None,
        poison: Poison | None = None,
    ) -> Tensor:
        """Parameters (J, K) after some steps of SGD by each party from the global parameters."""
        names = self._names(parties)
        streams = [stream(self.seed, name, round) for name in names]
        rows = parameters.detach().repeat(len(names), 1)
        for _ in range(steps):
            rows -= rate * self._step(rows, names, streams, poison)
        return rows

    def _step(
        self,
        parameters: Tensor,
        names: Sequence[str],
        streams: Sequence[np.random.Generator],
        poison: Poison | None,
    ) -> Tensor:
        samples = [
            self._samples(name, rng, self.batch, poison)
            for name, rng in zip(names, streams, strict=True)
        ]
        return gradients(self.model, parameters, samples, self.weight_decay)

    def _names(self, parties: Sequence[str] | None) -> Sequence[str]:
        names = list(self.shards) if parties is None else parties
        unknown = [name for name in names if name not in self.shards]
        if unknown or not names:
            known = ", ".join(list(self.shards)[:10])
            raise ValueError(f"expected parties among {known}, found {unknown or 'none at all'}")
        return names

    def _samples(
        self, party: str, rng: np.random.Generator, batch: int | None, poison: Poison | None
    ) -> Samples:
        samples = self.shards[party]
        if batch is not None:
            chosen = torch.from_numpy(rng.integers(len(samples.targets), size=batch))
            samples = Samples(samples.inputs[chosen], samples.targets[chosen])
        if poison is None:
            return samples
        # Copies: an adversary that writes into its arrays must not change the shard.
        inputs, targets = (part.numpy().copy() for part in samples)
        return Samples(*map(torch.from_numpy, poison(inputs, targets, rng)))

    def _fit(self, data: Samples, start: Tensor, iterations: int) -> Tensor:
        if self.model.solve is not None:
            return self.model.solve(*data, self.weight_decay).to(start.dtype)

        def loss_and_gradient(vector: Array) -> tuple[float, Array]:
            leaf = torch.from_numpy(vector).to(start.dtype).requires_grad_()
            loss = self.model.loss(leaf, *data, weight_decay=self.weight_decay)
            return loss.item(), torch.autograd.grad(loss, leaf)[0].double().numpy()

        found = minimize(
            loss_and_gradient,
            start.double().numpy(),
            jac=True,
            method="L-BFGS-B",
            options={"maxiter": iterations},
        )
        return torch.from_numpy(found.x).to(start.dtype)
