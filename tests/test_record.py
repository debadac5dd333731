"""The record: what goes in comes out, and no kill breaks it."""

import logging
import math
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import consilience as cs
from consilience.record import lines


def send(seed: int = 0) -> dict[str, np.ndarray]:
    """Return seven honest updates, two copies of one lie, and one that is not a number."""
    rng = np.random.default_rng(seed)
    truth = rng.standard_normal(300)
    lie = truth - 3 * rng.standard_normal(300)
    return {
        **{f"h{j}": truth + rng.standard_normal(300) for j in range(7)},
        **{f"liar{k}": lie for k in range(2)},
        "broken": np.full(300, np.nan),
    }


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "run.jsonl"


def test_what_a_consensus_says_comes_back(file: Path):
    consensus = cs.aggregate(send(), record=file)
    cs.Record(file).append(
        consensus, accuracy=0.5, seconds={"training": 2}, metrics={"loss": math.nan}, note="n"
    )
    first, second = cs.Record.read(file)
    assert (first.round, second.round) == (1, 2)
    assert first.method == "pairwise"
    assert first.parties == consensus.parties
    assert first.weights == pytest.approx(
        {p: consensus.weights[p] for p in first.parties}, rel=1e-3
    )
    assert first.noise == pytest.approx({p: consensus.noise[p] for p in first.parties}, rel=1e-3)
    assert first.noise_intervals.keys() == set(first.parties)
    for party, ends in first.noise_intervals.items():
        assert ends == pytest.approx(consensus.noise_intervals()[party], rel=2e-3)
    assert first.groups == (("liar0", "liar1"),)
    assert first.reasons == {p: consensus.reasons[p] for p in ("liar0", "liar1")}
    assert first.rejected == consensus.rejected
    assert (first.caveats, first.center_weight) == ((), 0.0)
    assert set(first.rejected) == {"broken"}
    scale = np.sqrt(np.diag(consensus.covariance))
    np.testing.assert_allclose(
        first.correlation, consensus.covariance / np.outer(scale, scale), atol=0.006
    )
    assert set(first.seconds) == {"parsing", "evidence", "inference", "combination"}
    assert first.effective_parties == pytest.approx(
        consensus.diagnostics["effective_parties"], rel=1e-3
    )
    assert (first.accuracy, first.note) == (None, None)
    assert (second.accuracy, second.note, second.seconds["training"]) == (0.5, "n", 2)
    assert math.isnan(second.metrics["loss"])
    assert "NaN" not in file.read_text()


@pytest.mark.parametrize("method", [*cs.methods(), cs.Krum(adversaries=1)])
def test_every_method_can_be_recorded(file: Path, method):
    consensus = cs.aggregate(send(), method, record=cs.Record(file))
    (round,) = cs.Record.read(file)
    assert round.method == (method if isinstance(method, str) else repr(method))
    assert (round.correlation is None) == (consensus.covariance is None)
    assert round.noise_intervals.keys() == consensus.known_intervals.keys()
    assert {**round.reasons, **round.rejected} == consensus.reasons
    assert {"liar0", "liar1", "broken"} <= set(consensus.reasons)
    assert sum(round.weights.values()) == pytest.approx(sum(consensus.weights.values()), abs=1e-2)


def test_only_intervals_that_say_something_are_kept(file: Path):
    X = np.vstack([np.zeros(30), np.random.default_rng(0).standard_normal((5, 30))])
    cs.aggregate(X, "ivar-vb", record=file)  # the first may have any noise below the others'
    (round,) = cs.Record.read(file)
    assert set(round.noise_intervals) == {"1", "2", "3", "4", "5"}
    assert round.noise["0"] > 0


def test_a_record_from_before_there_were_intervals(file: Path):
    cs.aggregate(send(), record=file)
    file.write_text(re.sub(r'"noise_spread":\[.*?\],', "", file.read_text()))
    (round,) = cs.Record.read(file)
    assert round.noise_intervals == {}
    assert set(round.noise) == set(round.parties)


def test_the_weight_of_the_centre_and_caveats_are_kept(file: Path):
    sent = {p: 30 * np.random.default_rng(j).standard_normal(300) for j, p in enumerate("ab")}
    consensus = cs.aggregate(sent, "ivar-vb", record=file)
    (round,) = cs.Record.read(file)
    assert round.center_weight == pytest.approx(consensus.center_weight, rel=1e-3)
    assert round.center_weight > 0.5
    assert round.caveats == consensus.caveats
    assert len(round.caveats) == 2


def test_a_round_that_came_to_nothing_is_noted(file: Path):
    record = cs.Record(file)
    assert record.append(None, note="nobody answered", rejected={"h0": "late"}, round=7) == 7
    assert record.append(None) == 8
    first, second = cs.Record.read(file)
    assert (first.note, first.rejected, first.parties) == ("nobody answered", {"h0": "late"}, ())
    assert (second.note, second.correlation) == (None, None)


def test_a_round_written_again_counts_once(file: Path):
    record = cs.Record(file)
    for number, note in [(1, "a"), (2, "b"), (3, "c"), (2, "again")]:
        record.append(None, round=number, note=note)
    assert [(r.round, r.note) for r in cs.Record.read(file)] == [(1, "a"), (2, "again"), (3, "c")]


