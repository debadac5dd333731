"""Foreign text in what is printed, logged and recorded: one line, visible, bounded."""

import io
import logging
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from safetensors.numpy import save_file
from typer.testing import CliRunner

import consilience as cs
from consilience.cli.commands import app
from consilience.cli.merge import to_json, to_table
from consilience.cli.outputs import fail
from consilience.consensus import Consensus
from consilience.record import lines

FORGED = "eve\x1b[2K\rann: all is well\nbob \x9b31m\u202e[red]:skull: "
CONTROL = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2028\u2029]")  # but the line's end


def round_of(*names: str) -> Consensus:
    rng = np.random.default_rng(0)
    sent = {name: rng.standard_normal(100) for name in (*names, "h0", "h1", "h2", "h3")}
    sent[names[0]] = sent["h0"]  # so that it is named in somebody else's reason
    return cs.aggregate(sent)


def texts_of(found: Any) -> Iterator[str]:
    if isinstance(found, dict):
        yield from (text for pair in found.items() for one in pair for text in texts_of(one))
    elif isinstance(found, list):
        yield from (text for one in found for text in texts_of(one))
    elif isinstance(found, str):
        yield found


def printed(consensus: Consensus) -> str:
    out = io.StringIO()
    Console(file=out, width=120, force_terminal=False).print(to_table(consensus))
    return out.getvalue()


def test_a_name_forges_no_line_of_the_table():
    found = round_of(FORGED)
    found = replace(found, rejected={"mal": f"tensor {FORGED} holds nan"})
    text = printed(found)
    assert not CONTROL.search(text)
    assert "\\x1b[2K" in text
    assert not any(line.lstrip("│ ").startswith(("bob", "ann:")) for line in text.splitlines())
    assert "[red]:skull:" in text.replace("\n", "")  # neither markup nor emoji
    assert not CONTROL.search(to_json(found))


def test_a_name_of_megabytes_costs_nothing(tmp_path: Path):
    """15 MB took a record of as much, and rich two minutes."""
    long = "n" * 15_000_000
    found = round_of(long)
    found = replace(found, rejected={long + "r": long})
    assert len(printed(found)) < 10_000
    file = tmp_path / "run.jsonl"
    cs.Record(file).append(
        found, metrics={long: 1.0}, seconds={long: 1.0}, note=long, rejected={long + "x": long}
    )
    assert file.stat().st_size < 10_000


def test_a_record_holds_one_printable_name_for_each_party(tmp_path: Path):
    file = tmp_path / "run.jsonl"
    long = "p" * 5000
    names = [
        FORGED,
        f"{long}a{long}",
        f"{long}b{long}",
        "é 北京",
        "\ud800",
        "\\ud800",
        "a\n",
        "a\\n",
    ]
    found = round_of(*names)
    found = replace(found, rejected={"bad\x1b": f"tensor {FORGED}"})
    cs.Record(file).append(found, note=FORGED, metrics={FORGED: 1.0}, rejected={"late\r": FORGED})
    (line,), (kept,) = lines(file)[0], cs.Record.read(file)
    assert all(text.isprintable() for text in texts_of(line))
    assert len(set(kept.parties)) == len(names) + 4
    assert all(party.isprintable() and len(party) <= 80 for party in kept.parties)
    assert {"é 北京", "h0", "h3"} <= set(kept.parties)  # what can be shown is kept as it is
    assert set(kept.reasons) == {p for group in kept.groups for p in group} <= set(kept.parties)
    assert set(kept.rejected) == {p for p in kept.rejected if p.isprintable()}
    assert len(kept.rejected) == 2
    # The same party is called the same in every round, and nobody can take its written name.
    cs.Record(file).append(round_of(*kept.parties[:8]))
    again = cs.Record.read(file)[-1].parties
    marked = {party for party in kept.parties if "#" in party}
    assert len(marked) == 5
    assert not marked & set(again)


def test_error_messages_are_one_line(capsys):
    fail(f"{FORGED}: no file is called like this " + "x" * 1_000_000)
    said = capsys.readouterr().err
    assert not CONTROL.search(said)
    assert "\nbob" not in said
    assert ":skull:" in said
    assert len(said) < 5000


def test_what_is_on_the_command_line_is_not_printed_raw(tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    name = "eve\x1b[2J\nbob.safetensors"
    rng = np.random.default_rng(0)
    for party in (name, "a.safetensors", "b.safetensors", "c.safetensors"):
        save_file({"w": rng.standard_normal(50)}, party)
    found = CliRunner().invoke(app, ["merge", "*.safetensors", "-o", "out\x1b.npz"])
    assert found.exit_code == 0, found.output
    assert not CONTROL.search(found.output)
    assert "eve\\x1b[2J" in found.output
    for words in (["report", name], ["watch", name], ["infer", name, "--task", "t"]):
        words += ["--party", "p", "--value", "v"] if words[0] == "infer" else []
        found = CliRunner().invoke(app, words)
        assert found.exit_code == 2
        assert not CONTROL.search(found.output)
        assert "\nbob" not in found.output


def test_a_record_that_fails_is_logged_in_one_line(tmp_path: Path, caplog):
    file = tmp_path / "no\n\x1b.jsonl"
    file.write_text("precious")
    with caplog.at_level(logging.ERROR):
        cs.aggregate(np.ones((3, 5)), record=file)
    assert "missing from its record" in caplog.messages[-1]
    assert caplog.messages[-1].isprintable()


@pytest.mark.parametrize("name", ["c3", "eve\nbob", "x" * 1000])
def test_reasons_name_others_in_one_line(name):
    (reason,) = {round_of(name).reasons["h0"]}
    assert reason.isprintable()
    assert len(reason) < 200
    assert reason.startswith(f"moves with {name}:" if name == "c3" else "moves with ")


def test_a_rejection_is_one_line_whatever_it_quotes():
    sent = {f"h{j}": {"w": np.ones(3)} for j in range(3)}
    found = cs.aggregate({**sent, "eve": {"w": np.ones(3), FORGED + "x" * 100_000: np.ones(3)}})
    assert found.rejected["eve"].isprintable()
    assert len(found.reasons["eve"]) <= 1000
