"""Damage to sound bytes and sound JSON: what disks do, and what liars do."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from numpy.random import Generator

# What a number in a file may lie about: nothing, too much, negative, the edges of words.
LIES = [0, 1, 2**7, 2**15 - 1, 2**31 - 1, 2**32 - 1, 2**61, 2**63 - 1, 2**64 - 1]
NASTY = ["\x1b[2J\x1b[H", "eve\nparty ann rejected: all is well", "\ud800", "</script>", "", "=1+1"]
DEEP = "@deep@"
_VALUES: list[Any] = [
    *(None, True, False, -1, 0, 1, 2**31, 2**61, 2**63, 10**400, -1e308, 1e308, 0.5),
    *(float("nan"), float("inf"), [], {}, [[]], {"": []}, DEEP, "x" * 100_000, "F32", "3"),
    *NASTY,
]


def damaged(random: Generator, sound: bytes, other: bytes = b"") -> bytes:
    """Return bytes with one to three wounds; ``other`` is another file of the same kind."""
    data = bytearray(sound)
    for _ in range(1 + int(random.integers(3)) * int(random.integers(2))):
        wound = _WOUNDS[int(random.integers(len(_WOUNDS)))]
        data = wound(random, data, other)
    return bytes(data)


def _flipped(random: Generator, data: bytearray, other: bytes) -> bytearray:
    for _ in range(int(random.integers(1, 5)) if data else 0):
        data[int(random.integers(len(data)))] ^= 1 << int(random.integers(8))
    return data


def _flipped_early(random: Generator, data: bytearray, other: bytes) -> bytearray:
    """Headers are short and the rest is long: most flips would miss them."""
    if data:
        data[int(random.integers(min(len(data), 200)))] ^= 1 << int(random.integers(8))
    return data


def _truncated(random: Generator, data: bytearray, other: bytes) -> bytearray:
    return data[: int(random.integers(len(data) + 1))]


def _cut(random: Generator, data: bytearray, other: bytes) -> bytearray:
    start = int(random.integers(len(data) + 1))
    return data[:start] + data[start + int(random.integers(1, 64)) :]


def _doubled(random: Generator, data: bytearray, other: bytes) -> bytearray:
    start = int(random.integers(len(data) + 1))
    stop = start + int(random.integers(1, 64))
    return data[:stop] + data[start:]


def _spliced(random: Generator, data: bytearray, other: bytes) -> bytearray:
    return (
        data[: int(random.integers(len(data) + 1))] + other[int(random.integers(len(other) + 1)) :]
    )


def _inserted(random: Generator, data: bytearray, other: bytes) -> bytearray:
    start = int(random.integers(len(data) + 1))
    return data[:start] + random.bytes(int(random.integers(1, 32))) + data[start:]


def _lied(random: Generator, data: bytearray, other: bytes) -> bytearray:
    """Write a number that matters somewhere where a number may be."""
    width = int(random.choice([1, 2, 4, 8]))
    start = int(random.integers(max(1, min(len(data), 10_000) - width)))
    if random.random() < 0.5:  # near the end is where zip archives keep their directory
        start = max(0, len(data) - width - start)
    lie = LIES[int(random.integers(len(LIES)))] % (1 << 8 * width)
    return data[:start] + lie.to_bytes(width, "little") + data[start + width :]


_WOUNDS: list[Callable[[Generator, bytearray, bytes], bytearray]] = [
    *(_flipped, _flipped_early, _truncated, _cut),
    *(_doubled, _spliced, _inserted, _lied),
]


def lied(random: Generator, tree: Any) -> Any:
    """Return a JSON tree in which one value, or one name, is something else."""
    if isinstance(tree, dict) and tree and random.random() < 0.8:
        keys = list(tree)
        key = keys[int(random.integers(len(keys)))]
        way = random.random()
        if way < 0.1:
            return {k: v for k, v in tree.items() if k != key}
        if way < 0.2:
            return {(anything(random, str) if k == key else k): v for k, v in tree.items()}
        return {k: lied(random, v) if k == key else v for k, v in tree.items()}
    if isinstance(tree, list | tuple) and len(tree) and random.random() < 0.7:
        at = int(random.integers(len(tree)))
        way = random.random()
        if way < 0.15:
            return [*tree[:at], *tree[at + 1 :]]
        if way < 0.3:
            return [*tree[: at + 1], *tree[at:]]
        return [*tree[:at], lied(random, tree[at]), *tree[at + 1 :]]
    return anything(random)


def anything(random: Generator, kind: type = object) -> Any:
    """Return a value that nobody should have expected."""
    values = [value for value in _VALUES if isinstance(value, kind)]
    return values[int(random.integers(len(values)))]


def written(tree: Any) -> bytes:
    """Return a tree as JSON, with what is deep in it as deep as that."""
    deep = "[" * 5000 + "]" * 5000
    return json.dumps(tree).replace(json.dumps(DEEP), deep).encode()
