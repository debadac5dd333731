"""A federated linear regression in one round, with liars in it: who is trusted how far?

Eight honest parties with noise from 1 to 5 and overlapping data send least-squares weights; four
adversaries send random vectors. Every method sees the same twelve vectors and is told nothing.
"""

from __future__ import annotations

import numpy as np
from rich.console import Console
from rich.table import Table

from consilience import Consensus, aggregate, methods
from consilience.lab.synthetic import linear_regression

_SHOWN = ("mean", "coordinate-median", "ivar-vb", "icov-vb")


def run(console: Console, seed: int = 0) -> None:
    """Print a table of methods with their error, and one of parties with their trust."""
    task = linear_regression(seed, noise=np.linspace(1, 5, 8).tolist(), overlap=0.5)
    updates = {
        party: np.linalg.lstsq(features, targets)[0]
        for party, (features, targets) in task.parties.items()
    }
    honest = np.mean(list(updates.values()), axis=0)
    rng = np.random.default_rng([seed, 1])  # a stream apart from the truth's
    updates |= {f"liar{j}": rng.standard_normal(task.truth.size) for j in range(4)}
    found = {method: aggregate(updates, method) for method in methods()}

    errors = Table("method", "error", title="Distance from the truth, 8 honest parties and 4 liars")
    errors.add_row("[dim]mean of the honest alone[/]", f"{task.error(honest):.2f}")
    for method, consensus in sorted(found.items(), key=lambda pair: task.error(pair[1].value)):
        errors.add_row(method, f"{task.error(consensus.value):.2f}")
    console.print(errors)
    console.print(_trust({method: found[method] for method in _SHOWN}))


def _trust(found: dict[str, Consensus]) -> Table:
    table = Table("party", *found, "noise (ivar-vb)", title="Who was trusted how far (weights)")
    reference = found["ivar-vb"]
    for party in reference.parties:
        weights = (f"{consensus.weights[party]:.3f}" for consensus in found.values())
        table.add_row(party, *weights, f"{reference.noise[party]:.2f}")
    return table
