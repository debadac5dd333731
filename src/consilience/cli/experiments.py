"""The commands that measure: the demo, the paper's experiments, and the benchmarks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from rich.console import Console

from consilience.cli.outputs import fail
from consilience.errors import ConsilienceError

T = TypeVar("T")

bench = typer.Typer(help="Measure the methods.", no_args_is_help=True)

# Options that several commands have.
_Methods = Annotated[
    str, typer.Option(help="With commas; also told-NAME, flame, foolsgold, byzfl-NAME.")
]
_Heterogeneity = Annotated[
    str, typer.Option(help="Of iid, dirichlet-ALPHA, one-class, gamma-SHARE, with commas.")
]
_Adversaries = Annotated[
    str, typer.Option(help="How many beside 10 honest parties; numbers with commas.")
]
_Seeds = Annotated[int | None, typer.Option(min=1, help="How many repetitions.")]
_Out = Annotated[Path, typer.Option(help="Where cells, figures and the page go.")]
_Workers = Annotated[int, typer.Option(min=1, help="Processes, each with one thread.")]


def demo(
    seed: Annotated[int, typer.Option(help="Which split and which lies to draw.")] = 0,
    alpha: Annotated[
        float, typer.Option(min=0.2, help="How alike their data are: Dirichlet, less is less.")
    ] = 1.0,
    figure: Annotated[Path, typer.Option(help="Where the figure goes.")] = Path(
        "consilience-demo.png"
    ),
    page: Annotated[Path, typer.Option(help="Where the page of the run goes.")] = Path(
        "consilience-demo.html"
    ),
) -> None:
    """Train on real MNIST among the noisy, the hostile and the broken, by several methods."""
    from consilience.lab.demo import run
    from consilience.lab.fetch import DataUnavailableError

    if not figure.parent.is_dir() or figure.suffix not in {".png", ".svg", ".pdf"}:
        raise fail(f"{figure}: expected a .png, .svg or .pdf file in a folder that exists")
    if not page.parent.is_dir() or page.suffix != ".html":
        raise fail(f"{page}: expected an .html file in a folder that exists")
    try:
        run(Console(), seed, alpha, figure, page)
    except DataUnavailableError as error:
        raise fail(str(error)) from None


def reproduce(
    what: Annotated[
        str,
        typer.Argument(
            help="table1, fig1, one-round, fig2, fig3, random-local, all, or page: nothing new."
        ),
    ] = "all",
    full: Annotated[
        bool, typer.Option("--full/--quick", help="The whole protocol, or a look at everything.")
    ] = False,
    out: _Out = Path("reproduction"),
    seeds: _Seeds = None,
    finished: Annotated[
        Path | None,
        typer.Option(
            "--from",
            exists=True,
            dir_okay=False,
            help="Cells finished elsewhere: the cells.jsonl of another run.",
        ),
    ] = None,
    workers: _Workers = 1,
) -> None:
    """Run the paper's experiments on the real data. Finished cells are not run again."""
    with _extra("lab"):
        from consilience.lab.experiments import FULL, QUICK
        from consilience.lab.reproduce import CHOICES
        from consilience.lab.reproduce import reproduce as run
    if what not in CHOICES:
        raise fail(f"no experiment is called {what!r}; choose from {', '.join(CHOICES)}")
    scale = FULL if full else QUICK
    with _resumable(out) as console:
        console.print(f"The page: {run(what, scale, seeds, out, console, finished, workers)}")


@bench.command()
def robustness(
    protocol: Annotated[
        str, typer.Option(help="mlp, ours, or byzfl, that of ByzFL's benchmark.")
    ] = "mlp",
    methods: _Methods = "",
    attacks: Annotated[
        str,
        typer.Option(help="Names with commas; none for no attack; NAME@N: search every N rounds."),
    ] = "",
    heterogeneity: _Heterogeneity = "",
    adversaries: _Adversaries = "",
    momentum: Annotated[str, typer.Option(help="Of the workers; numbers with commas.")] = "",
    rounds: Annotated[int | None, typer.Option(min=1, help="Training steps.")] = None,
    seeds: _Seeds = None,
    out: _Out = Path("robustness"),
    quick: Annotated[
        bool, typer.Option("--quick", help="A few methods, attacks and rounds.")
    ] = False,
    workers: _Workers = 1,
) -> None:
    """Train MNIST under attack, by every method. Finished cells are not run again."""
    with _extra("bench"):
        from consilience.lab.experiments.robustness import PLANS, QUICK
        from consilience.lab.robustness import bench as run
    if protocol not in PLANS:
        raise fail(f"no protocol is called {protocol!r}; choose from {', '.join(PLANS)}")
    with _mistakes():
        chosen = {
            "methods": _split(methods, str),
            "attacks": _split(attacks, str),
            "heterogeneity": _split(heterogeneity, str),
            "adversaries": _split(adversaries, int, "--adversaries takes whole numbers"),
            "momentum": _split(momentum, float, "--momentum takes numbers"),
            "rounds": rounds,
            "seeds": seeds,
        }
        plan = replace(PLANS[protocol], **(QUICK if quick else {}) | _given(chosen))
        plan.check()
    with _resumable(out) as console:
        console.print(f"The page: {run(plan, out, console, workers)}")


