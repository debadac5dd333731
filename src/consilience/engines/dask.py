"""Aggregation on many machines: each holds a shard of the parameters, of all parties.

A shard is a function that loads some of the parameters of every party: {party: update}, as
`aggregate` takes it. It runs on a Dask worker and what it loads stays there. The worker sends the
shard's evidence, a J×J matrix; the weights go back; the worker forms its shard of the consensus:

    shards = [partial(load, n) for n in range(8)]      # load(n) -> {"ann": {...}, "bob": {...}}
    consensus = aggregate_shards(client, shards, save=partial(write, folder))

Evidence over shards just adds up. It is added in the order of the shards, so the answer is the
same, bit for bit, whoever computed what: a worker that dies is replaced by another that loads its
shards again. The kinds of tensors may differ between shards, the parties may not; one that cannot
be used in one shard is rejected in all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from traceback import walk_tb
from typing import Any

import numpy as np

from consilience.alone import tried_alone
from consilience.beliefs import Estimator
from consilience.catalogue import DEFAULT, resolve
from consilience.combine import combine
from consilience.consensus import Consensus, conclude
from consilience.coordinatewise import TrimmedMean
from consilience.deliberation import deliberate
from consilience.errors import ConsilienceError
from consilience.evidence import Block, Evidence, Matrix, Positions, Vector, observe
from consilience.memory import Memory
from consilience.tensors import Array
from consilience.updates import Updates, nobody_left, parse

Load = Callable[[], Mapping[str, Any]]
Save = Callable[[int, Any], Any]  # the shard's number, its part of the consensus

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
        except Exception:  # of somebody's making: who is it?
            return cls(parse(tried_alone(updates, around), around))

    def observe(self, bad: Mapping[str, str], exact: bool) -> Observed:
        """Return the evidence of the shard, without parties found to be bad elsewhere."""
        updates, evidence = observe(self._without(bad), exact=exact)
        (block,) = evidence.blocks
        return Observed(
            updates.parties,
            updates.given,
            updates.rejected,
            block.distances,
            block.count,
            updates.size,
        )

    def look(self, bad: Mapping[str, str], places: Positions) -> Array:
        """Return what the parties sent at some places of the shard."""
        return self._without(bad).look(places)

    def combine(self, bad: Mapping[str, str], weights: Vector, check: bool) -> tuple[Any, float]:
        """Return the shard of the consensus, and its part of how far off the jury is."""
        updates = self._without(bad)
        value, off = combine(updates, weights, check=check)
        return updates.rebuild(value, weights[:-1]), off * updates.size

    def _without(self, bad: Mapping[str, str]) -> Updates:
        return self.updates.without({p: r for p, r in bad.items() if p in self.updates.parties})


@dataclass(frozen=True, eq=False)
class Observed:
    """What a shard tells."""

    parties: tuple[str, ...]
    given: tuple[str, ...]
    rejected: Mapping[str, str]
    distances: Matrix
    count: float  # coordinates looked at
    size: int


@dataclass(eq=False)
class Shards:
    """An engine over shards on the workers of a Dask client."""

    client: Any
    shards: Sequence[Any]  # futures of Shard
    given: tuple[str, ...] = ()
    parties: tuple[str, ...] = ()
    rejected: dict[str, str] = field(default_factory=dict)
    sizes: list[int] = field(default_factory=list)
    parts: list[Any] = field(default_factory=list)  # futures of (value, off), one per shard

    def observe(self, *, exact: bool) -> Evidence:
        """Add up the evidence of all shards; who is rejected by one is left out of all."""
        while True:
            seen = self._each(Shard.observe, dict(self.rejected), exact)
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
        return Evidence((Block(self.parties, np.asarray(distances), count),))

    @property
    def size(self) -> int:
        """K, over all shards."""
        return sum(self.sizes)

    def look(self, places: Positions) -> Array:
        """Have each worker look at the places that lie in its shards."""
        edges = np.concatenate([[0], np.cumsum(self.sizes)])
        cuts = np.searchsorted(places, edges)
        mine = [
            places[low:high] - begin
            for begin, low, high in zip(edges, cuts, cuts[1:], strict=False)
        ]
        futures = [
            _submit(self.client, Shard.look, shard, dict(self.rejected), at)
            for shard, at in zip(self.shards, mine, strict=True)
        ]
        return np.hstack(self.client.gather(futures))

    def combine(self, weights: Vector, *, check: bool) -> float:
        """Have each worker form its shards of the sum; only a number comes back."""
        self.parts = [
            _submit(self.client, Shard.combine, shard, dict(self.rejected), weights, check)
            for shard in self.shards
        ]
        off = self.client.gather([_submit(self.client, _second, part) for part in self.parts])
        return float(sum(off)) / self.size

    def _each(self, task: Callable[..., Any], *arguments: Any) -> list[Any]:
        futures = [_submit(self.client, task, shard, *arguments) for shard in self.shards]
        found: list[Any] = self.client.gather(futures)
        return found


def aggregate_shards(
    client: Any,
    shards: Sequence[Load],
    method: str | Estimator = DEFAULT,
    memory: Memory | None = None,
    centers: Sequence[Load] | None = None,
    *,
    exact: bool = False,
    save: Save | None = None,
) -> Consensus:
    """Aggregate updates whose parameters are spread over the workers of a Dask client.

    Args:
        client: a ``dask.distributed.Client``.
        shards: functions, one for each shard, that load {party: update} where they run.
        method, memory, exact: as in `aggregate`; coordinate-wise rules have no evidence, and are
            not offered here.
        centers: functions that load the same shards of the previous global model.
        save: called on the worker with the number of the shard and its part of the consensus; what
            it returns (a path, say) takes the part's place in ``value``.

    The consensus's ``value`` is the list of the shards' parts, or of what ``save`` returned.
    """
    chosen = resolve(method)
    if isinstance(chosen, TrimmedMean):
        raise ConsilienceError("a coordinate-wise rule has no evidence to add up over shards")
    if not shards:
        raise nobody_left({})
    if centers is not None and len(centers) != len(shards):
        raise ConsilienceError(f"{len(shards)} shards but {len(centers)} centers")
    started = perf_counter()
    around: Sequence[Load | None] = centers or [None] * len(shards)
    loaded = [
        _submit(client, Shard.loaded, load, center)
        for load, center in zip(shards, around, strict=True)
    ]
    engine = Shards(client, loaded)
    verdict = deliberate(engine, chosen, memory, exact=exact)
    value = client.gather(
        [_submit(client, _saved, save, n, part) for n, part in enumerate(engine.parts)]
    )
    if memory is not None:
        memory.keep(verdict.evidence, verdict.beliefs, verdict.trails)
    return conclude(engine, value, verdict, {"all": perf_counter() - started})


def _second(part: tuple[Any, float]) -> float:
    return part[1]


def _saved(save: Save | None, number: int, part: tuple[Any, float]) -> Any:
    return part[0] if save is None else save(number, part[0])


def _submit(client: Any, task: Callable[..., Any], *arguments: Any) -> Any:
    """Return the future of a task on a worker."""
    return client.submit(_run, task, *arguments, pure=False, retries=_RETRIES)


def _run(task: Callable[..., Any], *arguments: Any) -> Any:
    """Run a task. An error from deep below loses its traceback: Dask's client hangs on such."""
    try:
        return task(*arguments)
    except Exception as error:
        if sum(1 for _ in walk_tb(error.__traceback__)) < _DEEP:
            raise
        failed = error
    failed.__cause__ = failed.__context__ = None
    raise failed.with_traceback(None)
