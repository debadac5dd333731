"""Updates for `aggregate`: trees of tensors of many makes, sound and hostile.

The oracle knows the numbers behind every sound update, and computes each coordinate again from the
weights that were told, in float64.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.random import Generator

import consilience as cs
from consilience.record import name_of
from fuzz import strangers
from fuzz.oracle import check_reasons, expect
from fuzz.trees import FLOATS, Key, Skeleton, Values, at, dressed, skeleton, sound_style

_BETWEEN = ("coordinate-median", "trimmed-mean")
# Whose weights sum to less than one: the rest is the centre's.
_SHRINKING = ("ivar-vb", "icov-vb", "centred-clipping", "arc")
_SIGNED = ("icov-mle", "icov-vb", "icov-full")
_UNMOVED = (
    *("pairwise", "geometric-median", "coordinate-median", "krum", "multi-krum"),
    *("mda", "caf", "centred-clipping", "nnm"),
)


@dataclass
class Party:
    """What a party sends, and what should become of it."""

    update: Any
    values: Values | None  # the numbers in it, where it can be used
    usable: bool | None = True  # None: it may be used or not
    sound: bool = True
    count: Any = None  # how many samples it says it has


@dataclass
class Round:
    """A round of `aggregate`, and who is who in it."""

    shape: Skeleton
    parties: dict[Any, Party]
    method: str
    center: Values | None = None
    options: dict[str, Any] = field(default_factory=dict)
    truth: Values | None = None  # where sound parties are this plus independent noise
    noise: float = 0.0


def case(random: Generator, folder: Path) -> int:
    """One round, or a few with a memory; return how many."""
    method = str(random.choice([*cs.methods(), "pairwise", "pairwise", "pairwise"]))
    memory = cs.Memory() if random.random() < 0.15 else None
    shape = skeleton(random, _size(random))
    rounds = 1 if memory is None else 3
    for _ in range(rounds):
        made = _round(random, shape, method)
        if memory is not None:
            made.options["memory"] = memory
        if random.random() < 0.03:
            made.options["record"] = folder / "run.jsonl"
        _judge(random, made)
    return rounds


def _size(random: Generator) -> int:
    if random.random() < 0.01:  # where only a sample is looked at
        return int(random.integers(140_000, 160_000))
    return int(2000 ** random.random())


def _round(random: Generator, shape: Skeleton, method: str) -> Round:
    hostile = int(random.integers(3))
    sound = int(random.integers(hostile + 1, 9))
    values, truth, noise = _numbers(random, shape, sound)
    ids = _ids(random, sound + hostile)
    torch = random.random() < 0.2
    counted = random.random() < 0.2
    parties: dict[Any, Party] = {}
    for one in values:
        parties[ids[len(parties)]] = Party(dressed(shape, one, sound_style(random, torch)), one)
    for _ in range(hostile):
        parties[ids[len(parties)]] = Party(*strangers.hostile(random, shape, values, torch), False)
    if counted:
        for party in parties.values():
            party.count = int(10 ** (4 * random.random()))
        _lie_about_counts(random, list(parties.values())[sound:])
    order = random.permutation(len(ids))
    parties = {ids[j]: parties[ids[j]] for j in order}
    made = Round(shape, parties, method, truth=truth, noise=noise)
    if random.random() < 0.2:
        made.center = {p: v if str(v.dtype) not in FLOATS else v / 2 for p, v in values[0].items()}
    if random.random() < 0.1:
        made.options["exact"] = True
    return made


def _lie_about_counts(random: Generator, hostile: list[Party]) -> None:
    for party in hostile:
        if random.random() < 0.5:
            party.count, usable = strangers.count(random)
            party.usable = False if party.usable is False else usable
            party.values = party.values if usable else None


def _numbers(
    random: Generator, shape: Skeleton, count: int
) -> tuple[list[Values], Values | None, float]:
    """Return what the sound parties send, and if it is that the truth and the noise."""
    narrow = any(spec.dtype == "float16" for spec in shape.specs.values())
    scales = [1.0, 1e-3, 100.0] if narrow else [1.0, 1e-3, 1e3, 1e-8, 1e8, 1e-30, 1e30]
    scale = float(random.choice(scales))
    way = str(random.choice(["noise"] * 4 + ["equal", "zero", "copies", "near", "sparse", "wild"]))
    noise = scale * float(random.choice([1.0, 0.1, 1e-3]))
    truth = {p: scale * random.standard_normal(s.shape) for p, s in shape.specs.items()}
    levels = noise * random.uniform(0.7, 1.4, count)
    found = []
    for j in range(count):
        one = {p: t + levels[j] * random.standard_normal(t.shape) for p, t in truth.items()}
        if way == "equal" or (way == "copies" and j % 2 and found):
            one = truth if way == "equal" else dict(found[-1])
        elif way == "zero":
            one = {p: np.zeros_like(t) for p, t in truth.items()}
        elif way == "near":
            one = {p: t + 1e-6 * (one[p] - t) for p, t in truth.items()}
        elif way == "sparse":
            one = {p: v * (random.random(v.shape) < 0.1) for p, v in one.items()}
        elif way == "wild":
            one = {p: _wild(random, s.dtype, s.shape) for p, s in shape.specs.items()}
        found.append({p: shape.specs[p].rounded(random, v) for p, v in one.items()})
    return found, truth if way == "noise" else None, 1.4 * noise


def _wild(random: Generator, dtype: str, shape: tuple[int, ...]) -> Any:
    """Numbers of any size that the dtype has, less a margin for weights beyond one."""
    kind = dtype if dtype in FLOATS else "float32"
    info = ml_dtypes.finfo(kind)
    high = min(np.log10(float(info.max)) - 1.5, 49)  # beyond that they are rejected
    low = max(np.log10(float(info.smallest_subnormal)), -100)
    return random.choice([-1.0, 0.0, 1.0], shape) * 10 ** random.uniform(low, high, shape)


def _ids(random: Generator, count: int) -> list[Any]:
    ids: list[Any] = [f"p{j}" for j in range(count)]
    if random.random() < 0.1:
        ids = list(range(count))
    odd = strangers.name(random)
    if random.random() < 0.1 and str(odd) not in map(str, ids) and odd not in ids:
        ids[int(random.integers(count))] = odd
    return ids


def _judge(random: Generator, made: Round) -> None:
    """Aggregate, and compare with what should come of it."""
    given = _form(random, made)
    arguments: dict[str, Any] = {"method": made.method, **made.options}
    if made.center is not None:
        arguments["center"] = dressed(made.shape, made.center, sound_style(random, False))
    if any(party.count is not None for party in made.parties.values()):
        counts = {party: one.count for party, one in made.parties.items()}
        arguments["sample_counts"] = counts if isinstance(given, Mapping) else list(counts.values())
    if not isinstance(given, Mapping):
        made.parties = {str(j): party for j, party in enumerate(made.parties.values())}
    made.parties = {str(party): one for party, one in made.parties.items()}
    before = [_bytes(party) for party in made.parties.values()]
    consensus = cs.aggregate(given, **arguments)
    expect(before == [_bytes(party) for party in made.parties.values()], "an update was changed")
    check_who(made, consensus)
    check_reasons(consensus.reasons.values())
    check_numbers(made, consensus)
    check_value(made, consensus)
    if made.truth is not None:
        _check_pull(made, consensus)
    if random.random() < 0.05 and "memory" not in made.options:
        again = cs.aggregate(given, **arguments)
        for path in made.shape.specs:
            one, other = (_plain(at(c.value, path)) for c in (consensus, again))
            expect(np.array_equal(one, other), "the same call gives another value at", path)
    if "record" in made.options:
        last = cs.Record.read(made.options["record"])[-1]
        names = tuple(map(name_of, consensus.parties))
        expect(last.parties == names, "the record names", last.parties)


def _form(random: Generator, made: Round) -> Any:
    """Return the updates as a mapping, a sequence or, where all are vectors alike, an array."""
    updates = {party: one.update for party, one in made.parties.items()}
    rows = list(updates.values())
    shapes = {(type(row), row.shape, row.dtype) for row in rows if isinstance(row, np.ndarray)}
    plain = all(type(row) is np.ndarray for row in rows) and len(shapes) == 1
    if plain and rows[0].ndim == 1 and random.random() < 0.5:
        return np.stack(rows)
    return rows if random.random() < 0.15 else updates


def _bytes(party: Party) -> bytes:
    plain = party.sound and isinstance(party.update, np.ndarray)
    return party.update.tobytes()[:4096] if plain else b""


def check_who(made: Round, consensus: cs.Consensus) -> None:
    """Everybody sound is used, nobody else is."""
    expect(list(consensus.weights) == list(made.parties), "weights of", list(consensus.weights))
    for name, party in made.parties.items():
        rejected = consensus.rejected.get(name)
        if party.usable:
            expect(rejected is None, ascii(name), "is sound and was rejected:", rejected)
        if party.usable is False:
            what = type(party.update).__name__
            unheard = consensus.weights[name] == 0 and made.shape.size > 131_072
            # What a party without a say hides between the sampled coordinates is not looked for.
            expect(rejected is not None or unheard, ascii(name), "was accepted, with a bad", what)
        expect((name in consensus.parties) == (rejected is None), "both used and rejected:", name)


def check_numbers(made: Round, consensus: cs.Consensus) -> None:
    """Weights and noise are numbers that make sense."""
    weights = np.array(list(consensus.weights.values()))
    expect(bool(np.isfinite(weights).all()), "weights", weights)
    for name in consensus.rejected:
        expect(consensus.weights[name] == 0, "a rejected party weighs", consensus.weights[name])
    if made.method not in _SIGNED:
        expect(weights.min() >= 0, "a negative weight", weights)
    if made.method not in _SHRINKING:
        off = abs(weights.sum() - 1)
        expect(off <= 1e-9 * max(1.0, np.abs(weights).sum()), "weights sum to", weights.sum())
    noise = np.array([consensus.noise[name] for name in consensus.parties])
    unknown = np.isnan(noise)
    expect(bool((noise[~unknown] >= 0).all()), "noise", noise)
    expect(not unknown.any() or len(noise) == 1, "unknown noise of one among", len(noise))
    if consensus.covariance is not None:
        expect(bool(np.isfinite(consensus.covariance).all() or len(noise) == 1), "the covariance")


def _plain(tensor: Any) -> Any:
    """Return a tensor of the value as numpy's."""
    if hasattr(tensor, "detach"):
        tensor = tensor.detach()
        tensor = tensor.float() if "bfloat16" in str(tensor.dtype) else tensor
    return np.asarray(tensor)


