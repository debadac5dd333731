"""What an aggregation from files costs: time in units of reading the files twice, and memory.

    python -m benchmarks.files [--parties 8] [--megabytes 1024] [--folder DIR] [--out FILE]

Reading is timed alternately with the aggregation, best of several, the page cache warm for both.
The peak of memory is that of a fresh process, less what it had before it began. Needs free disk
space for one file more than there are parties.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter

import numpy as np
from safetensors.numpy import save_file

import consilience as cs
from benchmarks.timing import keep

REPEATS = 5
TENSORS = 16
PIECE = 1 << 22

# Not ru_maxrss, in which a child inherits its parent's peak.
PEAK = """
import sys
import consilience as cs
def peak():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))
cs.aggregate([[1.0], [2.0], [4.0]])
before = peak()
cs.aggregate_files(sys.argv[2:], sys.argv[1])
print((peak() - before) / 1024)
"""


def write(folder: Path, parties: int, megabytes: int, dtype: str) -> list[Path]:
    """Write noisy versions of a model: the later, the noisier."""
    rng = np.random.default_rng(0)
    width = 1024
    rows = megabytes * (1 << 20) // np.dtype(dtype).itemsize // width // TENSORS
    truth = rng.standard_normal((rows, width), dtype=np.float32)
    paths = []
    for j in range(parties):
        model = {}
        for n in range(TENSORS):
            model[f"layer{n:02d}"] = rng.standard_normal(truth.shape, dtype=np.float32)
            model[f"layer{n:02d}"] *= 0.1 + 0.02 * j
            model[f"layer{n:02d}"] += np.roll(truth, n)
            model[f"layer{n:02d}"] = model[f"layer{n:02d}"].astype(dtype, copy=False)
        paths.append(folder / f"party{j}.safetensors")
        save_file(model, paths[-1])
    return paths


def read(paths: list[Path]) -> float:
    """Return the seconds it takes to read files once, in large pieces."""
    buffer = bytearray(PIECE)
    started = perf_counter()
    for path in paths:
        with open(path, "rb", buffering=0) as file:
            while file.readinto(buffer):
                pass
    return perf_counter() - started


def main() -> None:
    """Measure, print and save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parties", type=int, default=8)
    parser.add_argument("--megabytes", type=int, default=1024)
    parser.add_argument("--repeats", type=int, default=REPEATS)
    parser.add_argument("--folder", type=Path, help="where the files go, for a while")
    parser.add_argument("--out", type=Path, default=Path("docs/data/files.json"))
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=asked.folder) as folder:
        paths = write(Path(folder), asked.parties, asked.megabytes, "float32")
        out = Path(folder, "out.safetensors")
        reading = aggregating = float("inf")
        for _ in range(asked.repeats):
            out.unlink(missing_ok=True)
            reading = min(reading, read(paths) + read(paths))
            started = perf_counter()
            cs.aggregate_files(paths, out)
            aggregating = min(aggregating, perf_counter() - started)
        command = [sys.executable, "-c", PEAK, str(out), *map(str, paths)]
        peak = float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    record = {
        "parties": asked.parties,
        "megabytes_each": asked.megabytes,
        "dtype": "float32",
        "reading_twice_seconds": round(reading, 2),
        "aggregating_seconds": round(aggregating, 2),
        "speed_relative_to_reading_twice": round(reading / aggregating, 2),
        "peak_extra_megabytes": round(peak, 1),
        "repeats": asked.repeats,
    }
    keep(record, asked.out)


if __name__ == "__main__":
    main()
