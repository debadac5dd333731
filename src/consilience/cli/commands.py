"""The command line."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from rich.console import Console
from rich.text import Text

import consilience
from consilience.estimators.catalogue import described
from consilience.text import shown

_MESSAGE = 2000  # characters

T = TypeVar("T")

app = typer.Typer(
    help="Infer the truth from sources nobody can vouch for.",
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,
)


bench = typer.Typer(help="Measure the methods.", no_args_is_help=True)
app.add_typer(bench, name="bench")

# Options that several commands have.
_Methods = Annotated[str, typer.Option(help="Names with commas; byzfl-... for peers.")]
_Heterogeneity = Annotated[
    str, typer.Option(help="Of iid, dirichlet-ALPHA, one-class, gamma-SHARE, with commas.")
]
_Adversaries = Annotated[
    str, typer.Option(help="How many beside 10 honest parties; numbers with commas.")
]
_Seeds = Annotated[int | None, typer.Option(min=1, help="How many repetitions.")]
_Out = Annotated[Path, typer.Option(help="Where cells, figures and the page go.")]
_Workers = Annotated[int, typer.Option(min=1, help="Processes, each with one thread.")]


@app.command()
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
        raise _fail(f"{figure}: expected a .png, .svg or .pdf file in a folder that exists")
    if not page.parent.is_dir() or page.suffix != ".html":
        raise _fail(f"{page}: expected an .html file in a folder that exists")
    try:
        run(Console(), seed, alpha, figure, page)
    except DataUnavailableError as error:
        raise _fail(str(error)) from None


@app.command()
def merge(
    models: Annotated[
        list[str],
        typer.Argument(
            help="Versions of a model: .safetensors, .npz, folders of shards, PEFT folders, a glob."
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="A .safetensors or .npz file, or a folder of shards."),
    ] = None,
    base: Annotated[Path | None, typer.Option(help="The model they all started from.")] = None,
    method: Annotated[str, typer.Option(help="One of consilience methods.")] = "pairwise",
    memory: Annotated[
        Path | None, typer.Option(help="What earlier merges taught: read, and brought up to date.")
    ] = None,
    exact: Annotated[
        bool, typer.Option("--exact", help="Judge by every coordinate, not by a sample.")
    ] = False,
    record: Annotated[
        Path | None, typer.Option(help="The run's record, to add this merge to.")
    ] = None,
    report: Annotated[Path | None, typer.Option(help="Where a page about it goes: .html.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show who would be trusted; write no model.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace an output that exists.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    least_parties: Annotated[
        float, typer.Option(help="Merge nothing on fewer effective parties than this.")
    ] = 0.0,
    most_suspects: Annotated[
        float, typer.Option(help="Nor with more of them, as a share, rejected or in groups.")
    ] = 1.0,
    tensors: Annotated[
        list[str] | None,
        typer.Option(help="Merge tensors called like this alone, or with '!' all but these."),
    ] = None,
    evidence: Annotated[
        list[str] | None, typer.Option(help="Judge by tensors called like this alone, or not.")
    ] = None,
    rank: Annotated[
        int | None, typer.Option(min=1, help="Of the merged adapter; the parties' by default.")
    ] = None,
    exact_stack: Annotated[
        bool, typer.Option("--exact-stack", help="Keep the exact sum of adapters, of a large rank.")
    ] = False,
    into: Annotated[
        Path | None, typer.Option(help="The model that adapters are for: add them to it.")
    ] = None,
    with_config: Annotated[
        Path | None,
        typer.Option(help="A folder: copy its configuration and tokenizer into the output."),
    ] = None,
) -> None:
    """Merge versions of a model that come from parties nobody can vouch for.

    Exit codes: 0 all fine; 1 merged, but some party was rejected or stands out, nobody could be
    judged, the value is mostly the centre's, or memory, record or report could not be kept;
    2 nothing was merged, the message says why; 130 cancelled.
    """
    console = Console(stderr=True)
    try:
        from consilience.cli.merge import Merge

        asked = Merge(
            models=models,
            output=output,
            base=base,
            method=method,
            memory=memory,
            exact=exact,
            record=record,
            report=report,
            dry_run=dry_run,
            force=force,
            require=consilience.Require(least_parties, most_suspects),
            tensors=tensors or None,
            evidence=evidence or None,
            rank=rank,
            exact_stack=exact_stack,
            into=into,
            with_config=with_config,
        )
        consensus, said, lost = asked.run(console)
    except consilience.ConsilienceError as error:
        raise _fail(str(error)) from None
    except KeyboardInterrupt:
        console.print("Cancelled: nothing half-written is left.")
        raise typer.Exit(130) from None
    _tell_of_a_merge(consensus, said, lost, as_json)
    raise typer.Exit(1 if consensus.reasons or consensus.caveats or lost else 0)


def _tell_of_a_merge(
    consensus: consilience.Consensus, said: Sequence[str], lost: Sequence[str], as_json: bool
) -> None:
    """Say who was believed, what was written, and what could not be."""
    from consilience.cli.merge import of_value, to_json, to_table

    if as_json:
        typer.echo(to_json(consensus))
    else:
        Console().print(to_table(consensus))
        for message in consensus.caveats:
            _complain(f"beware: {message}")
    for line in (*of_value(consensus), *said):
        typer.echo(line, err=as_json)
    for message in lost:
        _complain(f"merged, but: {message}")


@app.command()
def reproduce(
    what: Annotated[
        str, typer.Argument(help="table1, fig1, fig2, fig3, one-round or all.")
    ] = "all",
    full: Annotated[
        bool, typer.Option("--full/--quick", help="The whole protocol, or a look at everything.")
    ] = False,
    out: _Out = Path("reproduction"),
    seeds: _Seeds = None,
) -> None:
    """Run the paper's experiments on the real data. Finished cells are not run again."""
    with _extra("lab"):
        from consilience.lab.experiments import FULL, QUICK
        from consilience.lab.reproduce import CHOICES
        from consilience.lab.reproduce import reproduce as run
    if what not in CHOICES:
        raise _fail(f"no experiment is called {what!r}; choose from {', '.join(CHOICES)}")
    scale = FULL if full else QUICK
    with _resumable(out) as console:
        console.print(f"The page: {run(what, scale, seeds or scale.seeds, out, console)}")


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
        raise _fail(f"no protocol is called {protocol!r}; choose from {', '.join(PLANS)}")
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
        str, typer.Option(help="Of patch, semantic, replacement, constrained, rare, with commas.")
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


