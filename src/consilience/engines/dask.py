"""Aggregation on many machines: each holds a shard of the parameters, for all parties.

A shard is a function that loads some of the parameters of every party: {party: update}, as for
`aggregate`. It runs on a Dask worker, and what it loads stays there. The worker sends the shard's
evidence, a J×J matrix, receives the weights, and forms its shard of the consensus:

    shards = [partial(load, n) for n in range(8)]      # load(n) -> {"ann": {...}, "bob": {...}}
    consensus = aggregate_shards(client, shards, save=partial(write, folder))

The evidence of the shards is added in their order, so the result is the same bit for bit whichever
worker computed what. If a worker dies, another loads its shards again. Tensors may differ between
shards, the parties may not; a party that is unusable in one shard is rejected in all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from traceback import walk_tb
from typing import Any

import numpy as np

from consilience.arrays import Array, Matrix, Positions, Vector
from consilience.consensus import Consensus
from consilience.deliberation import deliberate
from consilience.engines.alone import tried_alone
from consilience.engines.in_process import InProcess
from consilience.errors import ConsilienceError
from consilience.estimators.catalogue import DEFAULT, Method, resolve
from consilience.estimators.coordinatewise import TrimmedMean
from consilience.evidence import Block, Evidence
from consilience.memory import Memory
from consilience.passes.corroborate import Witnesses
from consilience.passes.observe import faint
from consilience.require import Require
from consilience.updates.parsing import parse
from consilience.updates.usable import Updates, nobody_left

Load = Callable[[], Mapping[str, Any]]
Save = Callable[[int, Any], Any]  # takes the shard's number and its part of the consensus

_RETRIES = 3
_DEEP = 100  # calls


@dataclass(frozen=True, eq=False)
class Shard:
    """What a worker keeps between the passes."""

    updates: Updates

    @classmethod
    def loaded(cls, load: Load, center: Load | None) -> Shard:
        """Load the shard where this runs."""
        updates, around = load(), None if center is None else center()
        try:
            return cls(parse(updates, around))
        except ConsilienceError:
            raise
        except Exception:  # some party's fault: find out whose
            return cls(parse(tried_alone(updates, around), around))

    def observe(self, bad: Mapping[str, str], seed: int, exact: bool) -> Observed:
        """Return the evidence of the shard, without the parties that are bad elsewhere."""
        engine = self.engine(bad)
        (block,) = engine.observe(np.random.default_rng(seed), exact=exact).blocks
        return Observed(
            engine.parties,
            engine.given,
            engine.rejected,
            block.distances,
            block.count,
            engine.size,
        )

    def look(self, bad: Mapping[str, str], faint: bool, places: Positions) -> Array:
        """Return what the parties sent at the given places of the shard."""
        return self.engine(bad, faint).look(places)

    def combine(
        self,
        bad: Mapping[str, str],
        faint: bool,
        weights: Vector,
        ring: Positions | None,
        witnesses: Witnesses | None,
    ) -> Formed:
        """Form this shard of the consensus."""
        engine = self.engine(bad, faint)
        apart, alone = engine.combine(weights, ring, witnesses)
        return Formed(engine, (apart * engine.size, alone * engine.size))

    def reduce(self, bad: Mapping[str, str], faint: bool, rule: TrimmedMean, exact: bool) -> Formed:
        """Form this shard of a coordinate-wise rule's value."""
        engine = self.engine(bad, faint)
        shares, squares = engine.reduce(rule, exact=exact)
        return Formed(engine, (shares * engine.size, squares * engine.size))

    def engine(self, bad: Mapping[str, str], faint: bool = False) -> InProcess:
        """Return the worker's engine, without the parties that are bad elsewhere; ``faint``: over
        all shards, typical differences are too small for squares in single precision."""
        here = {p: r for p, r in bad.items() if p in self.updates.parties}
        updates = self.updates.without(here)
        return InProcess(replace(updates, faint=True) if faint else updates)


@dataclass(frozen=True, eq=False)
class Formed:
    """A shard of the value, which stays on the worker, and the sums to add over shards."""

    engine: InProcess
    sums: tuple[Vector, ...]

    def finish(self, weights: Vector, number: int, save: Save | None) -> Any:
        """Return the shard of the value, or what ``save`` returns for it."""
        value = self.engine.finish(weights)
        return value if save is None else save(number, value)


@dataclass(frozen=True, eq=False)
class Observed:
    """What a shard reports."""

    parties: tuple[str, ...]
    given: tuple[str, ...]
    rejected: Mapping[str, str]
    distances: Matrix
    count: float  # coordinates read
    size: int


