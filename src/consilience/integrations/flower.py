"""A strategy for Flower that names the bad parties, and survives them.

    from consilience.integrations.flower import ConsilienceStrategy

    strategy = ConsilienceStrategy(min_train_nodes=10, checkpoint="run", record="run.jsonl")
    strategy.start(grid, ArrayRecord(model.state_dict()), num_rounds=20)

It takes the arguments of Flower's FedAvg and does the same, but for what becomes of the replies:
each is judged by itself, and the consensus of those that can be used is the next global model.
docs/flower.md has the rest.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from consilience.consensus import Consensus
from consilience.errors import ConsilienceError, UpdateError
from consilience.estimators.average import Mean
from consilience.estimators.catalogue import DEFAULT, Method, resolve
from consilience.integrations.metrics import sample_counts, typical_metrics
from consilience.integrations.ranks import Ranks
from consilience.integrations.rounds import Rounds
from consilience.memory import Memory
from consilience.require import Require
from consilience.text import shown, told
from consilience.updates.adapters import LoRA
from consilience.updates.names import Patterns

try:
    from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
    from flwr.serverapp import Grid
    from flwr.serverapp.strategy import FedAvg, Result
    from flwr.serverapp.strategy.strategy_utils import aggregate_metricrecords
except ImportError as missing:
    raise ImportError(
        "this is a strategy for Flower, which is not installed: pip install 'consilience[flower]'"
    ) from missing

from consilience.integrations import flower_replies as replied
from consilience.integrations.flower_log import tables
from consilience.integrations.flower_nodes import Nodes
from consilience.integrations.flower_spool import OneByOne, SpooledReplies

log = logging.getLogger("flwr")  # Flower shows its lines to those who follow a run

_SIMULATED = "InMemoryGrid"  # Flower's simulations, which draw new node ids in every run
# What Flower's result keeps by round, counted from the start of the process.
_BY_ROUND = ("train_metrics_clientapp", "evaluate_metrics_clientapp", "evaluate_metrics_serverapp")

Evaluate = Callable[[int, ArrayRecord], MetricRecord | None]


class ConsilienceStrategy(FedAvg):
    """FedAvg that trusts each party as far as it deserves.

    It takes the arguments of FedAvg and those below. ``weighted_by_key=None`` ignores sample
    counts. Metrics of the parties are combined by their weighted median, unless you give a function
    of your own.

    Args:
        method: as for `consilience.aggregate`.
        memory: what is known about the parties; a new one if not given.
        checkpoint: a folder. Each round is kept there, and a run started again continues with the
            next round.
        record: a file. Each round is added to it, for ``consilience report``.
        party_key: where a party's id is found in its replies, such as "partition-id", if it is not
            to be the node id (a simulation draws new node ids in every run).
        step: None if parties send parameters. A number if they send differences (1) or gradients
            (minus the learning rate): the model moves by this many times the consensus.
        adapters: what LoRA's factors mean, as for `consilience.aggregate`. "auto" finds them by
            their names, with one alpha for all; None treats them like other tensors.
        own_ranks: each party gets the global adapter at the ranks of the adapter that it sent last;
            a newcomer gets it as it is.
        min_good: with fewer good replies than this the global model stays as it is. Not FedAvg's
            ``min_train_nodes``, or one party that sends rubbish could stop the federation.
        trusted_counts: sample counts are verified, and count in full.
        require: what a round must have to change the global model, as for `consilience.aggregate`.
        tensors: names or patterns of the tensors to aggregate, or with "!" of those not to, which
            stay as they are in the global model.
        evidence: likewise, the tensors by which parties are judged.
        spool: a folder. Replies are kept there during a round, so that only one at a time is in
            memory (functions that combine metrics then get replies without arrays).
        track: a TensorBoard writer or the mlflow module, which gets the numbers of every round.
    """

    def __init__(
        self,
        *fedavg: Any,
        method: str | Method = DEFAULT,
        memory: Memory | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
        record: str | os.PathLike[str] | None = None,
        party_key: str | None = None,
        step: float | None = None,
        adapters: LoRA | str | None = "auto",
        own_ranks: bool = False,
        min_good: int | None = None,
        trusted_counts: bool = False,
        require: Require | None = None,
        tensors: Patterns | None = None,
        evidence: Patterns | None = None,
        spool: str | os.PathLike[str] | None = None,
        track: Any = None,
        **more: Any,
    ) -> None:
        super().__init__(*fedavg, **more)
        if own_ranks and adapters is None:
            raise ConsilienceError("own_ranks is for adapters, and adapters is None: say which")
        self.rounds = Rounds(
            method=method,
            memory=Memory() if memory is None else memory,
            minimum=max(1, min(2, self.min_train_nodes)) if min_good is None else min_good,
            record=record,
            checkpoint=checkpoint,
            step=step,
            adapters=adapters,
            log=log,
            trusted_counts=trusted_counts,
            require=require,
            tensors=tensors,
            evidence=evidence,
            track=track,
        )
        self._before = 0  # rounds finished by an earlier run of this federation
        self._nodes = Nodes(party_key, self.rounds.names)
        self._ranks = Ranks() if own_ranks else None
        self._spooled = None if spool is None else SpooledReplies(spool)
        self._sent: ArrayRecord | None = None
        self._at_the_wheel = False  # whether this strategy runs its rounds itself
        self._grid_is_ours = False  # whether replies come one by one, after everything was sent

    @property
    def memory(self) -> Memory:
        """What is known of the parties."""
        return self.rounds.memory

    @property
    def consensus(self) -> Consensus | None:
        """The beliefs of the last round, if it had any."""
        return None if self.rounds.last is None else self.rounds.last.consensus

    @property
    def reasons(self) -> dict[str, str]:
        """Why parties were rejected or stood out in the last round."""
        return {} if self.rounds.last is None else self.rounds.last.reasons

    def summary(self) -> None:
        """Log how replies will be combined."""
        log.info("\t├──> Consilience: %s", self.rounds.method)
        for name in ("record", "checkpoint"):
            path = getattr(self.rounds, name)
            if path is not None:  # in full: the server may run in a folder of its own
                log.info("\t├──> %s: %s", name.capitalize(), shown(Path(path).absolute(), 1000))
        super().summary()

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Evaluate | None = None,
    ) -> Result:
        """Run the rounds, or those that are left if a checkpoint is found."""
        self._at_the_wheel = True
        found = self.rounds.resume(replied.tensors(initial_arrays))
        if found is not None:
            self._before = found.round
            if type(grid).__name__ == _SIMULATED:
                self.rounds.names.clear()
            initial_arrays = replied.record(found.model)
            log.info(
                "Going on after round %d of %d, from %s",
                found.round,
                num_rounds,
                self.rounds.checkpoint,
            )
            if found.round >= num_rounds:
                log.warning("Nothing is left to do: ask for more rounds, or name another folder")
        if self._spooled is not None:
            # A copy, as its arrays are released while replies come; the caller keeps its own.
            initial_arrays = ArrayRecord(dict(initial_arrays))
            grid, self._grid_is_ours = OneByOne(grid), True
        with tables(lambda: self.rounds.last):
            result = super().start(
                grid,
                initial_arrays,
                max(0, num_rounds - self._before),
                timeout,
                train_config,
                evaluate_config,
                None if evaluate_fn is None else self._evaluating(evaluate_fn),
            )
        if not result.arrays:  # no round was left to run
            result.arrays = initial_arrays
        for kind in _BY_ROUND:
            by_round = {r + self._before: found for r, found in getattr(result, kind).items()}
            setattr(result, kind, by_round)
        return result

    def _evaluating(self, evaluate: Evaluate) -> Evaluate:
        def evaluate_fn(server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
            found = evaluate(server_round + self._before, arrays)
            accuracy = None if found is None else found.get("accuracy")
            if isinstance(accuracy, float) and server_round > 0:
                self.rounds.evaluated(server_round + self._before, accuracy)
            return found

        return evaluate_fn

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Ask as FedAvg does, and remember whom was sent what."""
        server_round += self._before
        if not self._at_the_wheel:
            self._warn_of_wrappers()
        asked = list(super().configure_train(server_round, arrays, config, grid))
        asked = self._at_own_ranks(asked, arrays)
        self._nodes.ask(asked)
        self._sent = arrays
        return asked

    def _at_own_ranks(self, asked: list[Message], arrays: ArrayRecord) -> list[Message]:
        """Return the messages with the global adapter at each party's own ranks."""
        lora = self.rounds.adapters
        if self._ranks is None or not isinstance(lora, LoRA):
            return asked
        parties = [self._nodes.name(message.metadata.dst_node_id) for message in asked]
        try:
            fitted = self._ranks.fitted(replied.tensors(arrays), parties, lora)
        except Exception as error:  # a rank is not worth a run
            log.error("the global adapter goes out at its own ranks: %s", told(error))
            return asked
        records: dict[str, ArrayRecord] = {}
        for some, adapter in fitted:
            records |= dict.fromkeys(some, replied.record(adapter))
        return [
            self._with(message, records[party]) if party in records else message
            for party, message in zip(parties, asked, strict=True)
        ]

    def _with(self, message: Message, arrays: ArrayRecord) -> Message:
        content = RecordDict({**message.content, self.arrayrecord_key: arrays})
        to = message.metadata
        return Message(content, dst_node_id=to.dst_node_id, message_type=to.message_type)

    def _warn_of_wrappers(self) -> None:
        """Warn once of what does not work if another strategy runs the rounds around this one."""
        self._at_the_wheel = True
        if self.rounds.checkpoint is not None:
            log.warning("another strategy runs the rounds: no checkpoint is taken up")
        if not isinstance(resolve(self.rounds.method), Mean) or self.weighted_by_key:
            log.warning(
                "another strategy runs the rounds: if it adds noise for differential privacy, too "
                "little of it, as %s weighs by what parties send (docs/flower.md)",
                self.rounds.method,
            )

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Ask as FedAvg does, and remember whom was sent what."""
        server_round += self._before
        asked = list(super().configure_evaluate(server_round, arrays, config, grid))
        asked = self._at_own_ranks(asked, arrays)
        self._nodes.ask(asked)
        return asked

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Return the consensus of the usable replies, and metrics about it."""
        if self.fraction_train == 0:
            return None, None
        try:
            return self._aggregated(server_round + self._before, replies)
        finally:
            self._sent = None  # frees the memory of a model, which may be much
            if self._spooled is not None:
                self._spooled.clear()

    def _aggregated(
        self, round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        read = replied.update
        sent: Any = None if self._sent is None else replied.tensors(self._sent)
        lent = False
        if self._spooled is not None:
            replies, read = self._spooled.take(replies), self._spooled.update
            if self._sent is not None and self._grid_is_ours:
                sent, lent = self._spooled.lend(self._sent), True
        good, rejected = self._nodes.answers(replies)
        updates: dict[str, Any] = {}
        counts: dict[str, float] = {}
        for party, message in good.items():
            try:
                updates[party] = read(message)
            except UpdateError as error:
                rejected[party] = str(error)
        if self.weighted_by_key:
            said = {p: replied.metrics(good[p].content).get(self.weighted_by_key) for p in updates}
            counts, bad = sample_counts(said, self.weighted_by_key)
            updates = {party: update for party, update in updates.items() if party not in bad}
            rejected |= bad
        ended = self.rounds.close(round, updates, sent, counts if counts else None, rejected)
        usable = {party: x for party, x in updates.items() if party not in ended.rejected}
        if self._ranks is not None:
            self._ranks.learn(usable)
        metrics = self._metrics(
            {party: good[party] for party in usable},
            ended.weights,
            self.train_metrics_aggr_fn,
        )
        metrics.update(ended.numbers)
        if ended.consensus is None and not lent:
            return self._sent, metrics
        return replied.record(ended.model or {}), metrics

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Combine what the parties say about the model, weighted as in the last training round."""
        if self.fraction_evaluate == 0:
            return None
        good, rejected = self._nodes.answers(replies)
        for party, message in good.items():
            if message.has_error():
                rejected[party] = f"error {message.error.code}"
        for party, reason in rejected.items():
            log.warning(
                "round %d: evaluation by party %s rejected: %s",
                server_round + self._before,
                shown(party),
                shown(reason, 200),
            )
        usable = {party: message for party, message in good.items() if party not in rejected}
        known = {} if self.rounds.last is None else self.rounds.last.weights
        newcomer = 1.0 / max(1, len(known))
        weights = {party: known.get(party, newcomer) for party in usable}
        return self._metrics(usable, weights, self.evaluate_metrics_aggr_fn) or None

    def _metrics(
        self, messages: dict[str, Message], weights: dict[str, float], combine: Any
    ) -> MetricRecord:
        if combine is aggregate_metricrecords:  # FedAvg's default trusts everything
            sent = {party: replied.metrics(m.content) for party, m in messages.items()}
            combined = typical_metrics(sent, weights)
            for key in (self.weighted_by_key, self._nodes.party_key or ""):  # not to be averaged
                combined.pop(key, None)
            return MetricRecord(combined)
        try:
            found: MetricRecord = combine(
                [message.content for message in messages.values()], self.weighted_by_key
            )
            return found
        except Exception as error:  # the metrics of parties must not end the run
            log.warning("the metrics could not be combined: %s", told(error, 200))
            return MetricRecord()
