"""Memory files: real ones, damaged. Either the file is refused by its name, or what was read is a
memory in every respect, and a round with it goes well."""

from __future__ import annotations

import io
import json
import zipfile
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.random import Generator

import consilience as cs
from consilience.evidence import Block
from consilience.trails import Trails
from fuzz.damage import damaged, lied, written
from fuzz.oracle import expect, refused

_METHODS = ("pairwise", "pairwise", "ivar-vb", "icov-vb", "mean", "icov-mle")
_SIZE = 40


def case(random: Generator, folder: Path) -> None:
    """Load a memory that may be damaged, and use it."""
    method = str(random.choice(_METHODS))
    path = folder / "memory.npz"
    memory = made(random, method)
    memory.save(path)
    sound = path.read_bytes()
    if random.random() < 0.1:
        same(cs.Memory.load(path), memory)
        return
    way = random.random()
    if way < 0.4:
        path.write_bytes(damaged(random, sound, sound[::-1]))
    else:
        path.write_bytes(_lied(random, sound))
    content = path.read_bytes()
    no = refused(lambda: cs.Memory.load(path), cs.MemoryFileError, path)
    expect(path.read_bytes() == content, "the file was changed")
    if no:
        return
    loaded = cs.Memory.load(path)
    check(loaded)
    _use(random, loaded, method)
    loaded.save(path)
    same(cs.Memory.load(path), loaded)


def made(random: Generator, method: str = "pairwise", rounds: int = 3) -> cs.Memory:
    """Return a memory of some rounds, with parties that come and go."""
    most = int(random.choice([10_000, 4]))
    memory = cs.Memory(float(random.choice([0.9, 1.0, 0.5, 0.0])), max_parties=most)
    for _ in range(int(random.integers(rounds + 1))):
        cs.aggregate(_updates(random), method, memory)
    return memory


def _updates(random: Generator) -> dict[str, Any]:
    parties = [f"p{j}" for j in range(6) if random.random() < 0.8] or ["p0"]
    return {party: 1 + random.standard_normal(_SIZE) for party in parties}


def _lied(random: Generator, sound: bytes) -> bytes:
    """Return an archive that is whole, with a header or an array that is not."""
    with np.load(io.BytesIO(sound)) as archive:
        arrays = {name: archive[name] for name in archive.files}
    packed = bool(random.random() < 0.2)
    if random.random() < 0.5:
        header = json.loads(arrays["header"].tobytes())
        arrays["header"] = np.frombuffer(written(lied(random, header)), np.uint8)
    else:
        name = sorted(arrays)[int(random.integers(len(arrays)))]
        arrays[name] = _other(random, arrays[name])
        packed = packed or arrays[name].size > 1_000_000
    buffer = io.BytesIO()
    with zipfile.ZipFile(
        buffer, "w", zipfile.ZIP_DEFLATED if packed else zipfile.ZIP_STORED
    ) as out:
        for name, array in arrays.items():
            with out.open(f"{name}.npy", "w") as file:
                np.lib.format.write_array(file, array)
    return buffer.getvalue()


def _other(random: Generator, array: Any) -> Any:
    """Return an array with a number, a shape or a dtype that it should not have."""
    way = int(random.integers(7))
    if way == 0:
        return np.zeros(
            1 << 23 if random.random() < 0.5 else 1 << 26, np.uint8
        )  # small when packed
    if way == 1:
        return array.astype(np.float32)
    if way == 2 or not array.size:
        return array.reshape(-1)[: int(random.integers(array.size + 1))]
    if way == 3:
        return np.array(["a", "b"])
    array = array.copy()
    if array.dtype.kind == "f" or way > 4:
        number = random.choice([np.nan, np.inf, -1.0, 1e308, -1e-300, 0.0, 1e-320])
        with np.errstate(invalid="ignore", over="ignore"):
            at = int(random.integers(array.size))
            array.reshape(-1)[at] = np.float64(number).astype(array.dtype)
    return array


