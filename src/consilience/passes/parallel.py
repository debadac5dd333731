"""Passes over many numbers on all cores, with the same result whatever their number."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextvars import copy_context
from functools import lru_cache
from typing import TypeVar

from consilience.arrays import Spans
from consilience.errors import ConsilienceError
from consilience.text import shown

T = TypeVar("T")
R = TypeVar("R")

_MOST_STRIPES = 16
_LEAST_WORK = 1 << 22  # fewer numbers are not worth a thread


def cores() -> int:
    """Return how many cores a pass may use: those of this process, or CONSILIENCE_THREADS if that
    is less."""
    affinity = getattr(os, "sched_getaffinity", None)  # not on every system
    found = len(affinity(0)) if affinity is not None else os.cpu_count() or 1
    asked = os.environ.get("CONSILIENCE_THREADS")
    if not asked:
        return found
    if not asked.isdecimal() or int(asked) < 1:
        raise ConsilienceError(
            f"CONSILIENCE_THREADS is {shown(asked)}, expected a whole number from 1 up"
        )
    return min(found, int(asked))


def stripes(spans: Spans, rows: int) -> list[Spans]:
    """Cut the spans of ``rows`` rows into pieces of work for threads, of about equal size.

    The cut depends on the work alone: sums over stripes, added in order, are the same bit for bit
    on any number of threads.
    """
    total = sum(stop - start for start, stop in spans)
    count = max(1, min(_MOST_STRIPES, total * rows // _LEAST_WORK))
    cut: list[Spans] = [[] for _ in range(count)]
    done = 0
    for start, stop in spans:
        while start < stop:
            mine = min(done * count // total, count - 1)
            end = min(stop, start + max(1, -(-(mine + 1) * total // count) - done))
            cut[mine].append((start, end))
            done += end - start
            start = end
    return cut


def in_order(work: Callable[[T], R], items: Sequence[T]) -> Iterator[R]:
    """Yield ``work(item)`` for each item, in order, with as many at work as there are threads."""
    if min(cores(), len(items)) < 2:
        yield from map(work, items)
        return
    # In the caller's context, in which numpy keeps what errors to ignore.
    futures = [_pool().submit(copy_context().run, work, item) for item in items]
    try:
        for future in futures:
            yield future.result()
    finally:  # if one fails, or the caller stops, do not begin the rest
        for future in futures:
            future.cancel()
        wait(futures)


@lru_cache(1)
def _pool() -> ThreadPoolExecutor:
    """Return a lasting pool: new threads would share a core for the first milliseconds of a
    pass."""
    return ThreadPoolExecutor(cores(), thread_name_prefix="consilience")


if hasattr(os, "register_at_fork"):  # a child process has none of its parent's threads
    os.register_at_fork(after_in_child=_pool.cache_clear)
