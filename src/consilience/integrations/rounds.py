"""The rounds of a federation: a consensus at the end of each, whatever was sent.

What a server needs beyond `aggregate` in any framework: it remembers who was rejected and why,
keeps the model if too few usable updates came, adds every round to the record, and makes a
checkpoint. How updates come in and models go out is up to the framework.
"""

from __future__ import annotations

import copy
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from numbers import Integral
from pathlib import Path
from traceback import format_tb
from typing import Any

import numpy as np
from numpy.typing import NDArray

from consilience.consensus import Consensus
from consilience.deliberation import check_known
from consilience.engines.aggregate import aggregate
from consilience.engines.alone import tried_alone
from consilience.errors import ConsilienceError, UpdateError, check_argument
from consilience.estimators.catalogue import DEFAULT, Method, resolve
from consilience.integrations.checkpoint import Checkpoint, CheckpointError, Tensors, fits, latest
from consilience.integrations.tracking import check, send
from consilience.memory import Memory
from consilience.record import Record
from consilience.require import Require
from consilience.summary import Summary
from consilience.text import shown, told
from consilience.updates.adapters import LoRA, are_factors, meaning
from consilience.updates.names import Patterns
from consilience.updates.tensors import LARGEST_OF, as_numpy, outline

_REASON = 400  # characters said about a party, some of which may be foreign
_NOTE = 1000  # and about a round
_CELL, _WHY = 24, 120  # and in a cell of the log's table
_AUTO = "auto"


@dataclass(frozen=True, eq=False)
class ClosedRound:
    """What came of one round."""

    model: Tensors | None  # None only if no model was given and none could be made
    consensus: Consensus | None  # without its value; None if the model stays as it was
    rejected: dict[str, str]  # party -> reason
    note: str | None  # why the model was kept, if it was

    @property
    def reasons(self) -> dict[str, str]:
        """Why parties that stand out are heard less or not at all."""
        return {**(self.consensus.reasons if self.consensus else {}), **self.rejected}

    @property
    def weights(self) -> dict[str, float]:
        """How much each party counted; zero for the rejected."""
        nothing = dict.fromkeys(self.rejected, 0.0)
        return {**nothing, **(self.consensus.weights if self.consensus else {})}

    @property
    def numbers(self) -> dict[str, float]:
        """What the round told about each party, for trackers that take numbers only."""
        consensus = self.consensus
        found: dict[str, float] = {
            "good-replies": len(consensus.parties) if consensus else 0,
            "rejected-replies": len(self.rejected),
            "model-changed": int(consensus is not None),
        }
        found |= {f"weight/{party}": float(weight) for party, weight in self.weights.items()}
        found |= {f"named/{party}": 2 if party in self.rejected else 1 for party in self.reasons}
        if consensus is None:
            return found
        found["effective-parties"] = float(consensus.diagnostics["effective_parties"])
        found |= {f"noise/{party}": float(consensus.noise[party]) for party in consensus.parties}
        for number, group in enumerate(consensus.groups, 1):
            found |= {f"group/{party}": number for party in group if party in consensus.parties}
        return found

    @property
    def summary(self) -> Summary:
        """Return who weighs how much, and why; those who stand out come first."""
        reasons, noise = self.reasons, self.consensus.noise if self.consensus else {}
        weights = self.weights
        rows = [
            [
                shown(party, _CELL),
                f"{weights[party]:.3g}",
                f"{noise[party]:.3g}" if np.isfinite(noise.get(party, np.nan)) else "",
                shown(reasons.get(party, ""), _WHY),
            ]
            for party in sorted(weights, key=lambda party: (party not in reasons, weights[party]))
        ]
        heard, bad = len(weights) - len(self.rejected), len(self.rejected)
        title = f"{heard} parties heard, {bad} rejected"
        if self.consensus is None:
            title = f"the model stays as it is: {self.note}"
        return Summary(title, ("party", "weight", "noise", "why"), rows)


