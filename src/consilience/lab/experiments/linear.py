"""Figure 1: federated linear regression; parties have different noise and overlapping data.

The data are our own (`synthetic`), as the paper's supplement is lost. Five parties hold 300 samples
each from one pool, and send gradients of the squared error. The server descends with rate 0.3. (a)
full batch, (b) mini-batches of 32, (c) full batch, three random parties per round. Measured are the
prediction error on fresh samples and the distance of the weights from the truth.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from matplotlib.figure import Figure

from consilience.lab.experiments import METHODS, Scale, rank
from consilience.lab.federation import Federation, sgd
from consilience.lab.figures import curves
from consilience.lab.models import Tensor, linear_regression
from consilience.lab.runner import Cell, Row, Tick
from consilience.lab.synthetic import linear_regression as draw
from consilience.lab.training import Trainers, shard

# Noise in powers of three; each party shares 80 % of its samples with the next, 60 % with the one
# after, and so on.
NOISE = (1.0, 3.0, 9.0, 27.0, 81.0)
OVERLAP = 0.8
PANELS = {
    "full": ("Full participation, full batch", None, None),
    "mini": ("Full participation, batch of 32", 32, None),
    "partial": ("Three random parties a round, full batch", None, 3),
}
RATE = 0.3
FIRST_SEED = 100  # lower seeds were used to choose the set-up


def cells(scale: Scale, seeds: int) -> list[Cell]:
    """Return one cell per panel, method and seed. Three parties a round have fewer seeds, because
    changing parties make ICOV slow."""
    return [
        Cell(
            "fig1",
            {"panel": panel, "method": label, "seed": seed, "rounds": scale.regression_rounds},
            partial(_run, panel, label, seed, scale.regression_rounds),
        )
        for panel, (_, _, per_round) in PANELS.items()
        for label in scale.methods
        for seed in range(FIRST_SEED, FIRST_SEED + (min(seeds, 3) if per_round else seeds))
    ]


def _run(panel: str, label: str, seed: int, rounds: int, tick: Tick) -> list[Row]:
    task = draw(seed, noise=NOISE, overlap=OVERLAP)
    _, batch, per_round = PANELS[panel]
    model = linear_regression(task.truth.size)
    parties = Trainers(
        model, {name: shard(*data) for name, data in task.parties.items()}, seed, batch
    )
    ranks: list[int] = []
    federation = Federation(
        parties,
        list(task.parties),
        METHODS[label],
        sgd(RATE),
        per_round=per_round,
        watch=lambda round: ranks.append(rank(round.consensus)),
    )

    def evaluate(parameters: Tensor) -> Row:
        weights = parameters.double().numpy()
        return {
            "prediction error": round(task.prediction_error(weights), 4),
            "distance": round(task.error(weights), 4),
        }

    records = federation.run(rounds, evaluate, tick, every=max(1, rounds // 20))
    records[-1]["rank 0"] = round(ranks.count(0) / len(ranks), 3)
    return records


def figures(records: Sequence[Row]) -> dict[str, Figure]:
    """Return Figure 1: error by round, a panel per setting."""
    titles = {panel: title for panel, (title, _, _) in PANELS.items()}
    words = "distance from the truth"
    # ICOV-MLE runs away for some rounds where three parties take part.
    return {"fig1": curves(records, "panel", titles, "distance", words, scale="log")}
