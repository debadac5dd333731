"""An aggregator for NVIDIA FLARE that names the bad parties, and survives them.

    from consilience.integrations.nvflare import ConsilienceAggregator

    recipe = NumpyFedAvgRecipe(..., aggregator=ConsilienceAggregator(record="run.jsonl"))

FLARE keeps the model and counts the rounds; this combines what the clients send: FLModels (FedAvg),
or Shareables with a DXO in them (swarm learning, ScatterAndGather).
"""

from __future__ import annotations

import gc
import logging
from dataclasses import replace
from pathlib import Path
from threading import RLock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from consilience.engines.files.spool import Spool
from consilience.errors import ConsilienceError, UpdateError
from consilience.estimators.catalogue import DEFAULT
from consilience.integrations.metrics import sample_counts, typical_metrics
from consilience.integrations.rounds import Rounds
from consilience.memory import Memory
from consilience.require import Require
from consilience.text import shown, told
from consilience.updates.tensors import LARGEST_OF, as_numpy, tensor, to_bfloat16

try:
    from nvflare.apis.dxo import from_shareable
    from nvflare.apis.fl_constant import FLMetaKey, ReservedKey, ReturnCode
    from nvflare.apis.fl_context import FLContext
    from nvflare.apis.shareable import Shareable
    from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
    from nvflare.app_common.aggregators.model_aggregator import ModelAggregator
    from nvflare.app_common.app_constant import AppConstants
    from nvflare.app_common.utils.fl_model_utils import FLModelUtils, params_type_to_data_kind
except ImportError as missing:
    raise ImportError(
        "this is an aggregator for NVIDIA FLARE, which is not installed: "
        "pip install 'consilience[nvflare]'"
    ) from missing

log = logging.getLogger("consilience")


