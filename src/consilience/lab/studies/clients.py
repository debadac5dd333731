"""A hundred of a hundred thousand clients in each round: the cost, and the error.

    python -m consilience.lab.studies.clients [--out docs/data/clients.json] [--seeds 3]

A tenth of all clients are ten times as noisy as the others. One in twenty is hostile: these all
send the truth plus the same shift, one standard deviation in every coordinate, with their own
noise. The oracle knows who is honest and how noisy, and takes the inverse-variance mean of the
honest. Each seed runs in its own process, to measure its own peak memory. Seconds are those of the
inference; CPU seconds, for a whole round, do not depend on the load of the machine.
"""

from __future__ import annotations

import argparse
import json
import resource
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np
from rich.progress import track

import consilience as cs
from consilience.lab.tables import markdown

CLIENTS, FEW, SIZE, ROUNDS = 100_000, 100, 2_000, 300
LOUD, SHIFT = 10.0, 1.0
FROM = 20  # errors count from this round on


class Clients:
    """Everybody, and what they send."""

    def __init__(self, seed: int, many: int = CLIENTS) -> None:
        self.random = np.random.default_rng(seed)
        self.noise = np.where(self.random.random(many) < 0.1, LOUD, 1.0)
        self.hostile = self.random.random(many) < 0.05
        self.noise[self.hostile] = 1.0

    def send(self, who: Any, size: int) -> tuple[Any, dict[str, Any]]:
        """Return a truth, and the updates of these clients."""
        truth = self.random.standard_normal(size)
        noise = self.noise[who, None] * self.random.standard_normal((len(who), size))
        shift = SHIFT * self.hostile[who, None]
        return truth, dict(zip((f"client {j}" for j in who), truth + shift + noise, strict=True))

    def oracle(self, who: Any, updates: dict[str, Any]) -> Any:
        """Return the best weighted mean of the updates."""
        precision = np.where(self.hostile[who], 0.0, self.noise[who] ** -2.0)
        return precision @ np.stack(list(updates.values())) / precision.sum()


def run(seed: int, rounds: int = ROUNDS, many: int = CLIENTS, few: int = FEW) -> dict[str, Any]:
    """Return the cost and the results of the rounds of one federation."""
    clients, memory = Clients(seed, many), cs.Memory(seed=seed)
    cs.aggregate(np.eye(3))  # imports must not count as a part of a round
    seconds: list[float] = []
    busy: list[float] = []
    ratios: list[float] = []
    returned = 0
    for _ in range(rounds):
        who = clients.random.choice(many, few, replace=False)
        truth, updates = clients.send(who, SIZE)
        returned += len(set(updates) & set(memory.noise))
        started = process_time()
        found = cs.aggregate(updates, memory=memory, seed=seed)
        busy.append(process_time() - started)
        seconds.append(found.diagnostics["seconds"]["inference"])
        best = np.mean((clients.oracle(who, updates) - truth) ** 2)
        ratios.append(float(np.mean((found.value - truth) ** 2) / best))
    counted = ratios[FROM:]
    return {
        "seed": seed,
        "median seconds": round(float(np.median(seconds)), 3),
        "most seconds": round(max(seconds), 3),
        "last 50, median seconds": round(float(np.median(seconds[-50:])), 3),
        "most CPU seconds": round(max(busy), 3),
        "peak MB": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
        "mean error": round(float(np.mean(counted)), 4),
        "worst error": round(max(counted), 4),
        "returned": returned,
        "remembered": len(memory.noise),
        "forgotten": memory.forgotten,
        **_return(clients, memory),
    }


def _return(clients: Clients, memory: cs.Memory) -> dict[str, float]:
    """Return the weight of loud clients who come back after their evidence has faded and are quiet
    this time, relative to strangers who send the same."""
    evidence = set(memory.evidence.parties) if memory.evidence else set()
    away = [int(party.split()[1]) for party in memory.noise if party not in evidence]
    loud = [j for j in away if clients.noise[j] == LOUD][:10]
    quiet = [j for j in away if clients.noise[j] == 1 and not clients.hostile[j]][:90]
    clients.noise[loud] = 1.0
    _, updates = clients.send(np.array([*loud, *quiet], int), SIZE)
    weights = cs.aggregate(updates, memory=memory.copy(), seed=0).weights
    renamed = {f"new {party}": update for party, update in updates.items()}
    strangers = cs.aggregate(renamed, memory=memory.copy(), seed=0).weights
    back = [f"client {j}" for j in loud]
    share = sum(weights[p] for p in back) / sum(strangers[f"new {p}"] for p in back)
    return {"loud and back": len(back), "their weight over strangers'": round(share, 3)}


def main() -> None:
    """Measure, print as Markdown and save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("docs/data/clients.json"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    args = parser.parse_args()
    records = []
    for seed in track(range(args.seeds)):
        with ProcessPoolExecutor(1, get_context("spawn")) as alone:
            records.append(alone.submit(run, seed, args.rounds).result())
    print(markdown([*records[0]], [[str(value) for value in r.values()] for r in records]))
    about = {"clients": CLIENTS, "a round": FEW, "coordinates": SIZE, "rounds": args.rounds}
    args.out.write_text(json.dumps({**about, "records": records}, indent=0) + "\n")


if __name__ == "__main__":
    main()
