"""Models in files for `aggregate_files`: several sound ones, and some that were damaged.

What is the same for all formats: the sound models, the round, and the oracle, which is that of
updates with a second opinion on what a damaged file holds.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.random import Generator

import consilience as cs
from fuzz.oracle import check_error, check_reasons, expect
from fuzz.trees import FLOATS, Skeleton, Spec, Values
from fuzz.updates import Party, Round, check_numbers, check_value, check_who

METHODS = ("pairwise", "pairwise", "mean", "coordinate-median", "ivar-vb", "krum", "icov-full")


@dataclass(frozen=True)
class Format:
    """How a kind of file is written, damaged and read by somebody else."""

    suffix: str
    dtypes: tuple[str, ...]
    write: Callable[[Generator, Path, Values], None]
    # Leaves a damaged file, made from the bytes of two sound ones.
    damage: Callable[[Generator, Path, bytes, bytes], None]
    # Returns what a file holds, None if nobody should use it; raises if the reader cannot tell.
    read: Callable[[Path], dict[str, Any] | None]
    # Makes a folder of damaged shards of a model, where the format has such, and tells likewise.
    shards: Callable[[Generator, Path, Values], dict[str, Any] | None] | None = None


def judge(random: Generator, folder: Path, kind: Format) -> None:
    """Run one case of a format."""
    shape = _shape(random, kind)
    hostile = int(random.integers(1, 3))
    sound = int(random.integers(hostile + 1, 6))
    truth = {p: random.standard_normal(s.shape) for p, s in shape.specs.items()}
    parties: dict[Any, Party] = {}
    for j in range(sound + 1):
        numbers = {p: t + 0.1 * random.standard_normal(t.shape) for p, t in truth.items()}
        values = {p: shape.specs[p].rounded(random, v) for p, v in numbers.items()}
        path = folder / f"p{j}{kind.suffix}"
        kind.write(random, path, values)
        parties[f"p{j}"] = Party(path, values)
    base = parties.pop(f"p{sound}")
    files = [party.update.read_bytes() for party in parties.values()]
    for j in range(hostile):
        path = folder / f"e{j}{kind.suffix}"
        if random.random() < 0.1:
            parties[f"e{j}"] = Party(_strange(random, path), None, False, False)
            continue
        if kind.shards is not None and random.random() < 0.15:
            values = parties["p0"].values or {}
            make = partial(kind.shards, random, path.with_suffix(""), values)
            parties[f"e{j}"] = _opinion(path.with_suffix(""), make, shape)
            continue
        one, other = random.choice(len(files), 2)
        kind.damage(random, path, files[one], files[other])
        parties[f"e{j}"] = _opinion(path, partial(kind.read, path), shape)
    made = Round(shape, parties, str(random.choice(METHODS)))
    if random.random() < 0.15:
        made.center = base.values
    _judge(random, folder, kind, made, base.update)


def _shape(random: Generator, kind: Format) -> Skeleton:
    dtype = str(random.choice(kind.dtypes))
    specs: dict[str, Spec] = {}
    for k in range(int(random.integers(1, 4))):
        count = int(300 ** random.random())
        specs[f"layer.{k}"] = Spec(dtype, (count,) if random.random() < 0.7 else (count, 2))
    if random.random() < 0.2:
        specs["steps"] = Spec("int64", ())
    if random.random() < 0.1:
        specs["nothing"] = Spec(dtype, (0, 3))
    return Skeleton(("dict", specs))


def _strange(random: Generator, path: Path) -> Path:
    """Return the path of something that is no model at all."""
    way = int(random.integers(6))
    if way == 0:
        path.mkdir()
    elif way == 1:
        os.mkfifo(path)
    elif way == 2:
        path.symlink_to("/dev/zero")
    elif way == 3:
        path.write_bytes(b"")
    elif way == 4:
        path = path.with_suffix(".pkl")
        path.write_bytes(b"cos\nsystem\n(S'true'\ntR.")
    else:
        path = Path(
            os.fsdecode(os.fsencode(path.parent) + b"/\xff\x1b[2J" + os.fsencode(path.name))
        )
        path.write_bytes(random.bytes(100))
    return path


def _opinion(path: Path, read: Callable[[], dict[str, Any] | None], shape: Skeleton) -> Party:
    """Return what somebody else makes of a file: who sent it, and whether it can be used."""
    try:
        found = read()
    except Exception:  # somebody else cannot tell: ours may
        return Party(path, None, None, False)
    if found is None:
        return Party(path, None, False, False)
    values = {(name,): array for name, array in found.items()}
    same = {p: s.shape for p, s in shape.specs.items()} == {p: v.shape for p, v in values.items()}
    if not same or any(_kind(values[p]) != _kind(s) for p, s in shape.specs.items()):
        return Party(path, None, False, False)
    with np.errstate(all="ignore"):
        exact = [v.astype(np.float64) for p, v in values.items() if shape.specs[p].dtype in FLOATS]
        usable = all((np.abs(v) <= 1e50).all() for v in exact)
    if not usable:
        return Party(path, None, False, False)
    return Party(path, values, True, False)


def _kind(tensor: Any) -> str:
    name = str(tensor.dtype) if isinstance(tensor, Spec) else tensor.dtype.name
    if name in FLOATS:
        return "float"
    return "integer" if "int" in name else name


def _judge(random: Generator, folder: Path, kind: Format, made: Round, base: Path) -> None:
    paths = {party: one.update for party, one in made.parties.items()}
    ways = [None, folder / "out.safetensors", folder / "out.npz"]
    out = ways[int(random.integers(3))]
    if out is not None and out.suffix == ".npz" and "bfloat16" in kind.dtypes:
        out = ways[1]
    center = base if made.center is not None else None
    broken = center is not None and random.random() < 0.3
    if broken:
        kind.damage(random, base, base.read_bytes(), paths["p0"].read_bytes())
        made = replace(made, center=None)
    before = sorted(folder.iterdir())
    try:
        consensus = cs.aggregate_files(paths, out, made.method, center=center)
    except cs.ConsilienceError as error:
        expect(broken, "nobody's fault, and yet:", repr(error))
        check_error(error)
        expect(sorted(folder.iterdir()) == before, "something was left:", list(folder.iterdir()))
        return
    left = [] if out is None else [out]
    expect(sorted(folder.iterdir()) == sorted([*before, *left]), "left:", list(folder.iterdir()))
    check_reasons(consensus.reasons.values())
    if broken:  # and yet it was read: as what, is not known here
        return
    check_who(made, consensus)
    check_numbers(made, consensus)
    if out is not None:
        from fuzz import npz_files, safetensors_files

        reader = npz_files if out.suffix == ".npz" else safetensors_files
        check_value(made, replace(consensus, value=reader.FORMAT.read(out)))
