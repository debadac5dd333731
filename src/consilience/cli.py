"""The command line."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

import consilience

app = typer.Typer(
    help="Infer the truth from sources nobody can vouch for.",
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,
)


@app.command()
def demo(
    seed: Annotated[int, typer.Option(help="Which random data to draw.")] = 0,
) -> None:
    """Aggregate a small federated regression with liars in it, by every method."""
    from consilience.lab.demo import run

    run(Console(), seed)


@app.command()
def methods() -> None:
    """List the methods that can be chosen by name."""
    for name in consilience.methods():
        typer.echo(name)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"consilience {consilience.__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run the command line."""
    app()
