"""Figures: mean over seeds as a line, their range as a band, one colour per method throughout."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from matplotlib import rcParams
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from consilience.lab.experiments import DRAWN
from consilience.lab.runner import Row

Array = NDArray[Any]

# Paul Tol's bright scheme, told apart by people who do not see all colours, and a line style each.
_COLOURS = ("#BBBBBB", "#CCBB44", "#228833", "#4477AA", "#66CCEE", "#EE6677", "#AA3377", "#000000")
_STYLES = ("-", "--", "-.", "-", "--", "-", ":", "-")
STYLE: dict[str, dict[str, Any]] = {
    label: {"color": colour, "linestyle": style}
    for label, colour, style in zip(DRAWN, _COLOURS, _STYLES, strict=True)
}


def curves(
    records: Sequence[Row],
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


def lines(records: Sequence[Row], x: str, value: str, x_words: str, words: str) -> Figure:
    """Return a single panel: the value by x, a line per method."""
    figure = Figure(figsize=(6.4, 3.8), layout="constrained")
    axis = figure.subplots()
    _draw(axis, records, x, value)
    axis.set(xlabel=x_words, ylabel=words)
    _legend(figure, axis)
    return figure


def heat_maps(
    panels: Mapping[str, Array],
    rows: Sequence[str],
    columns: Sequence[str],
    words: str,
    worse: Literal[-1, 1] = -1,
) -> Figure:
    """Return a panel per title, values (rows, columns) of up to 100: the worse, the darker.

    Negative ones (worse=-1) are the worse the lower, positive ones (worse=1) the higher.
    """
    across = min(4, len(panels))
    down = -(-len(panels) // across)
    height, width = 0.8 + 0.24 * len(rows), 1.0 + 0.62 * len(columns)
    size = (1.2 + width * across, 1.2 + height * down)
    figure = Figure(figsize=size, layout="constrained")
    grid = figure.subplots(down, across, sharex=True, sharey=True, squeeze=False).ravel()
    for axis in grid[len(panels) :]:
        axis.set_visible(False)
    for axis, (title, values) in zip(grid, panels.items(), strict=False):
        image = axis.imshow(worse * values, cmap="magma_r", vmin=0, vmax=90, aspect="auto")
        for place, value in np.ndenumerate(values):
            if np.isfinite(value):
                ink = "white" if worse * value > 35 else "black"
                axis.text(
                    place[1], place[0], f"{value:.0f}", ha="center", va="center",
                    fontsize=7, color=ink,
                )  # fmt: skip
        axis.set_title(title, fontsize=8)
        axis.set_xticks(range(len(columns)), columns, rotation=45, ha="right", fontsize=7)
        axis.set_yticks(range(len(rows)), rows, fontsize=7)
    bar = figure.colorbar(image, ax=figure.axes, location="bottom", shrink=0.6, aspect=40)
    bar.set_label(words, fontsize=8)
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


def _draw(axis: Axes, records: Sequence[Row], x: str, value: str) -> None:
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
