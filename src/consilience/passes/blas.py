"""BLAS on one thread, for a while.

OpenBLAS's threads go on spinning for some 20 ms after a product of two small matrices. Where the
inference is small and the passes are short, that is a core less for the second pass. numpy has no
switch for it; the libraries that it brought along do.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path

_NAMES = ("scipy_openblas_{}64_", "scipy_openblas_{}", "openblas_{}64_", "openblas_{}")
Switch = tuple[Callable[[], int], Callable[[int], None]]


@contextmanager
def one_thread() -> Iterator[None]:
    """Have BLAS work on the thread that asks, where that can be had."""
    before = [(switch, get()) for get, switch in _switches()]
    try:
        for switch, _ in before:
            switch(1)
        yield
    finally:
        for switch, count in before:
            switch(count)


@lru_cache(1)
def _switches() -> tuple[Switch, ...]:
    """Return how to ask for, and to set, the number of threads of each OpenBLAS in this process."""
    found: list[Switch] = []
    with suppress(OSError):  # no such file on other systems
        lines = Path("/proc/self/maps").read_text().splitlines()
        for path in sorted({line.split()[-1] for line in lines if "openblas" in line}):
            with suppress(OSError):
                library = ctypes.CDLL(path)
                for name in _NAMES:
                    if hasattr(library, name.format("set_num_threads")):
                        get = getattr(library, name.format("get_num_threads"))
                        found.append((get, getattr(library, name.format("set_num_threads"))))
                        break
    return tuple(found)