@dataclass
class Rounds:
    """One round after another.

    method      as for `aggregate`
    memory      what earlier rounds taught; changes only when a round succeeds
    minimum     with fewer usable updates than this the model is kept
    record      the file to which every round is added
    checkpoint  the folder in which the last rounds are kept
    step        None: updates are parameters, and the consensus is the new model. A number:
                updates are differences (1) or gradients (minus the learning rate), and the model
                moves by this many times their consensus
    adapters    "lora", "rslora" or a `LoRA`: updates are adapters of any ranks, judged and summed
                as products of factors. "auto": if the model has factors. None: they are like
                other tensors
    log         where parties are named
    trusted_counts, require  as for `aggregate`; a party that sent nothing usable is a suspect, too
    tensors, evidence  as for `aggregate`; tensors that are not aggregated are kept
    track       what gets the numbers of every round (see `consilience.integrations.tracking`)
    """

    method: str | Method = DEFAULT
    memory: Memory = field(default_factory=Memory)
    minimum: int = 1
    record: str | os.PathLike[str] | None = None
    checkpoint: str | os.PathLike[str] | None = None
    step: float | None = None
    adapters: LoRA | str | None = "auto"
    log: logging.Logger = field(default_factory=lambda: logging.getLogger("consilience"))
    # For each party ever rejected: how often, when last, and why then.
    rejections: dict[str, dict[str, Any]] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)  # the framework's node -> its party
    last: ClosedRound | None = None
    trusted_counts: bool = False
    require: Require | None = None
    tensors: Patterns | None = None
    evidence: Patterns | None = None
    track: Any = None

    def __post_init__(self) -> None:
        check(self.track)
        # Report a mistake now, not after the first round.
        resolve(self.method)
        check_known(self.memory, self.require)
        check_argument(
            "the least number of usable updates", self.minimum, Integral, "a whole number"
        )
        for name in ("record", "checkpoint"):
            check_argument(name, getattr(self, name), str | os.PathLike | None, "a path")
        if self.adapters not in (None, _AUTO):
            self.adapters = meaning(self.adapters)
            if self.step is not None:
                raise ConsilienceError("a step is for differences; adapters are sent whole")
        if self.record is not None and Path(self.record).exists():
            Record.read(self.record)

    def resume(self, model: Mapping[str, NDArray[Any]]) -> Checkpoint | None:
        """Resume from the last checkpoint of a model like this, if there is one."""
        found = latest(self.checkpoint) if self.checkpoint is not None else None
        if found is None:
            return None
        difference = fits(found.model, model)
        if difference:
            raise CheckpointError(
                f"{self.checkpoint}: its model is another: {difference}. Name another folder"
            )
        self.memory, self.rejections = found.memory, found.rejections
        self.names.update(found.names)
        return found

    def close(
        self,
        round: int,
        updates: Mapping[str, Any],
        model: Tensors | None = None,
        sample_counts: Mapping[str, Any] | None = None,
        rejected: Mapping[str, str] | None = None,
    ) -> ClosedRound:
        """End a round: form the next model from its updates, and judge the parties.

        ``model`` is what the parties were sent; ``rejected`` names those whose update could not
        even be read. Nothing that a party can send makes this raise.
        """
        memory = copy.copy(self.memory)  # shallow, as a memory replaces what it keeps
        if updates and self.require is not None:
            unread = {party: UpdateError(why) for party, why in (rejected or {}).items()}
            updates = {**updates, **unread}
        consensus, note, found = self._consensus(updates, model, sample_counts, memory)
        refused = {p: shown(why, _REASON) for p, why in {**(rejected or {}), **found}.items()}
        if consensus and len(consensus.parties) < self.minimum:
            note = f"{len(consensus.parties)} usable updates, expected {self.minimum} at least"
            consensus = None
        if consensus:
            self.memory = memory
            model = self._moved(model, consensus.value)
            consensus = replace(consensus, value=None)
        self._tell(round, consensus, refused, note)
        self.last = ClosedRound(model, consensus, refused, note)
        self._keep(round, self.last)
        return self.last

    def evaluated(self, round: int, accuracy: float) -> None:
        """Add the accuracy after a round to the record: the later line of a round counts."""
        if self.last is not None:
            self._append(round, self.last, accuracy)

    def _consensus(
        self,
        updates: Mapping[str, Any],
        model: Tensors | None,
        counts: Mapping[str, Any] | None,
        memory: Memory,
    ) -> tuple[Consensus | None, str | None, dict[str, str]]:
        if not updates:
            return None, f"no usable updates, expected {self.minimum} at least", {}
        centre = model
        if model is not None and self.step is not None:
            centre = {name: _zeros(tensor) for name, tensor in model.items()}
        lora = self._meaning(model)
        try:
            try:
                consensus = self._aggregated(updates, memory, centre, counts, lora)
            except ConsilienceError:
                raise
            except Exception:  # some party's fault: find out whose
                tried = tried_alone(updates, centre, lora)
                consensus = self._aggregated(tried, memory, centre, counts, lora)
            return consensus, None, consensus.rejected
        except ConsilienceError as error:
            return None, shown(error, _NOTE), getattr(error, "rejected", {})
        except Exception as error:  # one party must not end a run of days
            why = f"the aggregation failed: {told(error, _REASON)}"
            self.log.error("%s\n%s", why, "".join(format_tb(error.__traceback__)))
            return None, why, {}

    def _aggregated(
        self,
        updates: Mapping[str, Any],
        memory: Memory,
        centre: Tensors | None,
        counts: Mapping[str, Any] | None,
        lora: LoRA | None,
    ) -> Consensus:
        return aggregate(
            updates,
            self.method,
            memory,
            centre,
            counts,
            trusted_counts=self.trusted_counts,
            require=self.require,
            tensors=self.tensors,
            evidence=self.evidence,
            adapters=lora,
        )

    def _meaning(self, model: Tensors | None) -> LoRA | None:
        """Return what the factors of adapters mean, if the updates are adapters."""
        if self.adapters == _AUTO and model is not None:
            found = self.step is None and are_factors(model)
            self.adapters = meaning("lora") if found else None
            if found:
                self.log.info("the model is a LoRA adapter: judged and summed as the products B·A")
        return self.adapters if isinstance(self.adapters, LoRA) else None

    def _moved(self, model: Tensors | None, value: dict[str, NDArray[Any]]) -> Tensors:
        """Return the next model, in the dtypes of the present one, as new tensors."""
        if model is None:
            return value
        value = value if type(value) is dict else dict(value)  # a foreign mapping may be read-only
        for name, source in model.items():
            tensor = as_numpy(source)  # it may lie in a file
            # Only as an array of numpy bfloat16 has a dtype to go back to.
            own = source if isinstance(source, np.ndarray) else tensor
            if name not in value:
                value[name] = own
                continue
            # The consensus may be of another library, like the parties' tensors.
            sent = as_numpy(value[name])
            if self.step is None:
                value[name] = _rounded(sent, own.dtype)
            elif tensor.dtype.kind == "f":
                with np.errstate(over="ignore"):
                    value[name] = _rounded(tensor + self.step * sent, own.dtype)
            else:  # a difference of counters or masks has no meaning
                value[name] = own
        return {name: value[name] for name in model}

    def _tell(
        self, round: int, consensus: Consensus | None, rejected: dict[str, str], note: str | None
    ) -> None:
        for party, reason in rejected.items():
            before = self.rejections.get(party, {"times": 0})
            self.rejections[party] = {"times": before["times"] + 1, "round": round, "why": reason}
            self.log.warning("round %d: party %s rejected: %s", round, shown(party), reason)
        for party, reason in (consensus.reasons if consensus else {}).items():
            if consensus and party not in rejected:
                named, why = shown(party), shown(reason, _REASON)
                weight = consensus.weights[party]
                self.log.warning("round %d: party %s (weight %.3g): %s", round, named, weight, why)
        if note:
            self.log.warning("round %d: the model stays as it is: %s", round, note)

    def _keep(self, round: int, ended: ClosedRound) -> None:
        # The record first: a round written twice is read once, but one never written is lost.
        self._append(round, ended)
        try:
            send(self.track, ended.numbers, round)
        except Exception as error:  # perhaps from another server
            self.log.error("the numbers of round %d are not tracked: %s", round, told(error))
        if self.checkpoint is not None and ended.model is not None:
            try:
                Checkpoint(round, ended.model, self.memory, self.rejections, self.names).save(
                    self.checkpoint
                )
            except Exception as error:  # a run that cannot be resumed is better than none
                self.log.error("no checkpoint of round %d in %s: %s", round, self.checkpoint, error)

    def _append(self, round: int, ended: ClosedRound, accuracy: float | None = None) -> None:
        if self.record is None:
            return
        try:
            Record(self.record).append(
                ended.consensus,
                round=round,
                accuracy=accuracy,
                note=ended.note,
                rejected=ended.rejected,
            )
        except Exception as error:  # a line of the record is not worth a run
            self.log.error("round %d is missing in the record %s: %s", round, self.record, error)


def _zeros(tensor: Any) -> NDArray[Any]:
    """Return zeros of the same shape and dtype, or what numpy has for a dtype of another library.
    Unlike those of np.zeros_like, pages of np.zeros take no memory until they are touched."""
    if isinstance(tensor, np.ndarray):
        return np.zeros(tensor.shape, tensor.dtype)
    seen = outline(tensor)
    return np.zeros(seen.shape, "float32" if seen.dtype == "bfloat16" else seen.dtype)


def _rounded(values: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return values in a dtype, clipped to its range: an infinite model would end a federation, as
    no party can be near it."""
    with np.errstate(over="ignore"):
        if dtype.name == "bfloat16":  # to numpy no float, so it is clipped before
            largest = LARGEST_OF["bfloat16"]
            return values.astype(np.float32).clip(-largest, largest).astype(dtype)
        rounded: NDArray[Any] = values.astype(dtype, copy=False)
    if dtype.kind == "f" and not np.isfinite(rounded).all():
        largest = np.finfo(dtype).max
        rounded = rounded.clip(-largest, largest)
    return rounded