@app.command()
def report(
    run: Annotated[Path, typer.Argument(help="A run's record, of aggregate(record=...).")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Where the page goes.")] = Path(
        "report.html"
    ),
) -> None:
    """Write a page that shows whom to trust, and why: one file that needs no network."""
    from consilience.report.page import write

    try:
        rounds = write(run, out)
    except consilience.RecordFileError as error:
        raise _fail(str(error)) from None
    except OSError as error:
        raise _fail(f"{out}: cannot be written ({error.strerror})") from None
    typer.echo(f"{_path(out)}: {rounds} round{'' if rounds == 1 else 's'}")


@app.command()
def watch(
    run: Annotated[Path, typer.Argument(help="A run's record; it may be yet to come.")],
    host: Annotated[str, typer.Option(help="Who may look: this machine alone.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 for any that is free.")] = 0,
) -> None:
    """Show the same page while the run goes on, at an address that only you are told."""
    from consilience.report.watch import Watch

    try:
        server = Watch(run, host, port)
    except consilience.RecordFileError as error:
        raise _fail(str(error)) from None
    except OSError as error:
        raise _fail(f"{host}:{port}: cannot listen there ({error.strerror})") from None
    with server:
        waiting = "" if run.exists() else f" ({_path(run)} is yet to come)"
        typer.echo(f"{server.url}{waiting}\nCtrl-C to stop.")
        server.serve_forever()


