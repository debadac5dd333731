"""Finds the party that made a round fail, by trying each update alone.

Parties send trees and arrays of any kind, and nobody can foresee all they may do to the code that
reads them. But a party whose update fails alone is to blame.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from consilience.engines.aggregate import aggregate
from consilience.errors import ConsilienceError, UpdateError
from consilience.text import told
from consilience.updates.adapters import LoRA


def tried_alone(
    updates: Mapping[str, Any], center: Any = None, adapters: LoRA | None = None
) -> dict[str, Any]:
    """Return the updates; one that fails alone is replaced by the error."""
    return {party: _tried(party, update, center, adapters) for party, update in updates.items()}


def _tried(party: str, update: Any, center: Any, adapters: LoRA | None) -> Any:
    try:
        aggregate({party: update}, "mean", None, center, adapters=adapters)
    except ConsilienceError:
        pass  # it is rejected in the usual way later
    except Exception as error:
        return UpdateError(f"it cannot be read ({told(error, 200)})")
    return update
