"""docs/benchmarks.md and its figure, from what was measured.

python -m benchmarks.page   # once more, from docs/data
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from consilience.lab.figures import write_svg
from consilience.lab.tables import markdown

SHOWN = (
    ("pairwise", "#AA3377", "o"),
    ("ivar-vb", "#4477AA", "s"),
    ("icov-vb", "#EE6677", "^"),
    ("coordinate-median", "#228833", "D"),
    ("Flower: FedAvg", "#CCBB44", "v"),
    ("ByzFL (torch): geometric-median", "#66CCEE", "P"),
    ("ByzFL (torch): krum", "#BBBBBB", "X"),
    ("numpy: np.median(X, 0)", "#000000", "*"),
)


def write(record: dict[str, Any], out: Path) -> Path:
    """Write the page and the figure; return the page's path."""
    (out / "figures").mkdir(parents=True, exist_ok=True)
    write_svg(picture(record), out / "figures", "speed")
    page = out / "benchmarks.md"
    page.write_text(text(record, out))
    return page


def text(record: dict[str, Any], out: Path) -> str:
    """Return the page."""
    shapes = record["shapes"]
    names = [f"J={s['parties']}, K={s['coordinates']:,}" for s in shapes]
    rows = [[name, *(f"{s['units'][name]:.2f}" for s in shapes)] for name in shapes[0]["units"]]
    busy = [
        [name, *(f"{s['units'][name]:.2f} → {s['busy'][name]:.2f}" for s in shapes)]
        for name in shapes[0]["busy"]
    ]
    off = [[name, *(f"{100 * s['off'][name]:.2f} %" for s in shapes)] for name in shapes[0]["off"]]
    memory = [
        [name, *(f"{s['megabytes'][name]:.1f}" for s in shapes)] for name in shapes[0]["megabytes"]
    ]
    faster = [
        [words, *(f"{one[a] / one[b]:.0f} ×" for one in (s["units"] for s in shapes))]
        for words, a, b in COMPARED
    ]
    inferred = record["inference"]
    methods = list(inferred[min(inferred, key=int)])
    between = [
        [name, *(f"{inferred[j][name]:.1f}" if name in inferred[j] else "" for j in inferred)]
        for name in methods
    ]
    units = ", ".join(f"{s['unit_milliseconds']:g}" for s in shapes)
    machine = "{cores} cores, load {load}, Python {python}, numpy {numpy}".format(
        **record["machine"]
    )
    return f"""# What it costs

`make bench` writes this page, [the figure](figures/speed.svg) and [its data](data/speed.json). One
unit is one BLAS weighted average `w @ X` of the same float32 array in the same process; everything
was timed in turns, best of several, on {machine}.
A unit took {units} milliseconds.

![Units by method and shape; milliseconds of inference by parties](figures/speed.svg)

## How long a consensus takes

Every party has an array of its own, as users have, unless said otherwise. Reading all of it once is
about one unit, so two is the floor for an exact consensus. By default the evidence is from a sample
of the coordinates; while the sum is formed, every party is compared with another one in all of
them, to see what a sample would miss.

{markdown(["", *names], rows)}
## How long it takes on a busy machine

Units on a quiet machine → units of a run beside one process that computes all the time. The unit,
too, is then slower.

{markdown(["", *names], busy)}
## How many times faster than others

{markdown(["", *names], faster)}
## How far sampled weights are from exact ones

The largest relative difference, over the parties with any weight:

{markdown(["", *names], off)}
## How much memory it takes

The most, in megabytes, at any time during a consensus, beyond the updates and the output
(`tracemalloc`, which numpy reports to):

{markdown(["", *names], memory)}
## How long the inference takes

Milliseconds of inference, by the number of parties, whatever the number of coordinates:

{markdown(["", *inferred], between)}
{files(out)}{servers(out)}"""


COMPARED = (
    ("pairwise than Flower's FedAvg", "Flower: FedAvg", "pairwise"),
    (
        "pairwise of state dicts than Flower's FedAvg",
        "Flower: FedAvg",
        "pairwise, state dicts of 18 tensors",
    ),
    ("coordinate-median than np.median", "numpy: np.median(X, 0)", "coordinate-median"),
    ("geometric-median than ByzFL's", "ByzFL (torch): geometric-median", "geometric-median"),
    ("krum than ByzFL's", "ByzFL (torch): krum", "krum"),
)


def files(out: Path) -> str:
    """Return the part about files, if benchmarks.files has been run."""
    data = out / "data" / "files.json"
    if not data.exists():
        return ""
    found = json.loads(data.read_text())
    return f"""## From files

{found["parties"]} files of {found["megabytes_each"]} MB, in the page cache: aggregated at
{found["speed_relative_to_reading_twice"]} of the speed of reading them twice, with
{found["peak_extra_megabytes"]} MB of memory at most beyond what Python itself takes
(`python -m benchmarks.files`, [data](data/files.json)).
"""


def servers(out: Path) -> str:
    """Return the part about the platforms, if both have been measured."""
    data = [out / "data" / f"{name}-cost.json" for name in ("flower", "nvflare")]
    if not all(path.exists() for path in data):
        return ""
    ratios = [json.loads(path.read_text())["ratio_to_FedAvg"] for path in data]
    rows = [
        [name, f"{ratio['seconds']:.2f}", f"{ratio['megabytes']:.2f}"]
        for name, ratio in zip(SERVERS, ratios, strict=True)
    ]
    return f"""
## In a federation's server

A round by `pairwise` beside the platform's own FedAvg, on the same replies of 10 clients, in turns:
the ratio of the times, and of the memory beyond the replies ([more](flower.md#what-a-round-costs)).

{markdown(["", "time", "memory"], rows)}"""


SERVERS = (
    "Flower (`python -m benchmarks.flower cost`, [data](data/flower-cost.json))",
    "NVIDIA FLARE (`python -m benchmarks.nvflare`, [data](data/nvflare-cost.json))",
)


def picture(record: dict[str, Any]) -> Figure:
    """Return units by method and shape, beside the inference by the number of parties."""
    figure = Figure(figsize=(10, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    shapes = record["shapes"]
    for name, colour, marker in SHOWN:
        costs = [s["units"].get(name) for s in shapes]
        left.plot(range(len(shapes)), costs, marker, color=colour, markersize=9, label=name)
    left.axhline(1, color="#888888", linewidth=0.8)
    left.set(yscale="log", ylabel="units (one unit: w @ X)", xlim=(-0.5, len(shapes) - 0.5))
    names = [f"J={s['parties']}\nK={s['coordinates']:,}" for s in shapes]
    left.set_xticks(range(len(shapes)), names)
    inferred = record["inference"]
    for name, colour, marker in SHOWN[:3]:
        points = [(int(j), found[name]) for j, found in inferred.items() if name in found]
        right.plot(*zip(*points, strict=True), marker=marker, color=colour, label=name)
    right.set(xscale="log", yscale="log", xlabel="parties", ylabel="milliseconds of inference")
    left.legend(fontsize=7, loc="upper left", bbox_to_anchor=(0, -0.18), ncols=2, frameon=False)
    right.legend(fontsize=7, frameon=False)
    return figure


if __name__ == "__main__":
    docs = Path(__file__).parent.parent / "docs"
    print(write(json.loads((docs / "data" / "speed.json").read_text()), docs))
