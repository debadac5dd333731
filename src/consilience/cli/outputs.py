"""What commands print about the files they write and about errors."""

from __future__ import annotations

from pathlib import Path

import typer
from rich.console import Console
from rich.text import Text

from consilience.errors import ConsilienceError
from consilience.text import shown

_LONGEST = 2000  # characters


def exists(path: Path) -> ConsilienceError:
    """Return the error for an output that exists already."""
    return ConsilienceError(f"{shown(path, _LONGEST)}: exists already; --force replaces it")


def written(path: Path | None) -> str:
    """Return the line that says which file was written."""
    return f"written: {shown(path, _LONGEST)}"


def fail(message: str) -> typer.Exit:
    """Print why a command did nothing; return its exit."""
    complain(message)
    return typer.Exit(2)


def complain(message: str) -> None:
    """Print what is wrong."""
    # As text: a foreign file name is neither markup nor an emoji.
    Console(stderr=True).print(Text(shown(message, _LONGEST), style="red"))