def check_value(made: Round, consensus: cs.Consensus) -> None:
    """Every coordinate is what the weights make of those who were used."""
    heard = {p: made.parties[p] for p in consensus.parties}
    known = all(party.values is not None for party in heard.values())
    wide = known and any(v.dtype == np.float64 for p in heard.values() for v in p.values.values())
    for path, spec in made.shape.specs.items():
        found = _plain(at(consensus.value, path))
        where = f"{made.method}: the value at {path!r}"
        expect(found.shape == spec.shape, where, "has shape", found.shape)
        if not known:  # somebody may be used or not, and was: what it sent is not known here
            expect(bool(np.isfinite(found.astype(np.float64)).all()), where, "holds NaN or inf")
            continue
        rows = np.array([party.values[path] for party in heard.values()])
        if spec.dtype not in FLOATS:
            options = rows if made.center is None else np.array([*rows, made.center[path]])
            expect(bool((found == options).any(axis=0).all()), where, "was sent by nobody")
            continue
        dtypes = {str(party.values[path].dtype) for party in heard.values()}
        expect(found.dtype.name in FLOATS, where, "is", found.dtype)
        expected, slack = _expected(made, consensus, path, rows.astype(np.float64), wide)
        rounding = max(float(ml_dtypes.finfo(d).eps) for d in dtypes)
        least = max(float(ml_dtypes.finfo(d).smallest_subnormal) for d in dtypes)
        # A sum beyond the range of the dtype goes to its end.
        most = float(ml_dtypes.finfo(found.dtype).max)
        expected = np.clip(expected, -most, most)
        slack = slack + rounding * np.abs(expected) + least
        if any(consensus.uncorroborated.values()):  # somebody was cut off, towards the others
            low, high = rows.min(axis=0), rows.max(axis=0)
            expected = np.clip(found.astype(np.float64), low - slack, high + slack)
        _check_close(found, expected, slack, where)


