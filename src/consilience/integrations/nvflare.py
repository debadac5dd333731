"""An aggregator for NVIDIA FLARE that names the bad parties, and survives them.

    from consilience.integrations.nvflare import ConsilienceAggregator

    recipe = NumpyFedAvgRecipe(..., aggregator=ConsilienceAggregator(record="run.jsonl"))

FLARE keeps the model and counts the rounds; here is what becomes of what the clients send.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from consilience.errors import UpdateError
from consilience.estimators.catalogue import DEFAULT
from consilience.integrations.metrics import sample_counts, typical_metrics
from consilience.integrations.rounds import Rounds
from consilience.memory import Memory
from consilience.require import Require
from consilience.text import shown

try:
    from nvflare.apis.fl_constant import FLMetaKey
    from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
    from nvflare.app_common.aggregators.model_aggregator import ModelAggregator
    from nvflare.app_common.app_constant import AppConstants
except ImportError as missing:
    raise ImportError(
        "this is an aggregator for NVIDIA FLARE, which is not installed: "
        "pip install 'consilience[nvflare]'"
    ) from missing

log = logging.getLogger("consilience")


class ConsilienceAggregator(ModelAggregator):  # type: ignore[misc]  # FLARE has no types
    """The consensus of what the clients of a round sent.

    method       a name, as of `consilience.aggregate`
    minimum      with fewer usable updates than this the model stays as it is
    memory       a file: what is known of the clients, kept after each round and read at the start
    record       a file: each round is added to it, for `consilience report`
    params_type  what clients send: "FULL" for parameters, "DIFF" for differences; whoever sends
                 the other is rejected
    trusted_counts  the numbers of steps are verified, and count in full
    require      what a round must have to change the model: the fields of `consilience.Require`,
                 such as {"parties": 3, "suspects": 0.3}
    tensors      names or patterns of the tensors to aggregate, or with "!" of those not to, which
                 stay as they are in the global model
    evidence     likewise, of those by which clients are judged
    adapters     "lora" or "rslora": clients send LoRA's factors, of any ranks, all with one alpha;
                 "auto": if the model has such tensors; None: they are tensors like others

    A client is known by its name in FLARE. (The arguments are plain, as FLARE writes them to JSON.)
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
    ) -> None:
        super().__init__()
        self.method, self.minimum, self.params_type = method, minimum, params_type
        self.memory, self.record, self.trusted_counts = memory, record, trusted_counts
        self.require, self.tensors, self.evidence = require, tensors, evidence
        self._require, self.adapters = None if require is None else Require(**require), adapters
        self._step = None if ParamsType(params_type) == ParamsType.FULL else 1.0
        self._rounds: Rounds | None = None
        self._sent: dict[str, list[FLModel]] = {}

    def accept_model(self, model: FLModel) -> None:
        """Take what a client sent; it is judged when all have been heard."""
        name = _meta(model).get("client_name")
        self._sent.setdefault(name if isinstance(name, str) else "nobody", []).append(model)

    def reset_stats(self) -> None:
        """Forget what was sent in the round that has ended."""
        self._sent = {}

    def aggregate_model(self) -> FLModel:
        """Return the consensus, or the model as it was if too little of use was sent."""
        if self._rounds is None:
            self._rounds = self._started()
        said: dict[str, Any] = {}
        rejected: dict[str, str] = {}
        for party, models in self._sent.items():
            try:
                said[party] = self._steps(models)
            except UpdateError as error:
                rejected[party] = str(error)
        counts, bad = sample_counts(said, "sample count")
        updates = {party: self._sent[party][0].params for party in said if party not in bad}
        rejected |= bad
        model = self._global_model()
        ended = self._rounds.close(self._round(), updates, model, counts, rejected)
        if ended.consensus and self.memory:
            self._keep(self._rounds.memory, self.memory)
        metrics = {p: self._sent[p][0].metrics for p in updates if p not in ended.rejected}
        self.reset_stats()
        whole = model is not None  # then the round's model is the next one, not a difference
        kind = "FULL" if whole else self.params_type if ended.consensus else "DIFF"
        return FLModel(
            params_type=kind,
            params=dict(ended.model or {}),
            metrics=typical_metrics(metrics, ended.weights) or None,
        )

    def _steps(self, models: list[FLModel]) -> Any:
        """Return how much a client says it did; raise if what it sent cannot count."""
        if len(models) > 1:
            raise UpdateError(f"{len(models)} results in one round: which counts is unknown")
        said = models[0].params_type
        if said != ParamsType(self.params_type):
            found = shown(getattr(said, "value", said))
            raise UpdateError(f"sent {found}, expected {self.params_type}")
        # FLARE's clients need not say how much they did.
        return _meta(models[0]).get(FLMetaKey.NUM_STEPS_CURRENT_ROUND, 1)

    def _keep(self, memory: Memory, path: str) -> None:
        try:
            memory.save(path)
        except OSError as error:  # rather a round that is forgotten than none
            log.error("the memory is not kept in %s: %s", path, error)

    def _started(self) -> Rounds:
        known = Memory.load(self.memory) if self.memory and Path(self.memory).exists() else Memory()
        return Rounds(
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

    def _global_model(self) -> dict[str, Any] | None:
        found = self.fl_ctx.get_prop(AppConstants.GLOBAL_MODEL) if self.fl_ctx else None
        return dict(found["weights"]) if found and found.get("weights") else None

    def _round(self) -> int:
        """Return the round's number in the record, from one on; FLARE counts from zero."""
        found = self.fl_ctx.get_prop(AppConstants.CURRENT_ROUND) if self.fl_ctx else None
        return 1 + int(found or 0)


def _meta(model: FLModel) -> dict[str, Any]:
    return model.meta if isinstance(model.meta, dict) else {}
