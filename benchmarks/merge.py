"""What ``consilience merge`` makes of eight versions of a checkpoint, three of them poisoned.

    python -m benchmarks.merge [--megabytes 200] [--folder DIR] [--out FILE]

Five good versions, one of noise, one with its sign flipped, one with a layer of NaN; or with one
NaN alone, which no sample sees: it shows only in the sum, and costs a second. How far is the merged
model from the mean of the good five, who is named, and how long does the merge take in units of
reading the files once? Timed alternately, best of several, page cache warm; the
command's own start (Python, imports), timed with a merge of tiny files, is given apart.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter

import numpy as np
from safetensors.numpy import load_file, save_file

from benchmarks.files import read
from benchmarks.timing import keep

REPEATS = 7
LAYERS = 8


def write(folder: Path, size: int) -> list[Path]:
    """Write the versions, of so many coordinates per layer: the eight, and one with one NaN."""
    rng = np.random.default_rng(0)
    truth = [rng.standard_normal(size, dtype=np.float32) for _ in range(LAYERS)]
    paths = []
    for name in ["good0", "good1", "good2", "good3", "good4", "noise", "flipped", "nan", "one-nan"]:
        model = {}
        for n, layer in enumerate(truth):
            noise = rng.standard_normal(size, dtype=np.float32)
            model[f"layer{n}"] = noise if name == "noise" else layer + np.float32(0.1) * noise
        if name == "flipped":
            model = {key: -value for key, value in model.items()}
        if name == "nan":
            model["layer3"][:] = np.nan
        if name == "one-nan":
            model["layer3"][size // 3] = np.nan
        paths.append(folder / f"{name}.safetensors")
        save_file(model, paths[-1])
    return paths


def merge(paths: list[Path], out: Path) -> tuple[float, int, dict[str, dict[str, object]]]:
    """Run the command; return the seconds, the exit code and what it said of the parties."""
    command = [Path(sys.executable).with_name("consilience"), "merge", *paths]
    started = perf_counter()
    found = subprocess.run([*command, "-o", out, "--force", "--json"], capture_output=True)
    return perf_counter() - started, found.returncode, json.loads(found.stdout)["parties"]


def off(out: Path, paths: list[Path]) -> float:
    """Return how far a model is from the mean of the first five, relative to it."""
    good = [load_file(path) for path in paths[:5]]
    merged, apart, length = load_file(out), 0.0, 0.0
    for key, value in merged.items():
        mean = np.mean([model[key] for model in good], axis=0, dtype=np.float64)
        apart += float(np.square(value - mean).sum())
        length += float(np.square(mean).sum())
    return float(np.sqrt(apart / length))


def main() -> None:
    """Measure, print and save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=REPEATS)
    parser.add_argument("--folder", type=Path, help="where the files go, for a while")
    parser.add_argument("--out", type=Path, default=Path("docs/data/merge.json"))
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=asked.folder) as folder:
        large, small = Path(folder, "large"), Path(folder, "small")
        large.mkdir()
        small.mkdir()
        paths = write(large, asked.megabytes * (1 << 20) // 4 // LAYERS)
        tiny, out = write(small, 1000), Path(folder, "out.safetensors")
        hidden = [path for path in paths if path.name != "nan.safetensors"]
        paths = paths[:-1]
        times = dict.fromkeys(["reading", "starting", "merging", "merging_one_nan"], float("inf"))
        for _ in range(asked.repeats):
            times["reading"] = min(times["reading"], read(paths))
            times["starting"] = min(times["starting"], merge(tiny, out)[0])
            times["merging_one_nan"] = min(times["merging_one_nan"], merge(hidden, out)[0])
            seconds, code, parties = merge(paths, out)
            times["merging"] = min(times["merging"], seconds)
        apart = off(out, paths)
    unit, start = times["reading"], times["starting"]
    record = {
        "megabytes_each": asked.megabytes,
        "distance_from_mean_of_good": float(f"{apart:.2g}"),
        "exit_code": code,
        "named": {name: party["reason"] for name, party in parties.items() if party["reason"]},
        "weights": {name: round(float(str(p["weight"])), 4) for name, p in parties.items()},
        "seconds": {name: round(seconds, 2) for name, seconds in times.items()},
        "merging_in_readings": round((times["merging"] - start) / unit, 2),
        "merging_one_nan_in_readings": round((times["merging_one_nan"] - start) / unit, 2),
        "starting_in_readings": round(start / unit, 2),
        "repeats": asked.repeats,
    }
    keep(record, asked.out)


if __name__ == "__main__":
    main()