class ConsilienceAggregator(ModelAggregator):  # type: ignore[misc]  # FLARE has no types
    """The consensus of what the clients of a round sent.

    A client is known by its name in FLARE. (The arguments are plain, as FLARE stores them as JSON.)

    Args:
        method: a name, as for `consilience.aggregate`.
        minimum: with fewer usable updates than this the model stays as it is.
        memory: a file with what is known about the clients, read at the start and written after
            each round.
        record: a file. Each round is added to it, for ``consilience report``.
        params_type: what clients send: "FULL" for parameters, "DIFF" for differences. Whoever sends
            the other is rejected.
        trusted_counts: the numbers of steps are verified, and count in full.
        require: what a round must have to change the model: the fields of `consilience.Require`,
            such as ``{"parties": 3, "suspects": 0.3}``.
        tensors: names or patterns of the tensors to aggregate, or with "!" of those not to, which
            stay as they are in the global model.
        evidence: likewise, the tensors by which clients are judged.
        adapters: "lora" or "rslora" if clients send LoRA's factors, of any ranks, all with one
            alpha; "auto" decides by the model's tensors; None treats them like other tensors.
        spool: a folder. What clients send is kept there during a round, not in memory.
    """

    def __init__(
        self,
        method: str = DEFAULT,
        minimum: int = 2,
        memory: str | None = None,
        record: str | None = None,
        params_type: str = "FULL",
        trusted_counts: bool = False,
        require: dict[str, float] | None = None,
        tensors: list[str] | None = None,
        evidence: list[str] | None = None,
        adapters: str | None = "auto",
        spool: str | None = None,
    ) -> None:
        super().__init__()
        self.method, self.minimum, self.params_type = method, minimum, params_type
        self.memory, self.record, self.trusted_counts = memory, record, trusted_counts
        self.require, self.tensors, self.evidence = require, tensors, evidence
        self.adapters, self.spool = adapters, spool
        self._require = None if require is None else Require(**require)
        self._step = None if ParamsType(params_type) == ParamsType.FULL else 1.0
        self._spool: Spool | None = None
        self._rounds: Rounds | None = None
        self._sent: dict[str, list[FLModel | UpdateError]] = {}
        # In a swarm, results arrive in several threads, and the round may end meanwhile.
        self._turn = RLock()

    def accept(self, shareable: Shareable, fl_ctx: FLContext) -> bool:
        """Take a client's Shareable; tell whether it holds a model of this round."""
        self.fl_ctx = fl_ctx
        party, found = _sender(shareable, fl_ctx), None
        try:
            found = self._read(shareable, party)
        except UpdateError as error:
            self._refuse(party, error)
        except Exception as error:  # a foreign Shareable may raise anything
            self._refuse(party, UpdateError(f"sent what cannot be read: {told(error)}"))
        if found is not None:
            self.accept_model(found)
        return found is not None

    def aggregate(self, fl_ctx: FLContext) -> Shareable:
        """Return the consensus as a Shareable of the kind that clients send, as FedOpt needs."""
        self.fl_ctx = fl_ctx
        return FLModelUtils.to_shareable(self._ended(moved=self._step is None))

    def _read(self, shareable: Shareable, party: str) -> FLModel | None:
        """Return what a client sent in this round; None if it belongs to another round."""
        code = shareable.get_return_code(ReturnCode.OK)
        if code != ReturnCode.OK:
            raise UpdateError(f"sent no update, but {shown(code)}")
        round = shareable.get_cookie(AppConstants.CONTRIBUTION_ROUND)
        if round is not None and int(round) != self._round() - 1:
            # Being late makes nobody a suspect. The result for this round may still come.
            late = int(round) + 1
            log.warning("party %s: a result of round %d is too late", shown(party), late)
            return None
        dxo = from_shareable(shareable)
        expected = params_type_to_data_kind[self.params_type]
        if dxo.data_kind != expected:
            found = shown(getattr(dxo.data_kind, "value", dxo.data_kind))
            raise UpdateError(f"sent {found}, expected {expected.value}")
        metrics = dxo.meta.get(FLMetaKey.INITIAL_METRICS)
        return FLModel(
            params_type=self.params_type,
            params=dxo.data,
            metrics=metrics if isinstance(metrics, dict) else None,
            meta={**dxo.meta, "client_name": party},
        )

    def accept_model(self, model: FLModel) -> None:
        """Take what a client sent; it is judged when all have been heard."""
        name = _meta(model).get("client_name")
        party = name if isinstance(name, str) else "nobody"
        found: FLModel | UpdateError = model
        with self._turn:
            try:
                if self.spool is not None:
                    model.params = self._spooled(model.params, self.spool)
            except UpdateError as error:
                found = error
            self._sent.setdefault(party, []).append(found)

    def _refuse(self, party: str, why: UpdateError) -> None:
        with self._turn:
            self._sent.setdefault(party, []).append(why)

    def _spooled(self, params: Any, folder: str) -> Any:
        """Return parameters with their tensors in a file."""
        if self._spool is None:  # here, as the job may be defined on another machine
            try:
                self._spool = Spool(folder)
            except ConsilienceError as error:
                raise UpdateError(f"it could not be spooled: {error}") from None
        gc.collect()  # FLARE leaves reference cycles of earlier results
        return self._spool.put(params)

    def reset_stats(self) -> None:
        """Forget what was sent in the round that ended."""
        self._sent = {}
        if self._spool is not None:
            self._spool.clear()

    def aggregate_model(self) -> FLModel:
        """Return the consensus, or the old model if too few usable updates came."""
        return self._ended(moved=True)

    def _ended(self, moved: bool) -> FLModel:
        """End the round; return the next model if ``moved``, else the difference to it."""
        with self._turn:
            return self._closed(moved)

    def _closed(self, moved: bool) -> FLModel:
        if self._rounds is None:
            self._rounds = self._started(moved)
        sent: dict[str, FLModel] = {}
        rejected: dict[str, str] = {}
        for party, results in self._sent.items():
            try:
                sent[party] = self._only(results)
            except UpdateError as error:
                rejected[party] = str(error)
        # FLARE's clients need not report their steps.
        said = {p: _meta(m).get(FLMetaKey.NUM_STEPS_CURRENT_ROUND, 1) for p, m in sent.items()}
        counts, bad = sample_counts(said, "sample count")
        updates = {party: m.params for party, m in sent.items() if party not in bad}
        start = self._global_model()
        model = _arrays(start)
        if model is not None and not moved:
            model = {name: np.zeros(v.shape, v.dtype) for name, v in model.items()}
        ended = self._rounds.close(self._round(), updates, model, counts, {**rejected, **bad})
        if ended.consensus and self.memory:
            self._keep(self._rounds.memory, self.memory)
        metrics = {p: sent[p].metrics for p in updates if p not in ended.rejected}
        self.reset_stats()
        value = _alike(ended.model or {}, start or {})
        if start is not None and not moved:  # a difference of counters or masks has no meaning
            value = {n: v for n, v in value.items() if tensor(v).kind == "float"}
        whole = moved and start is not None  # the next model, not a difference
        kind = "FULL" if whole else self.params_type if ended.consensus else "DIFF"
        return FLModel(
            params_type=kind,
            params=value,
            metrics=typical_metrics(metrics, ended.weights) or None,
        )

    def _only(self, results: list[FLModel | UpdateError]) -> FLModel:
        """Return what a client sent; raise if it cannot be used."""
        if len(results) > 1:
            raise UpdateError(f"{len(results)} results in one round: which counts is unknown")
        (only,) = results
        if isinstance(only, UpdateError):
            raise only
        if only.params_type != ParamsType(self.params_type):
            found = shown(getattr(only.params_type, "value", only.params_type))
            raise UpdateError(f"sent {found}, expected {self.params_type}")
        return only

    def _keep(self, memory: Memory, path: str) -> None:
        try:
            memory.save(path)
        except OSError as error:  # an unsaved memory is better than no round
            log.error("the memory is not kept in %s: %s", path, error)

    def _started(self, moved: bool) -> Rounds:
        known = Memory.load(self.memory) if self.memory and Path(self.memory).exists() else Memory()
        rounds = Rounds(
            self.method,
            known,
            self.minimum,
            self.record,
            step=self._step,
            adapters=self.adapters,
            log=log,
            trusted_counts=self.trusted_counts,
            require=self._require,
            tensors=self.tensors,
            evidence=self.evidence,
        )
        if moved:
            return rounds
        # The model of such a round is itself a difference, and starts at zero.
        return replace(rounds, step=None, adapters=None)

    def _global_model(self) -> dict[str, Any] | None:
        found = self.fl_ctx.get_prop(AppConstants.GLOBAL_MODEL) if self.fl_ctx else None
        return dict(found["weights"]) if found and found.get("weights") else None

    def _round(self) -> int:
        """Return the round's number in the record, from one on; FLARE counts from zero."""
        found = self.fl_ctx.get_prop(AppConstants.CURRENT_ROUND) if self.fl_ctx else None
        return 1 + int(found or 0)


