"""The demo: a federation as in real life, on real MNIST, by every method.

Eight hospitals train a classifier of digits together. Each has pictures of its own, and not the
same share of every digit. Seven others take part, and nobody is told which:

- two have broken machines: noise is added to what they send;
- three are in league: they teach every digit as the next one;
- one plants a backdoor: a picture with a white patch in the corner is to be taken for a zero;
- one sends garbage.

Each method runs a federation of its own. Needs no torch.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Column, Table

from consilience import Consensus, Memory, aggregate
from consilience.arrays import Array
from consilience.lab import softmax
from consilience.lab.attacks.backdoors import PATCH
from consilience.lab.partitions import dirichlet
from consilience.passes.blas import one_thread
from consilience.record import Record
from consilience.report import page as report
from consilience.text import shown

METHODS = (
    "mean",
    "krum",
    "multi-krum",
    "trimmed-mean",
    "coordinate-median",
    "geometric-median",
    "ivar-vb",
    "pairwise",
)
ALONE = "hospitals alone"  # their mean, which no server can know
HOSPITALS = tuple(f"hospital {letter}" for letter in "ABCDEFGH")
OTHERS = {
    "broken 1": "noise",
    "broken 2": "noise",
    "league 1": "wrong labels",
    "league 2": "wrong labels",
    "league 3": "wrong labels",
    "intruder": "a backdoor",
    "garbage": "NaN",
}
ROUNDS = 25
NOISE = 5.0  # of a broken machine, in standard deviations of its honest update


class Data(NamedTuple):
    """What everybody trains on, and what the models are tested with."""

    shares: Mapping[str, tuple[Array, Array]]  # party → pictures (n, 784), labels (n,)
    pictures: Array  # of the test set
    labels: Array
    triggered: Array  # the test pictures other than zeros, with the patch


class Run(NamedTuple):
    """The results of one method: after each round, and the last consensus."""

    accuracy: Sequence[float]
    success: Sequence[float]  # of the backdoor
    last: Consensus


def run(console: Console, seed: int, alpha: float, figure: Path, page: Path) -> None:
    """Train by every method, and show what came of it and who was believed."""
    with console.status("MNIST: from the cache, or fetched once"):
        data = gather(seed, alpha)
    logging.getLogger("consilience").setLevel(logging.ERROR)  # the garbage is reported below
    with TemporaryDirectory() as folder:
        record = Path(folder) / "the demo, by pairwise"
        rounds = track(range(ROUNDS), f"{ROUNDS} rounds by each method", console=console)
        runs = federate(data, (*METHODS, ALONE), seed, {"pairwise": Record(record)}, rounds)
        report.write(record, page)
    console.print(_methods(runs))
    console.print(_trust(runs["pairwise"].last))
    _draw(runs, figure, console)
    console.print(f"The run by pairwise, round by round: {page}")
    console.print("Next, your own updates, in Python or from files:", style="bold")
    console.print("  consensus = consilience.aggregate({'ann': array, 'bob': array, ...})")
    console.print("  consilience merge ann.safetensors bob.safetensors ... -o merged.safetensors")


def gather(seed: int, alpha: float) -> Data:
    """Deal out the pictures, each digit in shares from a Dirichlet distribution; the league and the
    intruder spoil theirs."""
    digits, rng = softmax.digits(), np.random.default_rng(seed)
    pictures, labels = digits.train_images, digits.train_labels
    parties = (*HOSPITALS, *OTHERS)
    deal = zip(parties, dirichlet(labels, len(parties), alpha, rng), strict=True)
    shares = {party: (softmax.inputs_of(pictures[mine]), labels[mine]) for party, mine in deal}
    for party, (mine, theirs) in shares.items():
        if party.startswith("league"):
            shares[party] = mine, (theirs + 1) % 10
    shares["intruder"] = PATCH.poison(*shares["intruder"], rng)
    test = softmax.inputs_of(digits.test_images)
    triggered = PATCH.put(test[PATCH.victims(digits.test_labels)])
    return Data(shares, test, digits.test_labels, triggered)


def federate(
    data: Data,
    methods: Sequence[str],
    seed: int,
    records: Mapping[str, Record] | None = None,
    rounds: Iterable[int] | None = None,
) -> dict[str, Run]:
    """Train for some rounds with each method, which is told nothing.

    Each has a federation of its own; they go side by side, as parties draw the same pictures.
    """
    models = np.stack([softmax.flat(softmax.initial())] * len(methods))  # (methods, K)
    memories = {method: Memory(seed=seed) for method in methods}
    last: dict[str, Consensus] = {}
    accuracy, success = [], []  # by round: (methods,)
    for round in range(ROUNDS) if rounds is None else rounds:
        with one_thread():  # small products are slower on two threads
            parties = (*HOSPITALS, *OTHERS)
            sent = {party: _sent(data, models, party, [seed, round]) for party in parties}
            for row, (method, memory) in enumerate(memories.items()):
                name, heard = ("mean", HOSPITALS) if method == ALONE else (method, parties)
                updates = {party: sent[party][row] for party in heard}
                last[method] = aggregate(updates, name, memory=memory, seed=seed)
                models[row] += last[method].value
            stack = softmax.unflat(models)
            right = softmax.guesses(stack, data.pictures) == data.labels[:, None]
            fooled = softmax.guesses(stack, data.triggered) == PATCH.target
        accuracy.append(right.mean(0).tolist())
        success.append(fooled.mean(0).tolist())
        for method, score in zip(methods, accuracy[-1], strict=True):
            if records and method in records:
                records[method].append(last[method], round=round + 1, accuracy=score)
    found = zip(methods, zip(*accuracy, strict=True), zip(*success, strict=True), strict=True)
    return {method: Run(right, fooled, last[method]) for method, right, fooled in found}


def _sent(data: Data, models: Array, party: str, seed: Sequence[int]) -> Array:
    """What a party sends to each federation: if it is honest, how far its training moved the model.

    Models and updates are (methods, K).
    """
    rng = np.random.default_rng([*seed, *party.encode()])
    if OTHERS.get(party) == "NaN":
        return np.full_like(models, np.nan)
    trained = softmax.learn(softmax.unflat(models), *data.shares[party], rng)
    updates = softmax.flat(trained) - models
    if OTHERS.get(party) == "noise":
        noise = rng.standard_normal(models.shape[1], np.float32)
        updates += NOISE * updates.std(1, keepdims=True) * noise
    return updates


def _methods(runs: Mapping[str, Run]) -> Table:
    title = f"{len(HOSPITALS)} hospitals and {len(OTHERS)} others, told nothing, {ROUNDS} rounds"
    right = [Column(name, justify="right") for name in ("accuracy", "backdoor works")]
    table = Table("method", *right, title=title)
    for name, (accuracy, success, _) in runs.items():
        if name == ALONE:
            table.add_section()
        style = {"pairwise": "bold", ALONE: "dim"}.get(name)
        table.add_row(name, f"{accuracy[-1]:.3f}", f"{success[-1]:.0%}", style=style)
    return table


def _trust(consensus: Consensus) -> Table:
    table = Table("party", "sends", "weight", "why", title="Whom pairwise believed in the end")
    for party, weight in consensus.weights.items():
        sends, style = OTHERS.get(party, ""), "red" if party in OTHERS else None
        why = shown(consensus.reasons.get(party, ""), 200)
        table.add_row(party, sends, f"{weight:.3f}", why, style=style)
    return table


def _draw(runs: Mapping[str, Run], file: Path, console: Console) -> None:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        console.print("For the figure as well: pip install 'consilience\\[figures]'")
        return
    figure = Figure(figsize=(11, 3.8), layout="constrained")
    left, middle, right = figure.subplots(1, 3, width_ratios=(1, 1, 0.8))
    _lines(left, runs, lambda found: found.accuracy, "accuracy on the test pictures")
    _lines(middle, runs, lambda found: found.success, "how often the backdoor works")
    left.set_ylim(0.6, 0.95)
    middle.set_ylim(0, 1)
    figure.legend(
        *left.get_legend_handles_labels(), loc="outside lower left", ncols=5, frameon=False
    )
    weights = runs["pairwise"].last.weights
    colours = ["#EE6677" if party in OTHERS else "#4477AA" for party in weights]
    right.barh(list(weights), list(weights.values()), color=colours)
    right.invert_yaxis()
    right.set(title="whom pairwise believed", xlabel="weight in the last round")
    figure.savefig(file, dpi=110)
    console.print(f"The figure: {file}")


# Paul Tol's bright scheme, as in the other figures.
_LOOKS = {
    "mean": ("#BBBBBB", "-"),
    "krum": ("#CCBB44", "--"),
    "multi-krum": ("#CCBB44", "-"),
    "trimmed-mean": ("#228833", "--"),
    "coordinate-median": ("#228833", "-"),
    "geometric-median": ("#66CCEE", "-"),
    "ivar-vb": ("#AA3377", "-"),
    "pairwise": ("#4477AA", "-"),
    ALONE: ("#000000", ":"),
}


def _lines(
    axes: Any, runs: Mapping[str, Run], value: Callable[[Run], Sequence[float]], title: str
) -> None:
    for name, found in runs.items():
        colour, style = _LOOKS[name]
        wide = 2.5 if name == "pairwise" else 1.3
        rounds = range(1, ROUNDS + 1)
        axes.plot(rounds, value(found), style, color=colour, linewidth=wide, label=name)
    axes.set(title=title, xlabel="round")