@bench.command()
def backdoors(
    methods: _Methods = "",
    kinds: Annotated[
        str, typer.Option(help="Of patch, central, semantic, replacement, constrained, rare.")
    ] = "",
    heterogeneity: _Heterogeneity = "",
    adversaries: _Adversaries = "",
    rounds: Annotated[int | None, typer.Option(min=1, help="Of 20 local steps each.")] = None,
    seeds: _Seeds = None,
    data: Annotated[str, typer.Option(help="mnist or fashion.")] = "mnist",
    out: _Out = Path("backdoors"),
    quick: Annotated[bool, typer.Option("--quick", help="A few methods, IID, the patch.")] = False,
    workers: _Workers = 1,
) -> None:
    """Train by federated averaging, with backdoors. Finished cells are not run again."""
    with _extra("bench"):
        from consilience.lab.backdoors import bench as run
        from consilience.lab.experiments.backdoors import PLAN, QUICK
    with _mistakes():
        chosen = {
            "methods": _split(methods, str),
            "kinds": _split(kinds, str),
            "heterogeneity": _split(heterogeneity, str),
            "adversaries": _split(adversaries, int, "--adversaries takes whole numbers"),
            "rounds": rounds,
            "seeds": seeds,
            "data": data,
        }
        plan = replace(PLAN, **(QUICK if quick else {}) | _given(chosen))
        plan.check()
    with _resumable(out) as console:
        console.print(f"The page: {run(plan, out, console, workers)}")


@bench.command()
def breakdown(
    out: Annotated[Path, typer.Option(help="Where cells, figure and page go.")] = Path("breakdown"),
    seeds: Annotated[int | None, typer.Option(min=1, help="Repetitions: 3, or 1 if quick.")] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="A few methods and numbers of adversaries.")
    ] = False,
) -> None:
    """Count how many adversaries each method survives, on made-up updates, under every attack."""
    with _extra("bench"):
        from consilience.lab.breakdown import QUICK, Plan
        from consilience.lab.breakdown import bench as run
    plan = QUICK if quick else Plan()
    with _resumable(out) as console:
        page = run(replace(plan, seeds=seeds or plan.seeds), out, console)
        console.print(f"The page: {page}")


def _split(text: str, kind: Callable[[str], T], expected: str = "") -> tuple[T, ...]:
    try:
        return tuple(kind(part.strip()) for part in text.split(",") if part.strip())
    except ValueError:
        raise ValueError(f"{expected} with commas between them, found {text!r}") from None


def _given(chosen: dict[str, Any]) -> dict[str, Any]:
    """Return the options that were given."""
    return {key: value for key, value in chosen.items() if value}


@contextmanager
def _mistakes() -> Iterator[None]:
    """Report mistakes in the options."""
    try:
        yield
    except (ImportError, ValueError) as error:
        raise fail(str(error)) from None


@contextmanager
def _extra(name: str) -> Iterator[None]:
    """Say which extra is missing when an import fails."""
    try:
        yield
    except ImportError as error:
        raise fail(f"{error.msg}. This needs: pip install 'consilience[{name}]'") from None


@contextmanager
def _resumable(out: Path) -> Iterator[Console]:
    """Run an experiment whose finished cells are kept in a folder."""
    from consilience.lab.fetch import DataUnavailableError

    if out.exists() and not out.is_dir():
        raise fail(f"{out}: a file, expected a folder or a name that is free")
    console = Console()
    try:
        yield console
    except (ConsilienceError, DataUnavailableError) as error:
        raise fail(str(error)) from None
    except KeyboardInterrupt:
        console.print("Stopped. Finished cells are kept: the same command goes on from here.")
        raise typer.Exit(130) from None
