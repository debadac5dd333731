"""The loops of `_loops.c` in torch, for rows on an accelerator: they stay there.

Only J×J inner products and a few sums come back to this machine. Signatures as in `plain`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from consilience.arrays import Array, Vector

Row = Any  # a flat torch tensor

_CHUNK = 1 << 16  # columns at a time; sums over chunks are in double precision


def gram(rows: Sequence[Row | None], codes: bytes, about: int, total: Array, wide: bool) -> None:
    """Add the lower triangle of the rows' inner products to ``total``."""
    some = next(row for row in rows if row is not None)
    for at in range(0, some.numel(), _CHUNK):
        zero = some[at : at + _CHUNK] * 0
        X = _stacked([zero if r is None else r[at : at + _CHUNK] for r in rows], wide)
        if about >= 0:
            X = X - X[about]
        total += np.tril(_fetched(X @ X.T))


def combine(
    rows: Sequence[Row],
    codes: bytes,
    weights: Vector,
    out: Row,
    code: bytes,
    squares: Vector | None,
    wide: bool,
) -> bool:
    """Write Σ_j w_j x_j to ``out``; tell whether it is finite everywhere."""
    finite = True
    for at in range(0, out.numel(), _CHUNK):
        some = [row[at : at + _CHUNK] for row in rows]
        for double in (True,) if wide else (False, True):
            X = _stacked(some, double)
            heard = np.flatnonzero(weights)
            y = X.new_tensor(weights[heard]) @ X[X.new_tensor(heard).long()]
            found = np.zeros(0)
            if squares is not None:
                ring = X[: len(squares)]
                apart = ring - ring.roll(1, 0)
                found = _fetched((apart * apart).sum(dim=1))
            good = bool(y.isfinite().all()) and bool(np.isfinite(found).all())
            if good:
                break
        _store(y, out[at : at + _CHUNK])
        finite &= good
        if good and squares is not None:
            squares += found
    return finite


def trim(
    rows: Sequence[Row],
    codes: bytes,
    cut: int,
    out: Row,
    code: bytes,
    every: int,
    shares: Vector,
    squares: Vector,
    wide: bool,
) -> int:
    """Write the mean of each column without its ``cut`` least and ``cut`` greatest to ``out``."""
    finite = True
    for at in range(0, out.numel(), _CHUNK):
        X = _stacked([row[at : at + _CHUNK] for row in rows], wide)
        kept = X.sort(dim=0).values[cut : len(rows) - cut]
        y = kept.mean(dim=0)
        finite &= bool(X.isfinite().all()) and bool(y.isfinite().all())
        _store(y, out[at : at + _CHUNK])
        inside = ((kept[0] <= X) & (kept[-1] >= X)).to(X.dtype)
        shares += _fetched((inside / inside.sum(dim=0).clamp(min=1)).sum(dim=1))
        squares += _fetched(((_double(X) - y) ** 2).sum(dim=1))
    return int(out.numel()) if finite else -1


def corroborate(
    rows: Sequence[Row],
    codes: bytes,
    weights: Vector,
    witnesses: bytes,
    headroom: float,
    out: Row,
    code: bytes,
    squares: Vector | None,
    alone: Vector,
    wide: bool,
) -> bool:
    """As `combine`, but what lies far beyond the witnesses is clipped."""
    finite, parties = True, len(witnesses)
    those = np.flatnonzero(np.frombuffer(witnesses, np.uint8))
    for at in range(0, out.numel(), _CHUNK):
        X = _stacked([row[at : at + _CHUNK] for row in rows], True)
        ends = X[X.new_tensor(those).long()].sort(dim=0).values
        least, most = ends[1], ends[-2]
        beyond = headroom * most - headroom * least
        heard = X.clone()
        heard[:parties] = X[:parties].clamp(least - beyond, most + beyond)
        y = X.new_tensor(weights) @ heard
        cut = _fetched(((X - heard) ** 2).sum(dim=1))[:parties]
        ring = X[: 0 if squares is None else len(squares)]
        apart = _fetched(((ring - ring.roll(1, 0)) ** 2).sum(dim=1))
        good = bool(X.isfinite().all()) and bool(y.isfinite().all())
        good &= bool(np.isfinite(cut).all() and np.isfinite(apart).all())
        _store(y, out[at : at + _CHUNK])
        finite &= good
        if good:
            alone += cut
            if squares is not None:
                squares += apart
    return finite


def _stacked(rows: Sequence[Row], wide: bool) -> Any:
    """Return rows as one matrix, in double precision if asked for and supported there."""
    import torch

    if wide:
        return torch.stack([_double(row) for row in rows])
    return torch.stack([row.to(torch.float32) for row in rows])


def _double(numbers: Any) -> Any:
    """Return numbers in double precision, or in single where there is no other."""
    return numbers.float() if numbers.device.type == "mps" else numbers.double()


def _fetched(values: Any) -> Array:
    found: Array = values.cpu().double().numpy()
    return found


def _store(y: Any, out: Row) -> None:
    """Round to the dtype of the output; clip to its range."""
    import torch

    largest = torch.finfo(out.dtype).max
    out.copy_(y.clamp(-largest, largest))
