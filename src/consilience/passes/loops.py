"""Which loops are in use: the compiled ones, or numpy where they could not be built."""

from __future__ import annotations

import os
from types import ModuleType

from consilience.passes import plain


def _compiled() -> ModuleType | None:
    try:
        from consilience.passes import _loops
    except ImportError:  # there was no compiler when this was installed
        return None
    return _loops


compiled = _compiled()
# The variable is for tests, and for users who suspect the compiled loops.
current = plain if compiled is None or os.environ.get("CONSILIENCE_PLAIN") else compiled


def described() -> str:
    """Return which loops are in use, in words."""
    if current is plain:
        return "loops in numpy, not compiled"
    return f"compiled loops ({current.in_use()})"
