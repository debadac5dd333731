"""Figures: the mean over seeds as a line, their range as a band.

A method has the same colour, line style and marker in all figures, so it is recognised without
colours, too. Its name stands at the end of its line. SVGs are dark if the reader's screen is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import Any, Literal

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from consilience.arrays import Array
from consilience.lab.experiments import DRAWN
from consilience.lab.runner import Row

# Paul Tol's bright scheme, which colour-blind people can tell apart.
_COLOURS = ("#BBBBBB", "#CCBB44", "#228833", "#4477AA", "#66CCEE", "#EE6677", "#AA3377", "#000000")
_LINES = ("-", "--", "-.", "-", "--", "-", ":", "-")
_MARKS = ("o", "s", "^", "D", "v", "P", "x", "*")
STYLE: dict[str, dict[str, Any]] = {
    label: {"color": colour, "linestyle": line, "marker": mark}
    for label, colour, line, mark in zip(DRAWN, _COLOURS, _LINES, _MARKS, strict=True)
}
_MARKED = 5  # about so many markers on a line
_APART = 0.075  # least distance between two names, as a share of the panel's height
# Black and white are swapped. Glyphs have no colour of their own, lines and areas have.
_DARK = """<style>@media (prefers-color-scheme: dark) {
svg { fill: #dddddd; }
[style*="stroke: #000000"] { stroke: #dddddd !important; }
[style*="fill: #000000"] { fill: #dddddd !important; }
[style*="fill: #ffffff"] { fill: #131416 !important; }
}</style>"""


def curves(
    records: Sequence[Row],
    panel: str,
    titles: Mapping[Any, str],
    value: str,
    words: str,
    by: str = "round",
    scale: Literal["linear", "log"] = "linear",
) -> Figure:
    """Return one panel per title that has records: the value by round (or iteration), one line per
    method. ``scale`` is that of the value."""
    there = {record[panel] for record in records}
    titles = {key: title for key, title in titles.items() if key in there}
    figure = Figure(figsize=(4.2 * len(titles), 3.6), layout="constrained")
    axes = figure.subplots(1, len(titles), sharey=True, squeeze=False)[0]
    for axis, (key, title) in zip(axes, titles.items(), strict=True):
        _draw(axis, [record for record in records if record[panel] == key], by, value)
        axis.set(title=title, xlabel=by, xscale="log" if by == "iteration" else "linear")
    axes[0].set(ylabel=words, yscale=scale)
    _name(axes[-1])
    return figure


def lines(records: Sequence[Row], x: str, value: str, x_words: str, words: str) -> Figure:
    """Return a single panel: the value by x, one line per method."""
    figure = Figure(figsize=(6.4, 3.8), layout="constrained")
    axis = figure.subplots()
    _draw(axis, records, x, value)
    axis.set(xlabel=x_words, ylabel=words)
    _name(axis)
    return figure


def heat_maps(
    panels: Mapping[str, Array],
    rows: Sequence[str],
    columns: Sequence[str],
    words: str,
    worse: Literal[-1, 1] = -1,
) -> Figure:
    """Return one panel per title, with values (rows, columns) of up to 100; worse is darker.

    With ``worse=-1`` values are negative and lower is worse; with ``worse=1`` higher is worse.
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
                # Nearly white and nearly black: a cell keeps its colour on a dark screen.
                ink = "#fefefe" if worse * value > 35 else "#010101"
                text = f"{value:.0f}" if abs(value) >= 9.5 else f"{round(value, 1) + 0.0:.1f}"
                axis.text(
                    place[1], place[0], text, ha="center", va="center", fontsize=7, color=ink
                )  # fmt: skip
        axis.set_title(title, fontsize=8)
        axis.set_xticks(range(len(columns)), columns, rotation=45, ha="right", fontsize=7)
        axis.set_yticks(range(len(rows)), rows, fontsize=7)
    bar = figure.colorbar(image, ax=figure.axes, location="bottom", shrink=0.6, aspect=40)
    bar.set_label(words, fontsize=8)
    return figure


def save(figure: Figure, folder: Path, name: str) -> None:
    """Write a figure as SVG and PNG."""
    folder.mkdir(parents=True, exist_ok=True)
    write_svg(figure, folder, name)
    figure.savefig(folder / f"{name}.png", dpi=110)


def write_svg(figure: Figure, folder: Path, name: str) -> None:
    """Write a figure as SVG, the same bytes for the same data, with a form for dark screens."""
    drawn = StringIO()
    with rc_context({"svg.hashsalt": name}):
        figure.savefig(drawn, format="svg", metadata={"Date": None})
    (folder / f"{name}.svg").write_text(
        drawn.getvalue().replace("</metadata>", f"</metadata>{_DARK}")
    )


def _draw(axis: Axes, records: Sequence[Row], x: str, value: str) -> None:
    for order, (label, style) in enumerate(STYLE.items()):
        mine = [record for record in records if record["method"] == label]
        places = sorted({record[x] for record in mine})
        values = [[r[value] for r in mine if r[x] == place] for place in places]
        if not values:
            continue
        every = max(1, len(places) // _MARKED)
        # Shifted, so that the markers of different lines do not coincide.
        marked: dict[str, Any] = {"markersize": 4, "markevery": (order % every, every)}
        axis.plot(places, [float(np.mean(v)) for v in values], label=label, **style, **marked)
        low, high = [min(v) for v in values], [max(v) for v in values]
        axis.fill_between(places, low, high, color=style["color"], alpha=0.15, linewidth=0)
    axis.grid(alpha=0.3)


def _name(axis: Axes) -> None:
    """Write each line's name beside its end, with enough space between names."""
    lines = sorted(axis.get_lines(), key=lambda line: float(np.asarray(line.get_ydata())[-1]))
    ends = [float(np.asarray(line.get_ydata())[-1]) for line in lines]
    low, high, *places = axis.yaxis.get_transform().transform([*axis.get_ylim(), *ends])
    heights = spaced((np.array(places) - low) / (high - low), _APART)
    for line, height in zip(lines, heights, strict=True):
        label, style = str(line.get_label()), STYLE[str(line.get_label())]
        mark = {"marker": style["marker"], "color": style["color"], "markersize": 4}
        axis.plot(1.03, height, transform=axis.transAxes, clip_on=False, **mark)
        axis.text(1.06, height, label, transform=axis.transAxes, va="center", fontsize=8)


def spaced(heights: Array, apart: float) -> Array:
    """Return ascending heights, moved as little as possible so that neighbours are at least
    ``apart``: isotonic regression, by pooling adjacent violators."""
    steps = apart * np.arange(len(heights))
    groups: list[list[float]] = []
    for height in heights - steps:  # these must not decrease
        groups.append([float(height)])
        while len(groups) > 1 and np.mean(groups[-2]) > np.mean(groups[-1]):
            above = groups.pop()
            groups[-1] += above
    means = [np.full(len(group), np.mean(group)) for group in groups]
    return steps + np.concatenate(means) if means else steps
