"""Attacks as a filter of NVIDIA FLARE's clients, to test a federation of your own.

from consilience.lab.nvflare import AttackFilter

recipe.add_client_output_filter(AttackFilter("ipm-10", clients=["site-5"]), tasks=["train"])
"""

from __future__ import annotations

from typing import Any

import numpy as np

from consilience.arrays import Array
from consilience.lab.attacks.lone import LoneAttack

try:
    from nvflare.apis.dxo import DXO, DataKind, from_shareable
    from nvflare.apis.dxo_filter import DXOFilter
    from nvflare.apis.event_type import EventType
    from nvflare.apis.fl_constant import FLContextKey
    from nvflare.apis.fl_context import FLContext
    from nvflare.apis.shareable import Shareable
    from nvflare.app_common.app_constant import AppConstants
except ImportError as missing:
    raise ImportError(
        "this is a filter for NVIDIA FLARE, which is not installed: "
        "pip install 'consilience[nvflare]'"
    ) from missing


class AttackFilter(DXOFilter):  # type: ignore[misc]  # FLARE has no types
    """Lets the client train, and sends something else: a filter for task results.

    (The arguments are plain, as FLARE stores them as JSON.)

    Args:
        attack: the name of an attack (docs/flower.md has the list).
        clients: the names of those that attack; None: every client with this filter.
        seed: makes random numbers repeatable.
        settings: of the attack, such as ``{"tau": 3.0}`` for "ipm".
    """

    def __init__(
        self,
        attack: str,
        clients: list[str] | None = None,
        seed: int | None = None,
        settings: dict[str, Any] | None = None,
    ) -> None:
        super().__init__([DataKind.WEIGHTS, DataKind.WEIGHT_DIFF], None)
        self.attack, self.clients, self.seed, self.settings = attack, clients, seed, settings
        self._attack = LoneAttack(attack, seed, **(settings or {}))
        self._start: dict[str, Array] = {}
        self._round = 0

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Remember the model sent to the client, as a filter for results does not see it."""
        if event_type == EventType.BEFORE_TASK_EXECUTION and self._attacks(fl_ctx):
            task = fl_ctx.get_prop(FLContextKey.TASK_DATA)
            try:
                model = from_shareable(task).data
            except ValueError:  # a task without a model
                return
            # A copy, as a client may train in place.
            self._start = {name: np.array(values) for name, values in model.items()}
            self._round = 1 + int(task.get_header(AppConstants.CURRENT_ROUND) or 0)

    def process_dxo(self, dxo: DXO, shareable: Shareable, fl_ctx: FLContext) -> DXO | None:
        """Return what is sent instead of the result; None: the result itself."""
        if not self._attacks(fl_ctx):
            return None
        start = self._start if dxo.data_kind == DataKind.WEIGHTS else None
        dxo.data = self._attack(dxo.data, start, self._round)
        return dxo

    def _attacks(self, fl_ctx: FLContext) -> bool:
        return self.clients is None or fl_ctx.get_identity_name() in self.clients
