"""A synthetic crowd: tasks whose answer is a number, and workers who each rate some of them.

The truths are N(5, 2²). An honest worker sees the truth with noise of its own, log-normal about
one. The others:

- *spammers* answer anything between 0 and 10;
- a *clique* sends one answer for each task, with noise 0.1: a bad one, anything between 0 and 10,
  or that of one honest worker, or, *loosely*, the truth with an error as large as their own;
- *biased* workers are honest, but shifted, each by its own N(0, 1.5²).

Every worker rates every task with the same probability; every task is rated at least once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from consilience.errors import ConsilienceError

Array = NDArray[np.float64]

TYPICAL, SPREAD = 5.0, 2.0
COPYING = 0.1
BIAS = 1.5
CLIQUES = ("none", "bad", "honest", "loose")


@dataclass(frozen=True)
class Crowd:
    """A long table of ratings, and what nobody but the experimenter knows."""

    table: dict[str, list[str] | Array]  # task, worker, score
    truth: dict[str, float]  # by task
    clique: frozenset[str]  # workers

    def error(self, truth: dict[str, float]) -> float:
        """Return the root mean squared error of inferred truths."""
        return float(np.sqrt(np.mean([(truth[t] - y) ** 2 for t, y in self.truth.items()])))


def crowd(
    seed: int,
    *,
    tasks: int = 1000,
    honest: int = 30,
    spammers: int = 10,
    members: int = 10,
    clique: str = "bad",
    biased: bool = False,
    spread: float = 0.3,
    observed: float = 0.1,
) -> Crowd:
    """Draw a crowd. ``spread`` is that of the honest workers' log noise."""
    if clique not in CLIQUES:
        raise ConsilienceError(f"a clique is one of {', '.join(CLIQUES)}, found {clique!r}")
    rng = np.random.default_rng(seed)
    truth = rng.normal(TYPICAL, SPREAD, tasks)
    noise = np.exp(rng.normal(0.0, spread, honest))
    seen = truth[:, None] + noise * rng.standard_normal((tasks, honest))
    if biased:
        seen += rng.normal(0.0, BIAS, honest)
    spam = rng.uniform(0.0, 10.0, (tasks, spammers))
    copies = _answers(rng, truth, seen, clique, 0 if clique == "none" else members)
    scores = np.hstack([seen, spam, copies])
    workers = [f"h{j}" for j in range(honest)] + [f"s{j}" for j in range(spammers)]
    workers += [f"c{j}" for j in range(copies.shape[1])]
    rated = rng.random(scores.shape) < observed
    rated[np.arange(tasks), rng.integers(scores.shape[1], size=tasks)] = True
    task, worker = np.nonzero(rated)
    table: dict[str, list[str] | Array] = {
        "task": [f"t{i}" for i in task],
        "worker": [workers[j] for j in worker],
        "score": scores[rated],
    }
    together = frozenset(workers[honest + spammers :])
    return Crowd(table, {f"t{i}": float(y) for i, y in enumerate(truth)}, together)


def _answers(
    rng: np.random.Generator, truth: Array, seen: Array, clique: str, members: int
) -> Array:
    """Return the answer of a clique's members to each task."""
    own = COPYING
    if clique == "honest":
        common = seen[:, 0]
    elif clique == "loose":
        common, own = truth + rng.standard_normal(len(truth)), 1.0
    else:
        common = rng.uniform(0.0, 10.0, len(truth))
    answers: Array = common[:, None] + own * rng.standard_normal((len(truth), members))
    return answers
