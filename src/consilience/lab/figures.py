"""Figures: mean over seeds as a line, their range as a band, one colour per method throughout."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rcParams
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from consilience.lab.experiments import METHODS
from consilience.lab.runner import Record

# Paul Tol's bright scheme, told apart by people who do not see all colours, and a line style each.
_COLOURS = ("#BBBBBB", "#CCBB44", "#228833", "#4477AA", "#66CCEE", "#EE6677", "#AA3377")
_STYLES = ("-", "--", "-.", "-", "--", "-", ":")
STYLE: dict[str, dict[str, Any]] = {
    label: {"color": colour, "linestyle": style}
    for label, colour, style in zip(METHODS, _COLOURS, _STYLES, strict=True)
}


def curves(
    records: Sequence[Record],
    panel: str,
    titles: Mapping[Any, str],
    value: str,
    words: str,
    by: str = "round",
) -> Figure:
    """Return one panel per title: the value by round (or iteration), a line per method."""
    figure = Figure(figsize=(4.2 * len(titles), 3.6), layout="constrained")
    axes = figure.subplots(1, len(titles), sharey=True, squeeze=False)[0]
    for axis, (key, title) in zip(axes, titles.items(), strict=True):
        _draw(axis, [record for record in records if record[panel] == key], by, value)
        axis.set(title=title, xlabel=by, xscale="log" if by == "iteration" else "linear")
    axes[0].set_ylabel(words)
    _legend(figure, axes[0])
    return figure


def lines(records: Sequence[Record], x: str, value: str, x_words: str, words: str) -> Figure:
    """Return a single panel: the value by x, a line per method."""
    figure = Figure(figsize=(6.4, 3.8), layout="constrained")
    axis = figure.subplots()
    _draw(axis, records, x, value)
    axis.set(xlabel=x_words, ylabel=words)
    _legend(figure, axis)
    return figure


def save(figure: Figure, folder: Path, name: str) -> None:
    """Write a figure as SVG (the same bytes for the same data) and PNG."""
    folder.mkdir(parents=True, exist_ok=True)
    with_salt = rcParams["svg.hashsalt"]
    rcParams["svg.hashsalt"] = name
    try:
        figure.savefig(folder / f"{name}.svg", metadata={"Date": None})
        figure.savefig(folder / f"{name}.png", dpi=110)
    finally:
        rcParams["svg.hashsalt"] = with_salt


def _draw(axis: Axes, records: Sequence[Record], x: str, value: str) -> None:
    for label, style in STYLE.items():
        mine = [record for record in records if record["method"] == label]
        places = sorted({record[x] for record in mine})
        values = [[r[value] for r in mine if r[x] == place] for place in places]
        if not values:
            continue
        axis.plot(places, [float(np.mean(v)) for v in values], label=label, **style)
        low, high = [min(v) for v in values], [max(v) for v in values]
        axis.fill_between(places, low, high, color=style["color"], alpha=0.15, linewidth=0)
    axis.grid(alpha=0.3)


def _legend(figure: Figure, axis: Axes) -> None:
    handles, labels = axis.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
