"""Checkpoints of the integrations: damage must be noticed, or make no difference."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from numpy.random import Generator

from consilience.integrations.checkpoint import Checkpoint, CheckpointError, latest
from fuzz import memories
from fuzz.damage import damaged, lied, written
from fuzz.oracle import expect, refused


def case(random: Generator, folder: Path) -> None:
    """Go on from a checkpoint that may be damaged."""
    saved = _made(random)
    root = folder / "run"
    place = saved.save(root)
    files = sorted(path for path in place.iterdir())
    file = files[int(random.integers(len(files)))]
    way = random.random()
    if way < 0.1:
        _same(_found(root), saved)
        return
    if way < 0.75:
        other = files[int(random.integers(len(files)))].read_bytes()
        file.write_bytes(damaged(random, file.read_bytes(), other))
    elif way < 0.85:
        file.unlink()
    else:
        file = place / "state.json"
        file.write_bytes(written(lied(random, json.loads(file.read_bytes()))))
    content = {path: path.read_bytes() for path in place.iterdir()}
    if not refused(lambda: latest(root), CheckpointError, root):
        _same(_found(root), saved)
    left = {path: path.read_bytes() for path in place.iterdir()}
    expect(left == content, "a damaged checkpoint was changed")


def _made(random: Generator) -> Checkpoint:
    dtype = random.choice([np.float32, np.float64, np.float16])
    model = {
        f"layer.{k}": random.standard_normal(int(random.integers(1, 50))).astype(dtype)
        for k in range(int(random.integers(1, 4)))
    }
    rejections = (
        {"eve": {"times": 2, "round": 3, "why": "holds nan"}} if random.random() < 0.5 else {}
    )
    memory = memories.made(random, rounds=1)
    return Checkpoint(int(random.integers(1, 1000)), model, memory, rejections)


def _found(root: Path) -> Checkpoint:
    found = latest(root)
    expect(found is not None, "no checkpoint was found")
    assert found is not None
    return found


def _same(found: Checkpoint, saved: Checkpoint) -> None:
    expect(found.round == saved.round, "round", found.round, "expected", saved.round)
    expect(found.rejections == saved.rejections, "rejections", str(found.rejections)[:200])
    expect(list(found.model) == list(saved.model), "tensors", str(list(found.model))[:200])
    for name, tensor in saved.model.items():
        equal = found.model[name].tobytes() == tensor.tobytes()
        expect(equal and found.model[name].dtype == tensor.dtype, "another tensor", name)
    memories.same(found.memory, saved.memory)
