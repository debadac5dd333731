"""BLAS on one thread, for a limited time.

OpenBLAS's threads keep spinning for some 0.1 s after a product of two small matrices. With a small
inference and short passes, the second pass then has a core less. numpy has no switch for it; the
libraries that come with numpy do.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from threading import Lock

_NAMES = ("scipy_openblas_{}64_", "scipy_openblas_{}", "openblas_{}64_", "openblas_{}")
Switch = tuple[Callable[[], int], Callable[[int], None]]


_lock, _inside, _before = Lock(), 0, [0]


@contextmanager
def one_thread() -> Iterator[None]:
    """Have BLAS work on the calling thread, where possible. Several rounds may ask at once: the
    last to end restores what the first found."""
    global _inside, _before
    with _lock:
        if _inside == 0:
            _before = [get() for get, _ in _switches()]
            for _, switch in _switches():
                switch(1)
        _inside += 1
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if _inside == 0:
                for (_, switch), count in zip(_switches(), _before, strict=True):
                    switch(count)


@lru_cache(1)
def _switches() -> tuple[Switch, ...]:
    """Return functions that get and set the number of threads of each OpenBLAS in this process."""
    found: list[Switch] = []
    with suppress(OSError):  # the file exists on Linux only
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
