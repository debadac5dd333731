"""What every command that writes files says of them."""

from __future__ import annotations

from pathlib import Path

from consilience.errors import ConsilienceError
from consilience.text import shown

_PATH = 2000  # characters


def exists(path: Path) -> ConsilienceError:
    """Return the error of a command that would replace a file."""
    return ConsilienceError(f"{shown(path, _PATH)}: exists already; --force replaces it")


def written(path: Path | None) -> str:
    """Return the line of a command that wrote a file."""
    return f"written: {shown(path, _PATH)}"