def test_any_torn_end_is_passed_over_and_cut_off(file: Path):
    record = cs.Record(file)
    record.append(None, note="first")
    record.append(None, note="second")
    whole = file.read_bytes()
    start = whole.index(b"\n") + 1
    for end in range(start, len(whole)):
        file.write_bytes(whole[:end])
        assert [r.note for r in cs.Record.read(file)] == ["first"]
        assert record.append(None, note="third") == 2
        assert [r.note for r in cs.Record.read(file)] == ["first", "third"]
    for end in range(start):
        file.write_bytes(whole[:end])
        assert cs.Record.read(file) == ()
        assert record.append(None) == 1


def test_a_line_whose_middle_was_lost_with_the_power_is_torn(file: Path):
    record = cs.Record(file)
    record.append(None, note="first")
    with file.open("ab") as out:
        out.write(b'{"format":"cons' + bytes(50) + b'"note":"x"}\n')
    assert [r.note for r in cs.Record.read(file)] == ["first"]
    assert record.append(None, note="second") == 2
    assert [r.note for r in cs.Record.read(file)] == ["first", "second"]


def test_reading_goes_on_where_it_was(file: Path):
    record = cs.Record(file)
    record.append(None, note="first")
    found, place = lines(file)
    assert [line["note"] for line in found] == ["first"]
    record.append(None, note="second")
    found, place = lines(file, place)
    assert [line["note"] for line in found] == ["second"]
    assert lines(file, place) == ([], place)
    assert place == file.stat().st_size


@pytest.mark.parametrize("content", [b"weights", b"{}\n", b"\x00\n\x01", b'{"format":"other"}\n'])
def test_a_file_that_is_no_record_is_left_alone(file: Path, content, caplog):
    file.write_bytes(content)
    with pytest.raises(cs.RecordFileError, match=r"run\.jsonl"):
        cs.Record(file).append(None)
    with pytest.raises(cs.RecordFileError, match=r"run\.jsonl"):
        cs.Record.read(file)
    updates = send()
    with caplog.at_level(logging.ERROR):
        assert cs.aggregate(updates, record=file).weights == cs.aggregate(updates).weights
    assert "missing from its record" in caplog.text
    assert file.read_bytes() == content


def test_damage_another_version_and_no_file_are_named(file: Path):
    with pytest.raises(cs.RecordFileError, match=r"run\.jsonl.*No such file"):
        cs.Record.read(file)
    record = cs.Record(file)
    for _ in range(3):
        record.append(None)
    good = file.read_text()
    file.write_text(good.replace('"round":2', '"round":'))
    with pytest.raises(cs.RecordFileError, match="broken line at byte"):
        cs.Record.read(file)
    file.write_text(good.replace('"version":1', '"version":2'))
    for use in (lambda: cs.Record.read(file), lambda: record.append(None)):
        with pytest.raises(cs.RecordFileError, match="version 2, this release reads 1"):
            use()


def test_a_record_nobody_can_write_does_not_cost_the_consensus(tmp_path: Path, caplog):
    consensus = cs.aggregate(send(), record=tmp_path / "no" / "folder.jsonl")
    assert consensus.weights["h0"] > 0
    assert "folder.jsonl" in caplog.text


# For each line of input, a writer that goes on until it is killed; forked, as imports are slow.
WRITERS = """
import os, sys, numpy as np, consilience as cs
consensus = cs.aggregate(np.random.default_rng(0).standard_normal((120, 50)))
record = cs.Record(sys.argv[1])
while sys.stdin.readline():
    child = os.fork()
    if child == 0:
        while True:
            number = record.append(consensus, metrics=dict.fromkeys(map(str, range(5_000)), 0.5))
            os.write(1, b"%d\\n" % number)  # a whole line or none, whenever it is killed
    print("writer", child, flush=True)
    os.waitpid(child, 0)
    print("dead", flush=True)
"""


@pytest.mark.integration
@pytest.mark.parametrize("seed", range(4))
def test_no_kill_breaks_a_record(file: Path, seed: int):
    """Five writers, killed at random moments; what append returned from is there for good."""
    rng = random.Random(seed)
    writers = subprocess.Popen(
        [sys.executable, "-c", WRITERS, file],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with writers:
        written = cs.Record(file).append(None)
        for writer in range(5):
            print(file=writers.stdin, flush=True)
            said = iter(writers.stdout.readline, "dead\n")
            child = next(int(line.split()[1]) for line in said if line.startswith("writer"))
            # On a busy machine the others may be too slow to write anything.
            told = [int(next(said))] if writer == 0 else []
            time.sleep(rng.uniform(0, 0.1))
            lines(file)  # can be read while it is written
            os.kill(child, signal.SIGKILL)
            told += [int(line) for line in said]
            rounds = [r.round for r in cs.Record.read(file)]
            assert rounds == list(range(1, len(rounds) + 1))
            assert max(told, default=written) <= len(rounds)
            written = len(rounds)
        writers.stdin.close()
    assert written > 1


@pytest.mark.integration
def test_writers_take_turns(file: Path):
    script = (
        "import sys, consilience as cs\nfor _ in range(50): cs.Record(sys.argv[1]).append(None)"
    )
    writers = [subprocess.Popen([sys.executable, "-c", script, file]) for _ in range(3)]
    assert [writer.wait() for writer in writers] == [0, 0, 0]
    assert [line["round"] for line in lines(file)[0]] == list(range(1, 151))
