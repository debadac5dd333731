"""What ``consilience merge`` makes of eight LoRA adapters of a 7B-shaped model, three of them bad.

    python -m benchmarks.adapters [--layers 32] [--repeats 5] [--folder DIR] [--out FILE]

Rank 16, on q, k, v and o of 32 layers of width 4096. Five good ones, made of one truth and noise of
their own; one of noise, one with its sign flipped, one fifty times too long. Each is in a gauge of
its own. Who is named, how far is the merged update from the mean of the good five, how long does
the merge take in units of reading the files once, and how much memory? Timed alternately, best and
median of several, with the files on disk (Linux is told to forget them) and with the files in the
page cache; the command's own start, timed with adapters of one narrow layer, is given apart, and
taken off. Processor time is that of all threads: it says more than the clock where others use the
machine.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import Any, NamedTuple, TypeVar

import numpy as np
from safetensors.numpy import load_file, save_file

import consilience as cs
from benchmarks.files import read
from benchmarks.timing import keep

T = TypeVar("T")

RANK, TRUE = 16, 8  # of an adapter, and of what the good ones have in common
NAMES = ("good0", "good1", "good2", "good3", "good4", "noise", "flipped", "loud")
GOOD = NAMES[:5]
BY = {"flipped": -1.0, "loud": 50.0}
DISK = " from disk"


# Not ru_maxrss, in which a child inherits its parent's peak.
PEAK = """
import sys
import consilience as cs
cs.aggregate_files(sys.argv[3:], sys.argv[1], rank=sys.argv[2] or None)
with open("/proc/self/status") as status:
    print(next(int(line.split()[1]) for line in status if line.startswith("VmHWM")))
"""


def write(folder: Path, layers: int, width: int) -> list[Path]:
    """Write the adapters as PEFT does."""
    config = {"peft_type": "LORA", "r": RANK, "lora_alpha": 32, "task_type": "CAUSAL_LM"}
    config |= {"base_model_name_or_path": "made-up/7b", "target_modules": list("qkvo")}
    for number, name in enumerate(NAMES):
        rng, truth = np.random.default_rng(1 + number), np.random.default_rng(0)
        tensors = {}
        for layer in range(layers):
            for part in "qkvo":
                common = truth.standard_normal((2, TRUE, width), np.float32)
                own = rng.standard_normal((2, RANK - TRUE, width), np.float32)
                b, a = np.concatenate([common * (name != "noise"), np.float32(0.3) * own], axis=1)
                turn = rng.standard_normal((RANK, RANK)) + 8 * np.eye(RANK)
                module = f"base_model.model.model.layers.{layer}.self_attn.{part}_proj"
                left = b.T @ turn * BY.get(name, 1.0)
                tensors[f"{module}.lora_B.weight"] = left.astype(np.float32)
                tensors[f"{module}.lora_A.weight"] = np.linalg.solve(turn, a).astype(np.float32)
        (folder / name).mkdir()
        save_file(tensors, folder / name / "adapter_model.safetensors")
        (folder / name / "adapter_config.json").write_text(json.dumps(config))
    return [folder / name for name in NAMES]


class Spent(NamedTuple):
    """Seconds by the clock, and of the processor."""

    clock: float
    processor: float


def timed(task: Callable[[], T]) -> tuple[Spent, T]:
    """Run something, or have it run by another process; return what it took, and what it gave."""
    before, started = processor_time(), perf_counter()
    found = task()
    return Spent(perf_counter() - started, processor_time() - before), found


def processor_time() -> float:
    """Return what this process and those that it ran have used so far."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return process_time() + children.ru_utime + children.ru_stime


def merge(paths: list[Path], out: Path, *more: str) -> tuple[Spent, dict[str, Any]]:
    """Run the command; return what it took and what it said."""
    shutil.rmtree(out, ignore_errors=True)
    command = [sys.executable, "-m", "consilience_command", "merge", *paths, "-o", out, "--json"]
    spent, found = timed(lambda: subprocess.run([*command, *more], capture_output=True))
    return spent, json.loads(found.stdout)


def megabytes(paths: list[Path], out: Path, *rank: str) -> int:
    """Return how much memory a merge takes at its peak."""
    shutil.rmtree(out, ignore_errors=True)
    found = subprocess.run(
        [sys.executable, "-c", PEAK, out, ",".join(rank), *paths], capture_output=True
    )
    return int(found.stdout) // 1024


def off(out: Path, paths: list[Path]) -> float:
    """Return how far the merged update is from the mean of the good five, relative to it."""
    merged, good = (
        load_file(out / "adapter_model.safetensors"),
        [load_file(path / "adapter_model.safetensors") for path in paths[: len(GOOD)]],
    )
    apart = length = 0.0
    for key in (key for key in merged if ".lora_B." in key):
        other = key.replace("lora_B", "lora_A")
        mean = (
            np.hstack([g[key] for g in good]) * (32 / RANK / len(GOOD)),
            np.vstack([g[other] for g in good]),
        )
        left = np.hstack([merged[key].astype(float), -mean[0].astype(float)])
        right = np.vstack([merged[other], mean[1]]).astype(float)
        apart += float(((left.T @ left) * (right @ right.T)).sum())
        length += float(((mean[0].T @ mean[0]) * (mean[1] @ mean[1].T)).sum())
    return float(np.sqrt(apart / length))


