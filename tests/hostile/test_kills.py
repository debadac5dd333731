"""kill -9 at random moments: the target is the old or the complete new, and the next run works.

Fifteen kills of merges and as many of records and memories in `make test`; more by hand:

    CONSILIENCE_KILLS=100 python -m pytest tests/hostile/test_kills.py -s
"""

import os
import random
import shutil
import signal
import time
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import consilience as cs
from forks import MERGE, Forks

KILLS = int(os.environ.get("CONSILIENCE_KILLS", "15"))
FORMATS = [".safetensors", ".npz", ""]
pytestmark = pytest.mark.integration

# In `said` there is a byte for each round that was kept.
KEEP = """
memory = cs.Memory()
updates = np.random.default_rng(0).standard_normal((5, 1000))
while True:
    cs.aggregate(updates, memory=memory, record="run.jsonl")
    memory.save("memory.npz")
    with open("said", "ab") as file:
        file.write(b".")
"""


def left(folder: Path) -> list[str]:
    return [name for name in os.listdir(folder) if name.startswith(".")]


def save(model, path: Path) -> None:
    if path.suffix == ".npz":
        np.savez(path, **model)
        return
    if not path.suffix:
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir()
    save_file(model, path if path.suffix else path / "model.safetensors")


def load(path: Path):
    if path.suffix == ".npz":
        with np.load(path) as arrays:
            return dict(arrays)
    return load_file(path if path.suffix else path / "model.safetensors")


def put_old(out: Path) -> dict[str, np.ndarray]:
    """Make the target an old one; of folders only an empty one can be replaced."""
    old = {name: np.zeros(3, np.float32) for name in "uvw"}
    save(old, out)
    if not out.suffix:
        (out / "model.safetensors").unlink()
    return old


def versions(folder: Path, suffix: str) -> str:
    """Write versions of a model; return their names."""
    dice = np.random.default_rng(0)
    truth = {name: dice.standard_normal(300_000) for name in "uvw"}
    for j in range(4):
        noisy = {n: t + 0.1 * dice.standard_normal(t.size) for n, t in truth.items()}
        save({n: t.astype(np.float32) for n, t in noisy.items()}, folder / f"good{j}{suffix}")
    return " ".join(f"good{j}{suffix}" for j in range(4))


@pytest.mark.parametrize("suffix", FORMATS)
def test_merges(tmp_path: Path, monkeypatch, suffix):
    monkeypatch.chdir(tmp_path)
    out, dice, ends, fresh, rubbish = Path(f"out{suffix}"), random.Random(0), [], 0, 0
    with Forks(MERGE, f"{versions(tmp_path, suffix)} -o {out} --force --exact") as merges:
        took = []
        for _ in range(2):
            started = time.monotonic()
            put_old(out)
            assert merges.run() == 0
            took.append(time.monotonic() - started)
        new = load(out)
        wanted = -(-KILLS // len(FORMATS))
        # On a busy machine a run may end before its kill: then there is another one.
        while ends.count(-signal.SIGKILL) < wanted and len(ends) < 10 * wanted:
            expected = put_old(out)
            ends.append(merges.run(lambda: time.sleep(dice.uniform(0, min(took)))))
            rubbish += len(left(tmp_path))
            found = expected if out.is_dir() and not os.listdir(out) else load(out)
            if found["u"].size > 3:
                expected, fresh = new, fresh + 1
            assert found.keys() == expected.keys()
            assert all(np.array_equal(found[name], expected[name]) for name in found)
        put_old(out)
        assert merges.run() == 0
    assert all(np.array_equal(load(out)[name], new[name]) for name in new)
    assert left(tmp_path) == []
    killed = ends.count(-signal.SIGKILL)
    print(f"{out}: {killed} of {len(ends)} killed, {fresh} times new, {rubbish} leftovers seen")
    assert killed == wanted


def test_records_and_memories(tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    dice, torn, rubbish, before = random.Random(1), 0, 0, 0
    record, said, kept = Path("run.jsonl"), Path("said"), Path("memory.npz")
    with Forks(KEEP) as keepers:
        for _ in range(KILLS):
            said.write_bytes(b"")
            assert keepers.run(lambda: time.sleep(dice.uniform(0, 0.2))) == -signal.SIGKILL
            rubbish += len(left(tmp_path))
            torn += record.exists() and not record.read_bytes().endswith(b"\n")
            count, saved = (
                len(cs.Record.read(record)) if record.exists() else 0,
                said.stat().st_size,
            )
            assert before + saved <= count <= before + saved + 1  # of the one at hand either
            before = count
            if saved:
                assert cs.Memory.load(kept).rounds in (saved, saved + 1)
            elif kept.exists():
                assert cs.Memory.load(kept).rounds > 0
    memory = cs.Memory()
    cs.aggregate(np.eye(5), memory=memory, record=record)
    memory.save(kept)
    assert [r.round for r in cs.Record.read(record)] == list(range(1, before + 2))
    assert left(tmp_path) == []
    print(f"{KILLS} killed, {before} rounds, {torn} torn lines, {rubbish} leftovers seen")
    assert before > 0
