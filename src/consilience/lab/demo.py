"""The demo: real MNIST, five honest parties, five liars, one round.

Each honest party fits a logistic regression to its share of the 60,000 images; each liar sends a
vector of random numbers. Every method sees the same ten vectors and is told nothing. Needs no
torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import track
from rich.table import Column, Table
from scipy.optimize import minimize
from scipy.special import log_softmax

from consilience import Consensus, aggregate
from consilience.lab import mnist
from consilience.lab.partitions import iid
from consilience.text import measured

MEDIANS = ("geometric-median", "coordinate-median")
METHODS = ("mean", *MEDIANS, "krum", "ivar-mle", "ivar-vb", "icov-vb", "pairwise")
TRUST = {"mean": "#BBBBBB", "coordinate-median": "#CCBB44", "pairwise": "#4477AA"}
HONEST = LIARS = 5
DECAY = 1e-3

Floats = NDArray[np.float32]


def run(console: Console, seed: int, figure: Path) -> None:
    """Train, aggregate by every method, and show who was believed."""
    with console.status("MNIST: from the cache, or fetched once"):
        digits = mnist.load()
    images, labels = _flat(digits.train_images), digits.train_labels
    rng = np.random.default_rng(seed)
    shares = dict(zip("ABCDE", iid(len(labels), HONEST, rng), strict=True))
    updates = {
        f"honest {name}": fit(images[index], labels[index])
        for name, index in track(shares.items(), "honest parties train", console=console)
    }
    size = images.shape[1] * 10 + 10
    updates |= {f"liar {j + 1}": rng.standard_normal(size, np.float32) for j in range(LIARS)}

    found = {name: aggregate(updates, name, seed=0) for name in METHODS}
    test = _flat(digits.test_images), digits.test_labels
    accuracy = {name: score(consensus.value, *test) for name, consensus in found.items()}
    alone = {name: score(update, *test) for name, update in updates.items()}
    best = score(np.mean([updates[f"honest {name}"] for name in shares], axis=0), *test)
    console.print(_methods(accuracy, best))
    console.print(_trust(found, alone))
    _draw(found, accuracy, best, figure, console)


def fit(images: Floats, labels: NDArray[np.uint8]) -> Floats:
    """Return the parameters (weights, then biases) of a logistic regression on the images."""
    wanted = np.eye(10, dtype=np.float32)[labels]

    def loss_and_slope(vector: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        weights, bias = _split(vector.astype(np.float32))
        logs = log_softmax(images @ weights.T + bias, axis=1)
        errors = (np.exp(logs) - wanted) / len(images)
        slope = np.concatenate([(errors.T @ images).ravel(), errors.sum(axis=0)]) + DECAY * vector
        loss = -float((logs * wanted).sum()) / len(images) + DECAY / 2 * float(vector @ vector)
        return loss, slope.astype(np.float64)

    start = np.zeros(images.shape[1] * 10 + 10)
    found = minimize(loss_and_slope, start, jac=True, method="L-BFGS-B", options={"maxiter": 100})
    parameters: Floats = found.x.astype(np.float32)
    return parameters


def score(vector: Floats, images: Floats, labels: NDArray[np.uint8]) -> float:
    """Return the share of images whose digit the parameters tell."""
    weights, bias = _split(vector)
    return float(((images @ weights.T + bias).argmax(axis=1) == labels).mean())


def _split(vector: Floats) -> tuple[Floats, Floats]:
    return vector[:-10].reshape(10, -1), vector[-10:]


def _flat(images: NDArray[np.uint8]) -> Floats:
    return images.reshape(len(images), -1).astype(np.float32) / np.float32(255)


def _methods(accuracy: Mapping[str, float], best: float) -> Table:
    title = f"{HONEST} honest parties and {LIARS} liars: accuracy on 10,000 test images"
    table = Table("method", "accuracy", title=title)
    for name, value in sorted(accuracy.items(), key=lambda pair: pair[1]):
        table.add_row(name, f"{value:.3f}")
    table.add_section()
    table.add_row("[dim]the honest alone[/]", f"[dim]{best:.3f}[/]")
    return table


def _trust(found: Mapping[str, Consensus], alone: Mapping[str, float]) -> Table:
    title = "Who was believed: weights by method, noise as inferred by pairwise"
    whole = [Column(name, no_wrap=True) for name in ("party", *TRUST, "noise")]
    table = Table(
        *whole, "own accuracy", title=title, box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0)
    )
    pairwise = found["pairwise"]
    for party, own in alone.items():
        weights = (f"{found[name].weights[party]:.3f}" for name in TRUST)
        noise = measured(pairwise.noise[party], pairwise.known_intervals.get(party))
        style = "red" if party.startswith("liar") else ""
        table.add_row(party, *weights, noise, f"{own:.3f}", style=style)
    return table


def _draw(
    found: Mapping[str, Consensus],
    accuracy: Mapping[str, float],
    best: float,
    file: Path,
    console: Console,
) -> None:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        console.print("For the figure as well: pip install 'consilience\\[figures]'")
        return
    figure = Figure(figsize=(10, 3.8), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1, 1.3))
    left.barh(list(accuracy), list(accuracy.values()), color="#4477AA")
    left.axvline(best, color="black", linestyle=":")
    left.set(xlabel="test accuracy (dotted: the honest alone)", xlim=(0, 1))
    left.set_title("MNIST, 5 honest parties and 5 liars")
    parties = list(found["mean"].parties)
    places = np.arange(len(parties))
    for shift, (name, colour) in enumerate(TRUST.items()):
        heights = [found[name].weights[party] for party in parties]
        right.bar(places + 0.27 * (shift - 1), heights, 0.27, color=colour, label=name)
    right.set_xticks(places, parties, rotation=45, ha="right")
    right.set(ylabel="weight in the consensus", title="Who was believed")
    right.legend(frameon=False)
    figure.savefig(file, dpi=110)
    console.print(f"The figure: {file}")
