"""Passes over many numbers on all cores, with results that do not depend on how many there are."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from itertools import pairwise
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")

_MOST_STRIPES = 64
_LEAST_WORK = 1 << 21  # numbers: fewer are not worth a thread


def cores() -> int:
    """Return how many cores this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)  # not on every system
    return len(affinity(0)) if affinity is not None else os.cpu_count() or 1


def stripes(chunks: Sequence[T], numbers: int) -> list[Sequence[T]]:
    """Cut a list of chunks, of so many numbers in all, into pieces of work for threads.

    The cut depends on the work alone: sums over stripes, added in order, are the same bit for bit
    whoever computes them.
    """
    count = max(1, min(_MOST_STRIPES, numbers // _LEAST_WORK, len(chunks)))
    edges = [len(chunks) * n // count for n in range(count + 1)]
    return [chunks[low:high] for low, high in pairwise(edges)]


def in_order(work: Callable[[T], R], items: Sequence[T], threads: int | None = None) -> Iterator[R]:
    """Yield ``work(item)`` for each item, in order, at work on as many as there are threads."""
    threads = min(threads or cores(), len(items))
    if threads < 2:
        yield from map(work, items)
        return
    pool = ThreadPoolExecutor(threads, thread_name_prefix="consilience")
    try:
        # With the caller's context: numpy keeps in it which errors to ignore.
        contexts = [copy_context() for _ in items]
        yield from pool.map(lambda context, item: context.run(work, item), contexts, items)
    finally:  # where one fails, or the caller stops, the rest is not begun
        pool.shutdown(cancel_futures=True)