def apart(found: dict[str, Any], expected: dict[str, Any]) -> float:
    """Return how far the update of an adapter is from another's, relative to that."""
    far = length = 0.0
    for key in (key for key in found if ".lora_B." in key):
        other = key.replace("lora_B", "lora_A")
        mine, theirs = (x[key].astype(float) @ x[other] for x in (found, expected))
        far, length = far + np.square(mine - theirs).sum(), length + np.square(theirs).sum()
    return float(f"{np.sqrt(far / length):.2g}")


def gauges(folder: Path) -> dict[str, float]:
    """Return how far the merger of an adapter and itself in other gauges is from it: ours, and that
    of averaging A and B."""
    rng = np.random.default_rng(0)
    mine = load_file(write(folder, 1, 256)[0] / "adapter_model.safetensors")
    sent = {"mine": mine}
    for copy in range(3):
        other = dict(mine)
        for key in (key for key in mine if ".lora_B." in key):
            turn = rng.standard_normal((RANK, RANK))
            right = key.replace("lora_B", "lora_A")
            other[key] = (mine[key] @ turn).astype(np.float32)
            other[right] = np.linalg.solve(turn, mine[right]).astype(np.float32)
        sent[f"copy{copy}"] = other
    ours = cs.aggregate(sent, adapters="lora").value
    naive = {key: np.mean([x[key] for x in sent.values()], axis=0) for key in mine}
    return {"ours": apart(ours, mine), "averaging_a_and_b": apart(naive, mine)}


def forget(files: list[Path]) -> None:
    """Drop files from the page cache, so that they are read from the disk again."""
    for file in files:
        descriptor = os.open(file, os.O_RDONLY)
        os.fsync(descriptor)  # only what is on the disk can be dropped
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def summary(times: list[Spent]) -> dict[str, float]:
    """Return the best and the median of some times."""
    return {
        f"{what}_{name}": round(of(found), 3)
        for what, found in zip(Spent._fields, zip(*times, strict=True), strict=True)
        for name, of in (("best", min), ("median", median))
    }


def in_readings(times: dict[str, list[Spent]], way: str, where: str = "") -> dict[str, float]:
    """Return what a way of merging takes in units of reading the files, its start taken off."""
    names = (way + where, "starting", "reading" + where)
    taken, start, unit = (summary(times[name]) for name in names)
    return {what: round((taken[what] - start[what]) / unit[what], 1) for what in taken}


def main() -> None:
    """Measure, print and save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="where the files go, for a while")
    parser.add_argument("--out", type=Path, default=Path("docs/data/adapters.json"))
    asked = parser.parse_args()
    ways = {"rank_16": ("--rank", "16"), "exact_stack": ("--exact-stack",)}
    with tempfile.TemporaryDirectory(dir=asked.folder) as folder:
        large, small, out = Path(folder, "large"), Path(folder, "small"), Path(folder, "out")
        large.mkdir()
        small.mkdir()
        turned = Path(folder, "turned")
        turned.mkdir()
        paths, tiny = write(large, asked.layers, 4096), write(small, 1, 64)
        files = [path / "adapter_model.safetensors" for path in paths]
        kinds = [kind + where for kind in ("reading", *ways) for where in ("", DISK)]
        times: dict[str, list[Spent]] = {name: [] for name in ("starting", *kinds)}
        told: dict[str, Any] = {}
        for _ in range(asked.repeats):
            times["reading"].append(timed(lambda: read(files))[0])
            times["starting"].append(merge(tiny, out)[0])
            forget(files)
            times["reading" + DISK].append(timed(lambda: read(files))[0])
            for way, options in ways.items():
                forget(files)
                times[way + DISK].append(merge(paths, out, *options)[0])
                spent, said = merge(paths, out, *options)
                times[way].append(spent)
                told[way] = {"off": float(f"{off(out, paths):.2g}"), "cut": said["cut"]}
        reasons = {p: of["reason"] for p, of in said["parties"].items() if of["reason"]}
        weights = {p: round(of["weight"], 4) for p, of in said["parties"].items()}
        for way, rank in ("rank_16", ""), ("exact_stack", "stack"):
            told[way]["megabytes"] = megabytes(paths, out, rank)
            told[way]["in_readings"] = in_readings(times, way)
            told[way]["in_readings_from_disk"] = in_readings(times, way, DISK)
        in_other_gauges = gauges(turned)
    record = {
        "same_in_other_gauges": in_other_gauges,
        "layers": asked.layers,
        "megabytes_each": round(sum(2 * 4 * RANK * 4096 * 4 for _ in range(asked.layers)) / 2**20),
        "seconds": {name: summary(found) for name, found in times.items()},
        **told,
        "named": reasons,
        "weights": weights,
        "repeats": asked.repeats,
    }
    keep(record, asked.out)


if __name__ == "__main__":
    main()
