"""aggregate(): the main function."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from time import perf_counter
from typing import Any

import numpy as np

from consilience.consensus import Consensus
from consilience.deliberation import deliberate
from consilience.engines.adapters import Adapters
from consilience.engines.device import Device, devices, on_this_machine
from consilience.engines.files.engine import in_pieces
from consilience.engines.files.spool import are_stored
from consilience.engines.in_process import InProcess
from consilience.errors import ConsilienceError, RecordFileError, check_argument
from consilience.estimators.catalogue import DEFAULT, Method, resolve
from consilience.memory import Memory
from consilience.record import Record
from consilience.require import Require
from consilience.text import shown
from consilience.updates.adapters import LoRA, check_whole, meaning, parse_adapters
from consilience.updates.names import Patterns
from consilience.updates.parsing import parse
from consilience.updates.usable import Updates

log = logging.getLogger(__name__)


def aggregate(
    updates: Any,
    method: str | Method = DEFAULT,
    memory: Memory | None = None,
    center: Any = None,
    sample_counts: Mapping[str, float] | Sequence[float] | None = None,
    *,
    exact: bool = False,
    seed: int | None = None,
    record: Record | str | os.PathLike[str] | None = None,
    trusted_counts: bool = False,
    require: Require | None = None,
    tensors: Patterns | None = None,
    evidence: Patterns | None = None,
    adapters: LoRA | str | None = None,
) -> Consensus:
    """Combine the updates of a round into a consensus, trusting each party as far as it deserves.

    A party whose update cannot be used is rejected with a reason, and the round goes on.

    Args:
        updates: ``{party id: update}``, a sequence of updates, or a (J, K) array. An update is a
            tensor (numpy, torch, anything with ``__array__`` or ``__dlpack__``), or a mapping or
            sequence of updates. It is never changed.
        method: a name from `methods`, or an estimator with parameters, such as ``IVAR("mle")``.
        memory: what earlier rounds taught; it is updated if the round succeeds.
        center: where a prior expects the truth: the previous global model if the updates are
            parameters. If not given it is zero, as for gradients and differences.
        sample_counts: how many samples each party says it used. ``mean`` and ``geometric-median``
            weigh by them, ``pairwise`` lets them change a vote by a factor of two at most, the
            other methods ignore them.
        exact: look at every coordinate, also where a sample of them would do.
        seed: makes the sample of coordinates repeatable. Without it the sample is drawn from the
            system's randomness, so that nobody can know which coordinates are looked at.
        record: the run's `Record`, or its file. This round is added to it.
        trusted_counts: the sample counts are verified: ``pairwise`` weighs by them in full, and
            allows a party the noise that few samples explain. Its pull stays bounded.
        require: what the round must have to count. If it does not, `RequirementError` says why,
            and memory and record stay as they were.
        tensors: names, or patterns with the wildcards of a shell, of the tensors to aggregate; with
            "!" before them, of those to leave out, such as "!head.*". What is left out is not
            looked at, and not in the value. If not given, all are aggregated.
        evidence: likewise, the tensors by which parties are judged.
        adapters: the updates are state dicts of LoRA adapters, of any ranks, to be judged and
            summed as the products s·B·A that they stand for: a `LoRA` that says what s is, or
            "lora" where all have the same alpha.

    >>> import consilience as cs
    >>> consensus = cs.aggregate({"ann": [1.0, 2], "bob": [1.1, 2], "eve": [70, 80], "zoe": [1.0]})
    >>> [round(number, 1) for number in consensus.value]
    [1.1, 2.0]
    >>> consensus.rejected
    {'zoe': 'the update has shape (1,), expected (2,)'}
    """
    chosen = resolve(method)
    check_argument("record", record, Record | str | os.PathLike | None, "a Record or a path")
    started = perf_counter()
    lora = None if adapters is None else meaning(adapters)
    if lora is None:
        parsed = parse(updates, center, tensors, evidence)
    else:
        check_whole(tensors, evidence)
        parsed = parse_adapters(updates, center, lora)
    counts, bad = _counts(sample_counts, parsed)
    engine = _engine(parsed.without(bad), lora)
    seconds = {"parsing": perf_counter() - started}
    consensus = deliberate(
        engine,
        chosen,
        memory,
        counts,
        exact=exact,
        seed=seed,
        seconds=seconds,
        trusted_counts=trusted_counts,
        require=require,
    )
    consensus.diagnostics["method"] = method if isinstance(method, str) else repr(method)
    if isinstance(engine, Adapters):
        consensus.diagnostics.update(cut=engine.cut, rank=engine.rank)
    if record is not None:
        _write_down(consensus, record)
    return consensus


def _engine(updates: Updates, lora: LoRA | None) -> InProcess:
    """Return the engine for the place of the updates: files, one accelerator, or memory."""
    if are_stored(updates):
        updates = in_pieces(updates)
    if lora is not None:
        return Adapters(updates, lora)
    found = devices(updates)
    if found == {None}:
        return InProcess(updates)
    return Device(updates) if len(found) == 1 else InProcess(on_this_machine(updates))


def _write_down(consensus: Consensus, record: Record | str | os.PathLike[str]) -> None:
    """Add to a record; a failure here must not cost the consensus."""
    try:
        (record if isinstance(record, Record) else Record(record)).append(consensus)
    except (OSError, RecordFileError) as error:
        log.error(
            "the round is missing from its record, the consensus is not: %s", shown(error, 500)
        )


def _counts(
    sample_counts: Mapping[str, float] | Sequence[float] | None, updates: Updates
) -> tuple[dict[str, float] | None, dict[str, str]]:
    """Return valid sample counts by party, and the parties with an invalid one, with reasons.

    A missing count is no reason to reject a party; an invalid one is.
    """
    if sample_counts is None:
        return None, {}
    if isinstance(sample_counts, Mapping) or _names_parties(sample_counts, updates):
        named: Any = sample_counts
        given = {str(party): count for party, count in named.items()}
    elif len(sample_counts) == len(updates.given):
        given = dict(zip(updates.given, sample_counts, strict=True))
    else:
        raise ConsilienceError(
            f"{len(updates.given)} updates but {len(sample_counts)} sample counts"
        )
    strangers = sorted(given.keys() - set(updates.given))
    if strangers:
        named = ", ".join(map(shown, strangers[:5])) + (", …" if len(strangers) > 5 else "")
        log.warning("sample counts of parties without an update: %s", named)
    said = {party: _count(given[party]) for party in updates.parties if party in given}
    if said and all(count == 0 for count in said.values()):
        return None, {}  # nobody gave a count
    bad = {
        party: f"its sample count is {_described(given[party])}, expected a positive number"
        for party, count in said.items()
        if not 0 < count < np.inf
    }
    return {party: count for party, count in said.items() if party not in bad}, bad


def _names_parties(counts: Any, updates: Updates) -> bool:
    """Tell whether these are a pandas series whose index holds ids, not positions."""
    index = getattr(counts, "index", None)
    if index is None or callable(index):  # a list's `index` is a method
        return False
    return not set(map(str, index)).isdisjoint(updates.given)


def _count(said: Any) -> float:
    try:
        return float(said)
    except Exception:  # text, a list, 10**400, or whatever a foreign number raises
        return np.nan


def _described(found: Any) -> str:
    try:
        return shown(repr(found))
    except Exception:  # numbers with thousands of digits cannot be printed
        return f"of type {type(found).__name__}"
