"""Record files: real ones, damaged. A reader gets rounds that make sense or an error that names the
file; a writer adds a round or leaves the file alone; and a page can be made of what can be read."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import numpy as np
from numpy.random import Generator

import consilience as cs
from consilience.record import RecordedRound
from consilience.report.page import write as write_page
from fuzz import strangers
from fuzz.damage import damaged, lied, written
from fuzz.oracle import expect, refused

_START = b'{"format":"consilience-record",'


def case(random: Generator, folder: Path) -> None:
    """Read a record that may be damaged, add to it and make a page of it."""
    path = folder / "run.jsonl"
    last = _write(random, path)
    sound = path.read_bytes()
    numbers = [one.round for one in cs.Record.read(path)]
    if random.random() < 0.05:
        path.write_bytes(sound[: int(random.integers(len(_START), len(sound)))])  # as by a kill
        whole = [one.round for one in cs.Record.read(path)]
        expect(whole == numbers[: len(whole)], "a torn record has rounds", whole)
        _append(path, last)
        return
    path.write_bytes(_damaged(random, sound))
    content = path.read_bytes()
    damage = refused(lambda: _check(cs.Record.read(path)), cs.RecordFileError, path)
    if not damage:
        _page(path, folder)
    expect(path.read_bytes() == content, "reading changed the file")
    if refused(lambda: cs.Record(path).append(last), cs.RecordFileError, path):
        expect(path.read_bytes() == content, "a refused file was changed")
    elif not damage:
        _append(path, last)
    whole = content[: content.rfind(b"\n") + 1]
    kept = whole[: whole.rfind(b"\n", 0, -1) + 1]  # all but the last line, which may be torn
    expect(path.read_bytes().startswith(kept), "more than a torn line was cut off")


def _write(random: Generator, path: Path) -> cs.Consensus:
    """Write some rounds, and return the last consensus."""
    parties = [f"p{j}" for j in range(4)]
    if random.random() < 0.2:
        parties[0] = str(strangers.name(random))
    record = cs.Record(path)
    for _ in range(int(random.integers(1, 4))):
        updates = {party: random.standard_normal(20) for party in parties}
        if random.random() < 0.5:
            updates[parties[0]][0] = np.nan
        consensus = cs.aggregate(updates, str(random.choice(["pairwise", "mean"])))
        record.append(consensus, accuracy=0.5, metrics={"loss": 1.0}, seconds={"training": 1.0})
        if random.random() < 0.2:
            record.append(None, note="nobody came", rejected={parties[0]: "no answer"})
    return consensus


def _damaged(random: Generator, sound: bytes) -> bytes:
    if random.random() < 0.4:
        return damaged(random, sound, sound[::-1])
    lines = sound.splitlines(keepends=True)
    at = int(random.integers(len(lines)))
    line = lied(random, json.loads(lines[at]))
    text = (
        written(line)
        if random.random() < 0.3
        else written(line).replace(b": ", b":").replace(b", ", b",")
    )
    lines[at] = text.replace(b'{"format":"consilience-record",', _START) + b"\n"
    return b"".join(lines)


def _check(rounds: tuple[RecordedRound, ...]) -> None:
    numbers = [one.round for one in rounds]
    expect(numbers == sorted(set(numbers)), "rounds out of order:", numbers)
    for one in rounds:
        expect(type(one.round) is int, "a round called", one.round)
        expect(_number(one.time), "a time of", one.time)
        expect(all(type(party) is str for party in one.parties), "parties", str(one.parties)[:99])
        expect(set(one.weights) == set(one.parties) == set(one.noise), "weights of others")
        expect(set(one.noise_intervals) <= set(one.parties), "intervals of others")
        for values in (one.weights, one.noise, one.seconds, one.metrics):
            expect(type(values) is dict, "no mapping:", str(values)[:99])
            expect(all(map(_number, values.values())), "numbers", str(values)[:99])
        for texts in (one.reasons, one.rejected):
            expect(type(texts) is dict, "no mapping:", str(texts)[:99])
            expect(all(type(text) is str for text in texts.values()), "texts", str(texts)[:99])
        for number in (one.accuracy, one.effective_parties):
            expect(number is None or _number(number), "a number", str(number)[:99])
        for text in (one.method, one.note):
            expect(text is None or type(text) is str, "a text", str(text)[:99])
        if one.correlation is not None:
            expect(one.correlation.shape == (len(one.parties),) * 2, "correlations of others")
            most = np.nanmax(np.abs(one.correlation), initial=0.0)
            expect(most <= 1.28, "a correlation of", most)


def _number(value: object) -> bool:
    """Tell a number from what only looks like one; NaN is what is unknown."""
    return type(value) is int or (type(value) is float and not math.isinf(value))


def _page(path: Path, folder: Path) -> None:
    """The page is made, and what parties are called cannot end its script."""
    page = folder / "page.html"
    if refused(lambda: write_page(path, page), cs.RecordFileError, path):
        return
    text = page.read_text(encoding="utf-8")
    data = re.search(r'<script[^>]*type="application/json"[^>]*>(.*?)</script>', text, re.S)
    if data is not None:
        json.loads(data.group(1))


def _append(path: Path, consensus: cs.Consensus) -> None:
    number = cs.Record(path).append(consensus)
    again = cs.Record.read(path)
    expect(again[-1].round >= number, "the round that was added is not there")
    expect(number in [one.round for one in again], "round", number, "is not there")
