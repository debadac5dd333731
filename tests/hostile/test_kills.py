"""kill -9 at random moments: what is written is the old or the complete new, and the next run works.

Some fifteen kills of each kind in `make test`; more by hand:

    CONSILIENCE_KILLS=100 python -m pytest tests/hostile/test_kills.py -s
"""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import consilience as cs

KILLS = int(os.environ.get("CONSILIENCE_KILLS", "15"))
pytestmark = pytest.mark.integration

# Says when it begins: what comes before is Python's start and its imports, which write nothing.
MERGE = """
import sys, consilience.cli, consilience.merge, scipy.optimize
print("ready", flush=True)
sys.argv = ["consilience", "merge", *sys.argv[1:]]
consilience.cli.main()
"""

KEEP = """
import sys, numpy as np, consilience as cs
memory, random = cs.Memory(), np.random.default_rng(0)
updates = {str(j): random.standard_normal(1000) for j in range(5)}
cs.aggregate(updates)
print("ready", flush=True)
for n in range(1, 1_000_000):
    cs.aggregate(updates, memory=memory, record="run.jsonl")
    memory.save("memory.npz")
    print(n, flush=True)
"""


def killed_after(script: str, seconds: float, *words: str) -> tuple[int, list[str]]:
    """Run a process and kill it so long after it said that it begins; return its exit code, and
    what it said since."""
    process = subprocess.Popen(
        [sys.executable, "-c", script, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    with process:
        assert process.stdout.readline() == "ready\n"
        time.sleep(seconds)
        process.kill()
        said = process.stdout.read().split("\n")[:-1]
    return process.returncode, said


def left(folder: Path) -> list[str]:
    return sorted(name for name in os.listdir(folder) if name.startswith("."))


def save_versions(folder: Path, suffix: str) -> list[str]:
    """Write five versions of a model; with no suffix as folders of two shards."""
    random = np.random.default_rng(0)
    truth = {name: random.standard_normal(150_000) for name in "uvw"}
    names = []
    for j in range(5):
        model = {
            n: (t + 0.1 * random.standard_normal(t.size)).astype(np.float32)
            for n, t in truth.items()
        }
        names.append(f"good{j}{suffix}")
        if suffix == ".npz":
            np.savez(folder / names[-1], **model)
        elif suffix:
            save_file(model, folder / names[-1])
        else:
            (folder / names[-1]).mkdir()
            save_file(model, folder / names[-1] / "model.safetensors")
    return names


def load(path: Path) -> dict[str, np.ndarray]:
    if path.suffix == ".npz":
        with np.load(path) as arrays:
            return dict(arrays)
    return load_file(path / "model.safetensors" if path.is_dir() else path)


@pytest.mark.parametrize("suffix", [".safetensors", ".npz", ""])
def test_merges(tmp_path: Path, monkeypatch, suffix):
    monkeypatch.chdir(tmp_path)
    out = Path(f"out{suffix}")
    words = [*save_versions(tmp_path, suffix), "-o", str(out), "--force", "--exact"]
    started = time.monotonic()
    assert subprocess.run([sys.executable, "-c", MERGE, *words], check=False).returncode == 0
    took = time.monotonic() - started
    new, old = load(out), {name: np.zeros(3, np.float32) for name in "uvw"}
    dice, codes, seen, rubbish = random.Random(0), [], {"old": 0, "new": 0}, 0
    # A third of the kills for each format. What imports take is in `took`, but not in the waiting.
    for _ in range(-(-KILLS // 3)):
        _put_old(out, old)
        code, _ = killed_after(MERGE, dice.uniform(0, 0.7 * took), *words)
        codes.append(code)
        rubbish += len(left(tmp_path))
        found = load(out) if os.path.lexists(out) and any_in(out) else old
        fresh = found["u"].size > 3
        seen["new" if fresh else "old"] += 1
        for name, value in (new if fresh else old).items():
            np.testing.assert_array_equal(found[name], value)
        assert set(found) == set("uvw")
    print(f"merge{suffix or '/'}: {codes.count(-signal.SIGKILL)} killed of {len(codes)}, {seen},")
    print(f"  {rubbish} hidden folders left and removed")
    assert codes.count(-signal.SIGKILL) > len(codes) // 3
    _put_old(out, old)
    assert subprocess.run([sys.executable, "-c", MERGE, *words], check=False).returncode == 0
    assert load(out).keys() == new.keys()
    assert left(tmp_path) == []


def any_in(path: Path) -> bool:
    return not path.is_dir() or bool(os.listdir(path))


def _put_old(out: Path, old: dict[str, np.ndarray]) -> None:
    """Make the target the old one: of folders only an empty one can be replaced."""
    if out.suffix == ".npz":
        np.savez(out, **old)
    elif out.suffix:
        save_file(old, out)
    else:
        if out.is_dir():
            for name in os.listdir(out):
                (out / name).unlink()
        out.mkdir(exist_ok=True)


def test_records_and_memories(tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    dice, torn, rubbish, before = random.Random(1), 0, 0, 0
    for _ in range(KILLS):
        code, said = killed_after(KEEP, dice.uniform(0, 0.15))
        assert code == -signal.SIGKILL
        rubbish += len(left(tmp_path))
        saved = int(said[-1]) if said else 0
        rounds = cs.Record.read("run.jsonl") if Path("run.jsonl").exists() else ()
        assert [r.round for r in rounds] == list(range(1, len(rounds) + 1))
        assert before + saved <= len(rounds) <= before + saved + 1  # none is lost
        before = len(rounds)
        torn += Path("run.jsonl").exists() and not Path("run.jsonl").read_bytes().endswith(b"\n")
        if saved:
            # What it said is saved was; of the one it was at, either.
            assert cs.Memory.load("memory.npz").rounds in (saved, saved + 1)
        elif Path("memory.npz").exists():
            assert cs.Memory.load("memory.npz").rounds > 0
    print(f"record and memory: {KILLS} killed, {before} rounds, {torn} torn lines, {rubbish} files")
    print("  left and removed")
    assert before > 0
    memory = cs.Memory()
    cs.aggregate(np.eye(5), memory=memory, record="run.jsonl")
    memory.save("memory.npz")
    assert len(cs.Record.read("run.jsonl")) == before + 1
    assert left(tmp_path) == []