def _meta(model: FLModel) -> dict[str, Any]:
    return model.meta if isinstance(model.meta, dict) else {}


def _sender(shareable: Shareable, fl_ctx: FLContext) -> str:
    """Return FLARE's name of the client."""
    try:
        peer = fl_ctx.get_peer_context()
        name = peer.get_identity_name() if peer else None
        name = name or shareable.get_peer_prop(ReservedKey.IDENTITY_NAME, None)
    except Exception:  # foreign headers may not even be a mapping
        name = None
    return name if name and isinstance(name, str) else "nobody"


def _arrays(model: dict[str, Any] | None) -> dict[str, NDArray[Any]] | None:
    """Return a model as numpy arrays; bfloat16 of another library as float32."""
    if model is None:
        return None
    return {name: x if isinstance(x, np.ndarray) else as_numpy(x) for name, x in model.items()}


def _alike(model: Any, start: dict[str, Any]) -> dict[str, Any]:
    """Return a model in the libraries and dtypes of the round's initial one."""
    found = dict(model)
    for name, value in model.items():
        if name in start and not isinstance(start[name], np.ndarray):
            seen = tensor(start[name])
            flat = np.ascontiguousarray(value).reshape(-1)
            if seen.dtype == "bfloat16":  # what float32 can hold may be beyond its range
                largest = LARGEST_OF[seen.dtype]
                flat = to_bfloat16(flat.clip(-largest, largest))
            found[name] = seen.rebuild(flat)
    return found
