"""The look of all pictures: no background, and colours that stand out from white and from black."""

import sys
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

# Paul Tol's bright scheme, as in the other figures; red darker and purple lighter, to be read on
# white and on black.
BLUE, RED, GREEN, PURPLE = "#4477AA", "#DD5566", "#228833", "#BB4488"
INK = "#777C84"  # of axes and what is written beside them
FOLDER = Path(__file__).parent


def figure(height: float = 3.4, mosaic: str = "A", **more: Any) -> tuple[Figure, list[Axes]]:
    """Return an empty picture, narrow enough for a phone, and its axes, a letter each."""
    ink = dict.fromkeys(("text.color", "axes.labelcolor", "xtick.color", "ytick.color"), INK)
    sizes = {"axes.titlesize": 12, "axes.labelsize": 12, "axes.edgecolor": INK}
    spines = {"axes.spines.top": False, "axes.spines.right": False}
    with rc_context({**ink, **sizes, **spines, "xtick.labelsize": 11, "ytick.labelsize": 11}):
        picture = Figure(figsize=(5, height), layout="constrained")
        return picture, list(picture.subplot_mosaic(mosaic, **more).values())


def label(axes: Axes, place: tuple[float, float], text: str, colour: str, **more: Any) -> None:
    """Write what a line or a point is beside it, in its colour."""
    given = {"fontsize": 12, "weight": "bold", "va": "center", **more}
    axes.text(*place, text, color=colour, **given)


def save(picture: Figure, name: str) -> None:
    """Write the picture as SVG beside the scripts, or into the folder named on the command line."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    # Letters as text are small and can be searched. With the salt, equal data give equal bytes.
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        picture.savefig(folder / f"{name}.svg", transparent=True, metadata={"Date": None})
