"""Records that were edited, damaged or made by somebody hostile."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import consilience as cs
from consilience.cli.commands import app
from consilience.record import lines
from consilience.report.page import write as write_page

START = '{"format":"consilience-record",'


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "run.jsonl"
    random = np.random.default_rng(0)
    for _ in range(3):
        updates = {f"p{j}": random.standard_normal(30) for j in range(4)}
        cs.Record(path).append(cs.aggregate(updates), metrics={"loss": 1.0}, note="fine")
    return path


def edited(file: Path, **changes: object) -> None:
    """Change what the second of three lines says."""
    all_lines = file.read_text().splitlines()
    line = {**json.loads(all_lines[1]), **changes}
    all_lines[1] = json.dumps(line, separators=(",", ":"))
    file.write_text("\n".join(all_lines) + "\n")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("round", True),
        ("round", 1e400),
        ("time", "noon"),
        ("time", None),
        ("method", ["pairwise"]),
        ("parties", ["p0", "p1", "p2", 3]),
        ("parties", ["p0", "p1", "p2", "p2"]),
        ("parties", "abcd"),
        ("weights", [0.5, 0.5, 0, "much"]),
        ("weights", [1.0]),
        ("weights", []),
        ("weights", [0.5, 0.5, 0, True]),
        ("noise", [1, 1, 1, float("inf")]),
        ("noise", {"p0": 1}),
        ("noise_spread", [0.1, 0.1, 0.1, 1000]),
        ("noise_spread", [0.1, 0.1, 0.1, -0.1]),
        ("noise_spread", [0.1, 0.1, 0.1, "wide"]),
        ("noise_spread", [0.1]),
        ("noise_spread", None),
        ("group", [0, 0, "a", None]),
        ("group", [0]),
        ("reasons", {"p0": 1}),
        ("reasons", ["p0"]),
        ("rejected", {"p9": None}),
        ("correlation", "AAAA"),
        ("correlation", "!"),
        ("correlation", 3),
        ("correlation", None),
        ("effective_parties", {}),
        ("seconds", 1),
        ("seconds", {"evidence": "long"}),
        ("accuracy", "good"),
        ("metrics", {"loss": []}),
        ("metrics", {"loss": 10**400}),
        ("note", 7),
        ("version", "x" * 100_000),
        ("version", [1]),
        ("caveats", 5),
        ("caveats", "abc"),
        ("caveats", [1]),
        ("center_weight", "much"),
        ("center_weight", [1]),
    ],
)
def test_a_line_that_says_something_else_is_refused(file: Path, key: str, value: object):
    edited(file, **{key: value})
    before = file.read_bytes()
    for use in (cs.Record.read, lines, lambda path: write_page(path, path.with_suffix(".html"))):
        with pytest.raises(cs.RecordFileError, match=r"run\.jsonl") as error:
            use(file)
        assert len(str(error.value)) < 400
    assert file.read_bytes() == before


def test_a_key_nobody_knows_is_ignored(file: Path):
    edited(file, colour=[1, {"a": None}])
    assert len(cs.Record.read(file)) == 3


def test_a_key_nobody_knows_does_not_spoil_the_page(file: Path):
    edited(file, colour=float("nan"))  # Python reads and writes it, no browser does
    write_page(file, page := file.with_suffix(".html"))
    assert not re.search(r"colour|\bNaN,", page.read_text().split('id="data"')[1][:20_000])


def test_a_page_does_not_take_the_place_of_its_record(file: Path):
    before = file.read_bytes()
    (link := file.with_name("link.html")).symlink_to(file)
    for out in (file, file.parent / "." / file.name, link):
        found = CliRunner().invoke(app, ["report", str(file), "-o", str(out)])
        assert (found.exit_code, file.read_bytes()) == (2, before)


def test_a_line_nested_thousands_deep_is_refused(file: Path):
    whole = file.read_text()
    file.write_text(START + '"deep":' + "[" * 20_000 + "]" * 20_000 + "}\n" + whole)
    with pytest.raises(cs.RecordFileError, match=r"run\.jsonl"):
        cs.Record.read(file)


def test_a_writer_cuts_off_one_torn_line_and_no_more(file: Path):
    before = file.read_bytes()
    file.write_bytes(before + b"torn\n" * 2000)
    with pytest.raises(cs.RecordFileError, match="broken line"):
        cs.Record(file).append(None, note="next")
    assert file.read_bytes() == before + b"torn\n" * 2000
    file.write_bytes(before + b"torn\n")
    assert cs.Record(file).append(None, note="next") == 4
    assert file.read_bytes().startswith(before + START.encode())


def test_a_writer_refuses_a_last_line_of_another_kind(file: Path):
    with open(file, "a", encoding="utf-8") as end:
        end.write(START + '"version":1,"round":"last"}\n')
    before = file.read_bytes()
    with pytest.raises(cs.RecordFileError, match="round"):
        cs.Record(file).append(None, note="next")
    assert file.read_bytes() == before