def _check_close(found: Any, expected: Any, slack: Any, where: str) -> None:
    with np.errstate(invalid="ignore"):
        off = np.abs(found.astype(np.float64) - expected).reshape(-1)
        bad = ~(off <= np.reshape(slack, -1))
    if bad.any():
        worst = int(np.argmax(bad))
        told = [np.reshape(one, -1)[worst] for one in (found, expected, slack)]
        words = "is {}, expected {} within {:.2g}".format(*told)
        expect(False, f"{where}[{worst}] {words}, and {bad.sum() - 1} more of {bad.size}")


def _expected(
    made: Round, consensus: cs.Consensus, path: Key, rows: Any, wide: bool
) -> tuple[Any, Any]:
    """Return a tensor of the consensus, computed again, and how far rounding may lead off."""
    sums = np.finfo(np.float64 if wide else np.float32)
    if made.method in _BETWEEN:
        ranked = np.sort(rows, axis=0)
        trim = 0.5 if made.method == "coordinate-median" else 0.2
        cut = min(int(trim * len(rows) + 1e-9), (len(rows) - 1) // 2)
        kept = ranked[cut : len(rows) - cut]
        return kept.mean(axis=0), len(rows) * float(sums.eps) * np.abs(kept).max(axis=0)
    weights = np.array([consensus.weights[p] for p in consensus.parties])
    rest = 1 - weights.sum()
    expected = np.tensordot(weights, rows, 1)
    size = np.tensordot(np.abs(weights), np.abs(rows), 1)
    if made.center is not None and abs(rest) > 1e-12:
        center = made.center[path].astype(np.float64)
        doubt = 4 * len(rows) * np.finfo(np.float64).eps / sums.eps  # the rest is a difference
        expected, size = expected + rest * center, size + (abs(rest) + doubt) * np.abs(center)
    # Of a weight, or a product with it, that is next to nothing.
    lost = float(sums.smallest_subnormal) * (np.abs(rows).sum(axis=0) + len(rows))
    return expected, (len(rows) + 4) * float(sums.eps) * size + lost


def _check_pull(made: Round, consensus: cs.Consensus) -> None:
    """One bad party among many good ones leaves the value where the good ones are."""
    sound = sum(party.sound for party in made.parties.values())
    bad = len(made.parties) - sound
    if made.method not in _UNMOVED or bad > 1 or sound < 5 or made.shape.size < 100:
        return
    if made.method == "geometric-median" and any(p.count for p in made.parties.values()):
        return  # it believes who claims to have most of the samples
    assert made.truth is not None
    square = sum(
        float(np.square(_plain(at(consensus.value, p)).astype(np.float64) - made.truth[p]).sum())
        for p, spec in made.shape.specs.items()
        if spec.dtype in FLOATS
    )
    off = np.sqrt(square / made.shape.size)
    coarse = max(
        float(ml_dtypes.finfo(s.dtype).eps) * float(np.abs(made.truth[p]).max(initial=0.0))
        for p, s in made.shape.specs.items()
        if s.dtype in FLOATS
    )
    expect(off <= 5 * made.noise + coarse, f"{made.method} is off by {off:g}, noise {made.noise:g}")