def check(memory: cs.Memory) -> None:
    """Raise unless it is a memory that rounds could have made."""
    expect(0 <= memory.decay <= 1, "decay", memory.decay)
    expect(type(memory.rounds) is int and memory.rounds >= 0, "rounds", memory.rounds)
    for block in memory.evidence.blocks if memory.evidence else ():
        _check_block(block)
    if memory.known is not None:
        _check_parties(memory.known.parties)
        noise = memory.known.noise
        bad = (noise < 0) | np.isinf(noise)
        expect(not bad.any(), "noise", noise)
        latent = memory.known.latent
        if latent is not None:
            told = np.isfinite(latent.own)
            finite = np.isfinite(latent.factors[told]).all() and told.any()
            expect(bool(finite and (latent.own[told] >= 0).all()), "a latent model", latent)
            expect(latent.prior_variance >= 0, "a prior variance of", latent.prior_variance)
    if memory.past is not None:
        _check_parties(memory.past.parties)
        for numbers in (memory.past.levels, memory.past.worth):
            fine = np.isfinite(numbers) & (numbers > 0)
            expect(bool(fine.all()), "levels of the past", numbers)
    for trails in _trails(memory):
        _check_parties(trails.parties)
        ordered = (np.diff(trails.places, prepend=-1, append=trails.size) > 0).all()
        expect(bool(ordered), "the places of the trails")
        fine = np.isfinite(trails.means).all() and (trails.rounds > 0).all()
        expect(bool(fine and np.isfinite(trails.rounds).all()), "a trail")


def _trails(memory: cs.Memory) -> list[Trails]:
    relay = memory.relay
    return [] if relay is None else [t for t in (relay.used, relay.young) if t is not None]


def _check_parties(parties: tuple[str, ...]) -> None:
    expect(all(type(party) is str for party in parties), "ids", str(parties)[:200])
    expect(len(set(parties)) == len(parties), "an id occurs twice:", str(parties)[:200])


def _check_block(block: Block) -> None:
    _check_parties(block.parties)
    distances = block.distances
    expect(bool(np.isfinite(distances).all()), "a distance that is none")
    expect(bool((distances >= 0).all()), "a negative distance", distances.min())
    expect(bool((np.diag(distances) == 0).all()), "a distance to oneself", np.diag(distances))
    expect(np.allclose(distances, distances.T, rtol=1e-9, atol=0), "distances that differ")
    expect(0 < block.count < 1e30, "a block of", block.count, "coordinates")


def _use(random: Generator, memory: cs.Memory, method: str) -> None:
    """A round with whatever was read is a round: sound parties are used, its value exists."""
    updates = _updates(random)
    consensus = cs.aggregate(updates, method, memory)
    expect(not consensus.rejected, "sound parties were rejected:", consensus.rejected)
    weights = np.array([consensus.weights[party] for party in updates])
    expected = weights @ np.array(list(updates.values()))
    slack = 1e-9 * (1 + np.abs(weights).sum())
    expect(np.allclose(consensus.value, expected, rtol=1e-9, atol=slack), "a wrong value")
    check(memory)


def same(found: cs.Memory, expected: cs.Memory) -> None:
    """Raise unless two memories are the same."""
    one, other = _contents(found), _contents(expected)
    expect(one.keys() == other.keys(), "other contents:", [*one], [*other])
    for name, value in one.items():
        if isinstance(value, (np.ndarray, list)):  # trails are a list of arrays
            equal = np.array_equal(value, other[name], equal_nan=True)
        else:
            equal = value == other[name]
        expect(equal, f"another {name}:", str(value)[:99], "expected", str(other[name])[:99])


def _contents(memory: cs.Memory) -> dict[str, Any]:
    """Return all that a memory keeps, by name."""
    found: dict[str, Any] = {"decay": memory.decay, "rounds": memory.rounds}
    found["max_parties"] = memory.max_parties
    kept = [*(memory.evidence.blocks if memory.evidence else ()), memory.known, memory.past]
    kept += _trails(memory)
    if memory.known is not None:
        kept.append(memory.known.latent)
    for at, part in enumerate(kept):
        if part is not None:
            found |= {f"{at} {f.name}": getattr(part, f.name) for f in fields(part)}
    return {name: value for name, value in found.items() if not is_dataclass(value)}
