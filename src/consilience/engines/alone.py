"""Who made a round fail: found by trying each update by itself.

Parties send trees and arrays of any kind. What they can do to the code that reads them cannot all
be foreseen, but it need not be: whoever makes it fail alone is to blame.
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
    """Return the updates; in the place of one that fails by itself, the error that says so."""
    return {party: _tried(party, update, center, adapters) for party, update in updates.items()}


def _tried(party: str, update: Any, center: Any, adapters: LoRA | None) -> Any:
    try:
        aggregate({party: update}, "mean", None, center, adapters=adapters)
    except ConsilienceError:
        pass  # it is rejected in good order, also among others
    except Exception as error:
        return UpdateError(f"it cannot be read ({told(error, 200)})")
    return update
