"""ByzFL's aggregators, as rules for a `Federation`: (J, K) → (K,).

    rule = peer("byzfl-nnm-trmean", adversaries=4)
    rule(updates)

Each is told the true number of adversaries, as in ByzFL's own benchmark. The prefix nnm adds
ByzFL's usual preparation: norms clipped to 2, then nearest-neighbour mixing. Other parameters are
the package's defaults. Updates are not screened, as ByzFL does not. MoNNA trusts the first party,
and centred clipping by default clips only what is longer than 100.
"""

from __future__ import annotations

import importlib
import importlib.util
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np

from consilience.arrays import Array
from consilience.lab.models import torch

# Name → ByzFL's class, and whether it is told the number of adversaries.
_RULES: dict[str, tuple[str, bool]] = {
    "trmean": ("TrMean", True),
    "median": ("Median", False),
    "geometric-median": ("GeometricMedian", False),
    "krum": ("Krum", True),
    "multi-krum": ("MultiKrum", True),
    "centred-clipping": ("CenteredClipping", False),
    "mda": ("MDA", True),
    "monna": ("MoNNA", True),
    "meamed": ("Meamed", True),
    "caf": ("CAF", True),
    "smea": ("SMEA", True),  # seconds a round: it tries every subset of the parties
}
_DRAWS = {"caf", "smea"}  # start a power iteration from torch's or numpy's global random state
CLIP = 2.0
# CAF stops when enough weight is gone, which may never happen: not with one update far larger than
# the rest, and seldom after mixing, which makes the rest nearly equal. So it fails after this many
# seconds; usually it needs a fraction of one.
LIMIT = 20.0


def peers() -> tuple[str, ...]:
    """The names that `peer` accepts."""
    names = [f"byzfl-{mixed}{name}" for mixed in ("", "nnm-") for name in _RULES]
    return tuple(name for name in names if name != "byzfl-nnm-caf")


@dataclass
class Peer:
    """ByzFL's steps in turn: pre-aggregators, then the aggregator."""

    steps: Sequence[Callable[[Any], Any]]
    draws: bool
    limit: float | None = None  # seconds; needs the main thread

    def __call__(self, updates: Array) -> Array:
        """The value (K,) for updates (J, K), which are not changed."""
        rows: Any = updates.copy()  # ByzFL's clipping writes into its input
        if not self.draws:
            return np.asarray(self._through(rows))
        # With torch, whose random state can be fixed: equal updates give equal results.
        with torch.random.fork_rng(devices=[]), _within(self.limit):
            torch.manual_seed(0)
            return np.asarray(self._through(torch.from_numpy(rows)))

    def _through(self, rows: Any) -> Any:
        for step in self.steps:
            rows = step(rows)
        return rows


def peer(name: str, adversaries: int) -> Peer:
    """The rule of that name, told how many adversaries there are."""
    if name not in peers():
        raise ValueError(f"no peer is called {name!r}; there are: {', '.join(peers())}")
    short = name.removeprefix("byzfl-").removeprefix("nnm-")
    kind, told = _RULES[short]
    make = getattr(byzfl("aggregators.aggregators"), kind)
    steps = [make(f=adversaries) if told else make()]
    if name.startswith("byzfl-nnm-"):
        before = byzfl("aggregators.preaggregators")
        steps = [before.Clipping(c=CLIP), before.NNM(f=adversaries), *steps]
    return Peer(steps, short in _DRAWS, LIMIT if short == "caf" else None)


@contextmanager
def _within(seconds: float | None) -> Iterator[None]:
    """Raise TimeoutError if the block takes longer."""
    if seconds is None:
        yield
        return

    def ring(*_: Any) -> None:
        raise TimeoutError(f"no answer in {seconds:g} seconds")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def byzfl(name: str) -> ModuleType:
    """One of ByzFL's modules, without the rest of the package.

    Importing byzfl itself imports torchvision, which fails beside a CPU-only torch. So the modules
    are imported from a package that is found but not executed. It is then removed, so that
    `import byzfl` elsewhere still imports all of it.
    """
    full = f"byzfl.{name}"
    if full in sys.modules:
        return sys.modules[full]
    spec = importlib.util.find_spec("byzfl")
    if spec is None:
        raise ImportError(
            "the peers' aggregators and attacks come from byzfl, which is not installed: "
            "pip install 'consilience[bench]'"
        )
    sys.modules["byzfl"] = importlib.util.module_from_spec(spec)
    try:
        return importlib.import_module(full)
    finally:
        del sys.modules["byzfl"]