@app.command()
def infer(
    table: Annotated[Path, typer.Argument(help="A .csv, .tsv or .parquet file of ratings.")],
    task: Annotated[str, typer.Option(help="The column that says what was rated.")],
    party: Annotated[str, typer.Option(help="The column that says by whom.")],
    value: Annotated[str, typer.Option(help="The column with the ratings.")],
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Where the truths go.")] = None,
    parties_out: Annotated[Path | None, typer.Option(help="Where the parties go.")] = None,
    method: Annotated[
        str, typer.Option(help="pairwise, affine, ivar, median or mean.")
    ] = "pairwise",
    level: Annotated[float, typer.Option(help="How often an interval holds the truth.")] = 0.95,
    force: Annotated[bool, typer.Option("--force", help="Replace outputs that exist.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Everything, as JSON.")] = False,
) -> None:
    """Infer the truth of each task from a table of ratings by parties nobody can vouch for.

    Exit codes: 0 all fine; 1 inferred, but some party stands out, or the iteration did not
    converge; 2 nothing was inferred or written, the message says why; 130 cancelled.
    """
    from consilience.cli.outputs import exists, written
    from consilience.crowd import inference, page, tables

    outputs = [path for path in (out, parties_out) if path is not None]
    try:
        for path in outputs:
            tables.check_output(path, table)
            if path.exists() and not force:
                raise exists(path)
        if out is not None:
            tables.check_names(task, inference.TRUTH_COLUMNS)
        if parties_out is not None:
            tables.check_names(party, inference.PARTY_COLUMNS)
        if len({os.path.realpath(path) for path in outputs}) < len(outputs):
            raise consilience.TableError(
                f"{shown(out)}: named twice, for the truths and for the parties"
            )
        found = consilience.infer(
            table, task=task, party=party, value=value, method=method, level=level
        )
        if out is not None:
            found.save(out, task)
        if parties_out is not None:
            found.save_parties(parties_out, party)
    except consilience.ConsilienceError as error:
        raise _fail(str(error)) from None
    except OSError as error:
        raise _fail(f"{shown(error.filename)}: {error.strerror}") from None
    if as_json:
        typer.echo(page.as_json(found))
    else:
        page.show(found, Console(), task, party, truths=out is None)
    for path in outputs:
        typer.echo(written(path), err=as_json)
    raise typer.Exit(1 if found.reasons or not found.diagnostics.get("converged", True) else 0)


@app.command()
def methods() -> None:
    """List the methods that can be chosen by name, and what each believes."""
    width = max(map(len, consilience.methods()))
    for name, words in described().items():
        typer.echo(f"{name:{width}}  {words}")


def _split(text: str, kind: Callable[[str], T], expected: str = "") -> tuple[T, ...]:
    try:
        return tuple(kind(part.strip()) for part in text.split(",") if part.strip())
    except ValueError:
        raise ValueError(f"{expected} with commas between them, found {text!r}") from None


def _given(chosen: dict[str, Any]) -> dict[str, Any]:
    """Return the choices that somebody made."""
    return {key: value for key, value in chosen.items() if value}


@contextmanager
def _mistakes() -> Iterator[None]:
    """Say what is wrong with the choices."""
    try:
        yield
    except (ImportError, ValueError) as error:
        raise _fail(str(error)) from None


@contextmanager
def _extra(name: str) -> Iterator[None]:
    """Say which extra is missing when an import fails."""
    try:
        yield
    except ImportError as error:
        raise _fail(f"{error.msg}. This needs: pip install 'consilience[{name}]'") from None


@contextmanager
def _resumable(out: Path) -> Iterator[Console]:
    """Run an experiment whose finished cells are kept in a folder."""
    from consilience.lab.fetch import DataUnavailableError

    if out.exists() and not out.is_dir():
        raise _fail(f"{out}: a file, expected a folder or a name that is free")
    console = Console()
    try:
        yield console
    except DataUnavailableError as error:
        raise _fail(str(error)) from None
    except KeyboardInterrupt:
        console.print("Stopped. Finished cells are kept: the same command goes on from here.")
        raise typer.Exit(130) from None


def _fail(message: str) -> typer.Exit:
    _complain(message)
    return typer.Exit(2)


def _complain(message: str) -> None:
    # As text: whatever a stranger's file is called is neither markup nor an emoji.
    Console(stderr=True).print(Text(shown(message, _MESSAGE), style="red"))


def _path(path: object) -> str:
    return shown(path, _MESSAGE)


def _version(asked: bool) -> None:
    if asked:
        from consilience.passes.loops import described

        typer.echo(f"consilience {consilience.__version__}, {described()}")
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
