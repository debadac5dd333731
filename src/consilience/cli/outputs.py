"""What commands say: of the files they write, and of what went wrong."""

from __future__ import annotations

from pathlib import Path

import typer
from rich.console import Console
from rich.text import Text

from consilience.errors import ConsilienceError
from consilience.text import shown

_LONGEST = 2000  # characters


def exists(path: Path) -> ConsilienceError:
    """Return the error of a command that would replace a file."""
    return ConsilienceError(f"{shown(path, _LONGEST)}: exists already; --force replaces it")


def written(path: Path | None) -> str:
    """Return the line of a command that wrote a file."""
    return f"written: {shown(path, _LONGEST)}"


def fail(message: str) -> typer.Exit:
    """Say why a command did nothing; return how it ends."""
    complain(message)
    return typer.Exit(2)


def complain(message: str) -> None:
    """Say what is not as it should be."""
    # As text: whatever a stranger's file is called is neither markup nor an emoji.
    Console(stderr=True).print(Text(shown(message, _LONGEST), style="red"))
