"""A federation of fifteen, with a record: python examples/recorded_run.py run.jsonl

The parties train a classifier on made-up data by gradient descent. Five of them are not what they
seem, and the server is told nothing:

    c03, c07, c11  from round 12 on agree on one lie that pulls the model the wrong way
    c05            has a broken sensor: its gradients are drowned in noise
    c13            joins late, in round 20; from round 41 on its machine sends NaN now and then
"""

import sys
from pathlib import Path
from time import perf_counter

import numpy as np

import consilience as cs

ROUNDS, PARTIES, CLASSES, INPUTS, SAMPLES = 60, 15, 10, 40, 60
LIARS = ("c03", "c07", "c11")


def main(file: Path) -> None:
    """Train, and write down every round."""
    rng = np.random.default_rng(7)
    directions = rng.standard_normal((CLASSES, INPUTS))
    data = {f"c{j:02}": sample(directions, SAMPLES, rng) for j in range(PARTIES)}
    test = sample(directions, 2000, rng)
    model = np.zeros((INPUTS, CLASSES))
    record, memory = cs.Record(file), cs.Memory(seed=0)
    for number in range(1, ROUNDS + 1):
        started = perf_counter()
        updates = {p: gradient(model, *shard, rng) for p, shard in data.items()}
        trained = perf_counter() - started
        misbehave(updates, number, rng)
        consensus = cs.aggregate(updates, memory=memory)
        model -= 0.1 * consensus.value
        accuracy = float((np.argmax(test[0] @ model, 1) == test[1]).mean())
        record.append(consensus, accuracy=accuracy, seconds={"training": trained})


def sample(directions, count, rng):
    """Return inputs about the directions of their classes, and the classes."""
    labels = rng.integers(0, CLASSES, count)
    inputs = 0.6 * directions[labels] + rng.standard_normal((count, INPUTS))
    return inputs * np.geomspace(0.05, 2, INPUTS), labels  # hard to learn in one step


def gradient(model, inputs, labels, rng):
    """Return the gradient of the cross-entropy on a batch of half the samples."""
    batch = rng.choice(len(labels), len(labels) // 2, replace=False)
    scores = inputs[batch] @ model
    shares = np.exp(scores - scores.max(1, keepdims=True))
    shares /= shares.sum(1, keepdims=True)
    shares[np.arange(len(batch)), labels[batch]] -= 1
    return inputs[batch].T @ shares / len(batch)


def misbehave(updates, number, rng):
    """Replace what the bad parties send."""
    honest = np.stack([u for p, u in updates.items() if p not in LIARS])
    if number >= 12:
        lie = honest.mean(0) - 1.2 * honest.std(0)
        for party in LIARS:
            updates[party] = lie + 0.1 * honest.std(0) * rng.standard_normal(lie.shape)
    updates["c05"] = updates["c05"] + 6 * honest.std() * rng.standard_normal(honest[0].shape)
    if number < 20:
        del updates["c13"]
    elif number > 40 and rng.random() < 0.7:
        updates["c13"] = np.full_like(honest[0], np.nan)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