@dataclass(eq=False)
class Shards:
    """An engine over shards on the workers of a Dask client."""

    linear = False
    client: Any
    shards: Sequence[Any]  # futures of Shard
    given: tuple[str, ...] = ()
    parties: tuple[str, ...] = ()
    rejected: dict[str, str] = field(default_factory=dict)
    sizes: list[int] = field(default_factory=list)
    parts: list[Any] = field(default_factory=list)  # futures of Formed, one per shard
    save: Save | None = None
    faint: bool = False  # single precision cannot hold the squares of typical differences

    def observe(self, random: np.random.Generator, *, exact: bool) -> Evidence:
        """Add up the evidence of all shards; a party rejected by one is dropped from all."""
        while True:
            seeds = random.integers(2**63, size=len(self.shards)).tolist()
            futures = [
                _submit(self.client, Shard.observe, shard, dict(self.rejected), seed, exact)
                for shard, seed in zip(self.shards, seeds, strict=True)
            ]
            seen = self.client.gather(futures)
            self.given = tuple(dict.fromkeys(party for one in seen for party in one.given))
            bad = {party: reason for one in seen for party, reason in one.rejected.items()}
            for party in self.given:
                if not all(party in one.given for one in seen):
                    bad[party] = "it is not in every shard"
            if set(bad) <= set(self.rejected):
                break
            self.rejected = {**bad, **self.rejected}
        self.parties = seen[0].parties
        self.sizes = [one.size for one in seen]
        distances = sum(one.distances * (one.size / self.size) for one in seen)
        count = float(sum(one.count for one in seen))
        block = Block(self.parties, np.asarray(distances), count)
        self.faint = faint(block)
        return Evidence((block,))

    @property
    def size(self) -> int:
        """K, over all shards."""
        return sum(self.sizes)

    def look(self, places: Positions) -> Array:
        """Have each worker look at the places within its shards."""
        edges = np.concatenate([[0], np.cumsum(self.sizes)])
        cuts = np.searchsorted(places, edges)
        mine = [
            places[low:high] - begin
            for begin, low, high in zip(edges, cuts, cuts[1:], strict=False)
        ]
        futures = [
            _submit(self.client, Shard.look, shard, dict(self.rejected), self.faint, at)
            for shard, at in zip(self.shards, mine, strict=True)
        ]
        return np.hstack(self.client.gather(futures))

    def layers(self, reference: int, random: np.random.Generator) -> None:
        """Return None: the tensors of a shard have no names of their own."""

    def combine(
        self, weights: Vector, ring: Positions | None, witnesses: Witnesses | None
    ) -> tuple[Vector, Vector]:
        """Have each worker form its shards of the sum; only a few numbers come back."""
        apart, alone = self._formed(Shard.combine, weights, ring, witnesses)
        return apart, alone

    def reduce(self, rule: TrimmedMean, *, exact: bool) -> tuple[Vector, Vector]:
        """Have each worker form its shards of a coordinate-wise rule's value."""
        shares, squares = self._formed(Shard.reduce, rule, exact)
        return shares, squares

    def finish(self, weights: Vector) -> list[Any]:
        """Return what each worker finishes of its shards of the value."""
        futures = [
            _submit(self.client, Formed.finish, part, weights, number, self.save)
            for number, part in enumerate(self.parts)
        ]
        found: list[Any] = self.client.gather(futures)
        return found

    def _formed(self, task: Callable[..., Formed], *arguments: Any) -> tuple[Vector, ...]:
        bad = dict(self.rejected)
        known = bad, self.faint, *arguments
        self.parts = [_submit(self.client, task, shard, *known) for shard in self.shards]
        told = self.client.gather([_submit(self.client, _told, part) for part in self.parts])
        for _, rejected in told:  # parties that proved unusable in some shard
            self.rejected |= {p: why for p, why in rejected.items() if p not in self.rejected}
        self.parties = tuple(party for party in self.parties if party not in self.rejected)
        sums = [of for of, _ in told]
        return tuple(np.sum(of, axis=0) / self.size for of in zip(*sums, strict=True))


def aggregate_shards(
    client: Any,
    shards: Sequence[Load],
    method: str | Method = DEFAULT,
    memory: Memory | None = None,
    centers: Sequence[Load] | None = None,
    *,
    exact: bool = False,
    seed: int | None = None,
    save: Save | None = None,
    require: Require | None = None,
) -> Consensus:
    """Aggregate updates whose parameters are spread over the workers of a Dask client.

    Args:
        client: a ``dask.distributed.Client``.
        shards: functions, one for each shard, that load {party: update} where they run.
        method, memory, exact, seed, require: as in `aggregate`.
        centers: functions that load the same shards of the previous global model.
        save: called on the worker with the number of the shard and its part of the consensus; what
            it returns (a path, say) takes the part's place in ``value``.

    The consensus's ``value`` is the list of the shards' parts, or of what ``save`` returned.
    """
    chosen = resolve(method)
    if not shards:
        raise nobody_left({})
    if centers is not None and len(centers) != len(shards):
        raise ConsilienceError(f"{len(shards)} shards but {len(centers)} centers")
    around: Sequence[Load | None] = centers or [None] * len(shards)
    loaded = [
        _submit(client, Shard.loaded, load, center)
        for load, center in zip(shards, around, strict=True)
    ]
    engine = Shards(client, loaded, save=save)
    consensus = deliberate(engine, chosen, memory, exact=exact, seed=seed, require=require)
    consensus.diagnostics["method"] = method if isinstance(method, str) else repr(method)
    return consensus


def _told(part: Formed) -> tuple[tuple[Vector, ...], dict[str, str]]:
    return part.sums, dict(part.engine.rejected)


def _submit(client: Any, task: Callable[..., Any], *arguments: Any) -> Any:
    """Return the future of a task that runs on a worker."""
    return client.submit(_run, task, *arguments, pure=False, retries=_RETRIES)


def _run(task: Callable[..., Any], *arguments: Any) -> Any:
    """Run a task. A deep error loses its traceback, as Dask's client hangs on such."""
    try:
        return task(*arguments)
    except Exception as error:
        if sum(1 for _ in walk_tb(error.__traceback__)) < _DEEP:
            raise
        failed = error
    failed.__cause__ = failed.__context__ = None
    raise failed.with_traceback(None)
