"""The command line."""

from __future__ import annotations

from pathlib import Path
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
    seed: Annotated[int, typer.Option(help="Which split and which lies to draw.")] = 0,
    figure: Annotated[Path, typer.Option(help="Where the figure goes.")] = Path(
        "consilience-demo.png"
    ),
) -> None:
    """Aggregate five honest parties and five liars on real MNIST, by several methods."""
    from consilience.lab.demo import run
    from consilience.lab.fetch import DataUnavailableError

    if not figure.parent.is_dir() or figure.suffix not in {".png", ".svg", ".pdf"}:
        raise _fail(f"{figure}: expected a .png, .svg or .pdf file in a folder that exists")
    try:
        run(Console(), seed, figure)
    except DataUnavailableError as error:
        raise _fail(str(error)) from None


@app.command()
def reproduce(
    what: Annotated[
        str, typer.Argument(help="table1, fig1, fig2, fig3, one-round or all.")
    ] = "all",
    full: Annotated[
        bool, typer.Option("--full/--quick", help="The whole protocol, or a look at everything.")
    ] = False,
    out: Annotated[Path, typer.Option(help="Where cells, figures and the page go.")] = Path(
        "reproduction"
    ),
    seeds: Annotated[int | None, typer.Option(min=1, help="How many repetitions.")] = None,
) -> None:
    """Run the paper's experiments on the real data. Finished cells are not run again."""
    try:
        from consilience.lab.experiments import FULL, QUICK
        from consilience.lab.reproduce import CHOICES
        from consilience.lab.reproduce import reproduce as run
    except ImportError as error:
        raise _fail(f"{error.msg}. The experiments need: pip install 'consilience[lab]'") from None
    if what not in CHOICES:
        raise _fail(f"no experiment is called {what!r}; choose from {', '.join(CHOICES)}")
    scale = FULL if full else QUICK
    console = Console()
    try:
        page = run(what, scale, seeds or scale.seeds, out, console)
    except KeyboardInterrupt:
        console.print("Stopped. Finished cells are kept: the same command goes on from here.")
        raise typer.Exit(130) from None
    console.print(f"The page: {page}")


@app.command()
def methods() -> None:
    """List the methods that can be chosen by name."""
    for name in consilience.methods():
        typer.echo(name)


def _fail(message: str) -> typer.Exit:
    Console(stderr=True).print(message, style="red", markup=False)
    return typer.Exit(2)


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
