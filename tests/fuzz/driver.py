"""Worker processes that run cases, and the watch over them.

A worker says which case it begins and how it ended. One that dies, or that its own watch-dog ends
because a case takes too long, is replaced, and its last case is a failure like any other.
"""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import resource
import shutil
import sys
import tempfile
import time
import traceback
import warnings
import zlib
from collections import Counter
from dataclasses import dataclass, replace
from importlib import import_module
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import numpy as np

from fuzz import KINDS
from fuzz.oracle import BrokenPromiseError, expect, listening

SLOW = 2.0  # seconds of processor time that no round may take
HUNG = 20.0  # seconds after which a worker is ended: others may keep the machine busy
FAKES = "torch._subclasses.fake_tensor"
ROOM = 1 << 30  # bytes of memory that a case may ask for, beyond what the imports took


@dataclass(frozen=True)
class Plan:
    """Which cases to run: ``number`` counts through the turns, from ``first`` in steps."""

    seed: int
    turns: tuple[str, ...]
    until: float  # seconds since 1970
    cases: int | None
    workers: int
    first: int = 0

    def more(self, number: int) -> bool:
        """Tell whether a case is still to be run."""
        return (self.cases is None or number < self.cases) and time.time() < self.until


def run(plan: Plan, most: int) -> int:
    """Run the plan in worker processes; print every failure with the words that repeat it."""
    started = time.time()
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # a worker has one core
    workers = [_Worker(replace(plan, first=w)) for w in range(plan.workers)]
    done: Counter[str] = Counter()
    failures = 0
    try:
        while workers and failures < most:
            for pipe in wait([worker.pipe for worker in workers]):
                worker = next(worker for worker in workers if worker.pipe is pipe)
                failure, following = worker.hear(done)
                if failure:
                    failures += 1
                    print(failure, file=sys.stderr, flush=True)
                if following is not worker:
                    workers.remove(worker)
                    workers += [following] if following else []
    finally:
        for worker in workers:
            worker.end()
    seconds = time.time() - started
    by_kind = ", ".join(f"{kind} {count}" for kind, count in sorted(done.items()))
    print(f"{done.total()} cases in {seconds:.0f} s ({by_kind}), {failures} failures")
    return 1 if failures else 0


def repeat(kind: str, seed: int, number: int) -> int:
    """Run one case in this process, as a worker would."""
    prepare((kind,))
    with tempfile.TemporaryDirectory(prefix="consilience-fuzz-") as folder:
        failure = attempt(kind, seed, number, Path(folder))
    print(failure or f"{kind}:{seed}:{number} is fine")
    return 1 if failure else 0


class _Worker:
    """A process that runs every so many-th case, and what is known of it."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.case = ("", plan.first)
        self.folder = tempfile.mkdtemp(prefix="consilience-fuzz-")
        # From a server that has imported all that the kinds need, so that none does it again.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([*(KINDS[kind] for kind in plan.turns), FAKES])
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_work, args=(plan, theirs, self.folder), daemon=True)
        self.process.start()
        theirs.close()

    def hear(self, done: Counter[str]) -> tuple[str | None, _Worker | None]:
        """Take the worker's next word: a failure, if it is one, and who works on, if anybody."""
        try:
            what, said = self.pipe.recv()
        except EOFError:
            return self._died(done)
        if what == "begins":
            self.case = said
        elif what == "ended":
            done[self.case[0]] += 1
            return said, self
        else:
            self.end()
            return None, None
        return None, self

    def _died(self, done: Counter[str]) -> tuple[str, _Worker | None]:
        self.end()
        kind, number = self.case
        code = self.process.exitcode
        if not kind:  # before any case: another would fare no better
            return f"a worker could not start: exit code {code}", None
        done[kind] += 1
        failure = f"{kind}:{self.plan.seed}:{number} hung or crashed: exit code {code}, see above"
        return failure, _Worker(replace(self.plan, first=number + self.plan.workers))

    def end(self) -> None:
        """Stop the process and remove what it wrote."""
        if self.process.is_alive() and self.process.exitcode is None:
            self.process.join(timeout=1)
            self.process.kill()
        self.process.join()
        self.pipe.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def _work(plan: Plan, pipe: Connection, folder: str) -> None:
    prepare(plan.turns)
    number = plan.first
    while plan.more(number):
        kind = plan.turns[number % len(plan.turns)]
        pipe.send(("begins", (kind, number)))
        pipe.send(("ended", attempt(kind, plan.seed, number, Path(folder))))
        number += plan.workers
    pipe.send(("finished", None))


def prepare(kinds: tuple[str, ...]) -> None:
    """Import what the kinds need, and bound what a case may take."""
    for kind in set(kinds):
        import_module(KINDS[kind])
    # Some cases need torch and its fake tensors, and none shall be charged for the imports.
    import_module(FAKES).FakeTensorMode()
    os.fsync = _not_to_the_disk  # who loses power here loses nothing
    warnings.simplefilter("error")
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    room = pages * resource.getpagesize() + ROOM
    resource.setrlimit(resource.RLIMIT_AS, (room, resource.getrlimit(resource.RLIMIT_AS)[1]))


def _not_to_the_disk(file: Any) -> None: ...


def attempt(kind: str, seed: int, number: int, folder: Path) -> str | None:
    """Run one case; return None, or in words how it failed and how to see it again."""
    case = import_module(KINDS[kind]).case
    random = np.random.default_rng([seed, zlib.crc32(kind.encode()), number])
    inside = folder / "case"
    inside.mkdir()
    faulthandler.dump_traceback_later(HUNG, exit=True)
    began = time.process_time()
    try:
        with listening():
            rounds = case(random, inside) or 1
        taken = (time.process_time() - began) / rounds
        expect(taken <= SLOW, f"took {taken:.1f} s of processor time, expected {SLOW:g} at most")
        return None
    except Exception as error:
        return f"{kind}:{seed}:{number} {_told(error)}"
    finally:
        faulthandler.cancel_dump_traceback_later()
        shutil.rmtree(inside, ignore_errors=True)


def _told(error: Exception) -> str:
    if isinstance(error, BrokenPromiseError) and error.__cause__ is None:
        return f"broke a promise: {error}"
    lines = traceback.format_exception(error)
    if len(lines) > 30:  # of a recursion both ends are enough
        lines = [*lines[:8], "  ...\n", *lines[-12:]]
    return "crashed:\n" + "".join(lines)
