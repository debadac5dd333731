"""MNIST by softmax regression in plain numpy, and attacks on it.

Parties may be processes that are started anew for every message, so nothing heavy is imported.
Every random choice is a function of the seed, the round and the party, so an adversary can compute
what the honest parties will send. A real one would know less. This lets adversaries in separate
processes collude without communication.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from consilience import aggregate
from consilience.arrays import Array
from consilience.lab import mnist
from consilience.lab.partitions import iid

if TYPE_CHECKING:
    from consilience.lab.attacks import Poison

Weights = dict[str, Array]  # weight (10, 784), bias (10,)

STEPS, BATCH, RATE = 20, 64, 0.1


def initial() -> Weights:
    """Return the initial model."""
    return {"weight": np.zeros((10, 784), np.float32), "bias": np.zeros(10, np.float32)}


@cache
def digits() -> mnist.Mnist:
    """Return MNIST, from the cache or the network."""
    return mnist.load()


@cache
def shard(party: int, parties: int, seed: int) -> tuple[Array, Array]:
    """Return a party's pictures (n, 784) and labels (n,)."""
    everything = digits()
    parts = iid(len(everything.train_labels), parties, np.random.default_rng(seed))
    mine = parts[party % parties]
    return inputs_of(everything.train_images[mine]), everything.train_labels[mine]


def train(
    model: Weights, party: int, parties: int, round: int, seed: int, poison: Poison | None = None
) -> Weights:
    """Return the model after a party's training on its data, which may be poisoned."""
    inputs, labels = shard(party, parties, seed)
    rng = np.random.default_rng([seed, round, party])
    if poison is not None:
        inputs, labels = poison(inputs, labels, rng)
    return learn(model, inputs, labels, rng)


def learn(model: Weights, inputs: Array, labels: Array, rng: np.random.Generator) -> Weights:
    """Return the model after some steps of SGD on pictures (n, 784) and labels (n,).

    A stack of models, (..., 10, 784) and (..., 10), learns from the same batches.
    """
    weight, bias = model["weight"].copy(), model["bias"].copy()
    for _ in range(STEPS):
        chosen = rng.integers(0, len(labels), BATCH)
        batch = inputs[chosen]
        error = _softmax(_scores(weight, bias, batch))  # (BATCH, ..., 10)
        error[np.arange(BATCH), ..., labels[chosen].astype(int)] -= 1
        weight -= RATE / BATCH * (error.reshape(BATCH, -1).T @ batch).reshape(weight.shape)
        bias -= RATE / BATCH * error.sum(0)
    return {"weight": weight, "bias": bias}


def accuracy(model: Weights) -> float:
    """Return the share of test pictures that are classified correctly."""
    everything = digits()
    found = guesses(model, inputs_of(everything.test_images))
    return float((found == everything.test_labels).mean())


def guesses(model: Weights, inputs: Array) -> Array:
    """Return the predicted digits (n,) of pictures (n, 784), or (n, ...) by a stack of models."""
    found: Array = _scores(model["weight"], model["bias"], inputs).argmax(-1)
    return found


def honest_updates(model: Weights, honest: int, round: int, seed: int) -> Array:
    """Return the honest parties' updates, (H, K)."""
    rows = [train(model, party, honest, round, seed) for party in range(honest)]
    return np.stack([flat(row) for row in rows]) - flat(model)


def lies(
    attack: str,
    model: Weights,
    honest: int,
    adversaries: int,
    round: int,
    seed: int,
    aggregator: Any = None,
) -> list[Any]:
    """Return what each adversary sends: parameters, or something malformed."""
    # Here, because honest parties do not need scipy.special, a third of the import time.
    from consilience.lab.attacks import SUITE, Knowledge, make

    def poisoned(poison: Poison, count: int) -> Array:
        rows = [train(model, party, honest, round, seed, poison) for party in range(count)]
        return np.stack([flat(row) for row in rows]) - flat(model)

    name, settings = SUITE[attack]
    knowledge = Knowledge(poisoned, aggregator or _consensus, classes=10)
    rng = np.random.default_rng([seed, round])
    known = honest_updates(model, honest, round, seed)
    sent = make(name, knowledge, **settings)(known, adversaries, rng)
    return [_parameters(model, update) for update in sent]


def flat(model: Weights) -> Array:
    """Return the model as one vector (K,), or a stack of them as (..., K)."""
    weight, bias = model["weight"], model["bias"]
    return np.concatenate([weight.reshape(*bias.shape[:-1], -1), bias], -1)


def unflat(vector: Array) -> Weights:
    """Return the model of a vector: the inverse of `flat`."""
    weight = vector[..., :7840].reshape(*vector.shape[:-1], 10, 784)
    return {"weight": weight, "bias": vector[..., 7840:]}


def inputs_of(images: Array) -> Array:
    """Return pictures (n, 28, 28) as inputs of the model, (n, 784)."""
    return images.reshape(len(images), -1).astype(np.float32) / 255


def _parameters(model: Weights, update: Any) -> dict[str, Array]:
    if isinstance(update, np.ndarray) and update.shape == (7850,):
        with np.errstate(invalid="ignore", over="ignore"):
            return unflat(flat(model) + update)
    return {} if isinstance(update, dict) else {"weight": update, "bias": model["bias"]}


def _consensus(rows: Array) -> Array:
    value: Array = aggregate(rows).value
    return value


def _scores(weight: Array, bias: Array, inputs: Array) -> Array:
    """One wide product (n, ..., 10): many narrow ones would read the inputs once for each."""
    scores: Array = (inputs @ weight.reshape(-1, 784).T).reshape(-1, *bias.shape) + bias
    return scores


def _softmax(scores: Array) -> Array:
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    shares: Array = powers / powers.sum(-1, keepdims=True)
    return shares
