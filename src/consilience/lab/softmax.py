"""MNIST by softmax regression in plain numpy, and attacks on it.

For parties that are processes, started anew for every message: nothing heavy is imported. Every
random choice is a function of the seed, the round and the party, so an adversary can compute what
the honest parties will send. That is more than a real one could know, and it lets adversaries in
separate processes collude without communication.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from consilience import aggregate
from consilience.lab import mnist
from consilience.lab.partitions import iid

if TYPE_CHECKING:
    from consilience.lab.attacks import Poison

Array = NDArray[Any]
Weights = dict[str, Array]  # weight (10, 784), bias (10,)

STEPS, BATCH, RATE = 20, 64, 0.1


def initial() -> Weights:
    """The initial model."""
    return {"weight": np.zeros((10, 784), np.float32), "bias": np.zeros(10, np.float32)}


@cache
def digits() -> mnist.Mnist:
    """MNIST, from the cache or the network."""
    return mnist.load()


@cache
def shard(party: int, parties: int, seed: int) -> tuple[Array, Array]:
    """A party's own pictures (n, 784) and labels (n,)."""
    everything = digits()
    parts = iid(len(everything.train_labels), parties, np.random.default_rng(seed))
    mine = parts[party % parties]
    return inputs_of(everything.train_images[mine]), everything.train_labels[mine]


def train(
    model: Weights, party: int, parties: int, round: int, seed: int, poison: Poison | None = None
) -> Weights:
    """The model after a party's training on its own data, poisoned if asked."""
    inputs, labels = shard(party, parties, seed)
    rng = np.random.default_rng([seed, round, party])
    if poison is not None:
        inputs, labels = poison(inputs, labels, rng)
    return learn(model, inputs, labels, rng)


def learn(model: Weights, inputs: Array, labels: Array, rng: np.random.Generator) -> Weights:
    """The model after some steps of gradient descent on pictures (n, 784) and labels (n,)."""
    weight, bias = model["weight"].copy(), model["bias"].copy()
    for _ in range(STEPS):
        chosen = rng.integers(0, len(labels), BATCH)
        batch = inputs[chosen]
        error = _softmax(batch @ weight.T + bias)  # (BATCH, 10)
        error[np.arange(BATCH), labels[chosen].astype(int)] -= 1
        weight -= RATE / BATCH * (error.T @ batch)
        bias -= RATE / BATCH * error.sum(0)
    return {"weight": weight, "bias": bias}


def accuracy(model: Weights) -> float:
    """The share of test pictures that are classified correctly."""
    everything = digits()
    found = guesses(model, inputs_of(everything.test_images))
    return float((found == everything.test_labels).mean())


def guesses(model: Weights, inputs: Array) -> Array:
    """The predicted digit of each picture (n, 784), (n,)."""
    found: Array = (inputs @ model["weight"].T + model["bias"]).argmax(1)
    return found


def honest_updates(model: Weights, honest: int, round: int, seed: int) -> Array:
    """The honest parties' updates, one row each, (H, K)."""
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
    """What each adversary sends: parameters, or something malformed."""
    # Here, as honest parties do not need scipy.special, which is a third of their import time.
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
    """The model as one vector (K,)."""
    return np.concatenate([model["weight"].ravel(), model["bias"]])


def unflat(vector: Array) -> Weights:
    """The model of a vector: the inverse of `flat`."""
    return {"weight": vector[:7840].reshape(10, 784), "bias": vector[7840:]}


def inputs_of(images: Array) -> Array:
    """Pictures (n, 28, 28) as the model reads them, (n, 784)."""
    return images.reshape(len(images), -1).astype(np.float32) / 255


def _parameters(model: Weights, update: Any) -> dict[str, Array]:
    if isinstance(update, np.ndarray) and update.shape == (7850,):
        with np.errstate(invalid="ignore", over="ignore"):
            return unflat(flat(model) + update)
    return {} if isinstance(update, dict) else {"weight": update, "bias": model["bias"]}


def _consensus(rows: Array) -> Array:
    value: Array = aggregate(rows).value
    return value


def _softmax(scores: Array) -> Array:
    powers = np.exp(scores - scores.max(1, keepdims=True))
    shares: Array = powers / powers.sum(1, keepdims=True)
    return shares
