"""The command line."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

import consilience
from consilience.cli import experiments
from consilience.cli.outputs import complain, fail
from consilience.estimators.catalogue import described
from consilience.text import shown

_MESSAGE = 2000  # characters

app = typer.Typer(
    help="Infer the truth from sources nobody can vouch for.",
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,
)
app.add_typer(experiments.bench, name="bench")
app.command()(experiments.demo)


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
        raise fail(str(error)) from None
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
            complain(f"beware: {message}")
    for line in (*of_value(consensus), *said):
        typer.echo(line, err=as_json)
    for message in lost:
        complain(f"merged, but: {message}")


app.command()(experiments.reproduce)


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
        raise fail(str(error)) from None
    except OSError as error:
        raise fail(f"{out}: cannot be written ({error.strerror})") from None
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
        raise fail(str(error)) from None
    except OSError as error:
        raise fail(f"{host}:{port}: cannot listen there ({error.strerror})") from None
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
        raise fail(str(error)) from None
    except OSError as error:
        raise fail(f"{shown(error.filename)}: {error.strerror}") from None
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
