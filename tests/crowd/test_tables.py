"""Tables in and out of infer: files, data frames, their faults, and the command line."""

import csv
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import consilience as cs
from consilience.cli.commands import app
from consilience.crowd.tables import write

NAMES = {"task": "item", "party": "worker", "value": "score"}
HEADER = ["item", "worker", "score"]
STRANGE = ['a,b "c"', "[red]x[/red]", "línea\nnueva", "=1+1", " ", "日本"]
ROWS = [
    (item, worker, round(3 * i + w + 0.1 * ((7 * i + 3 * w) % 5), 3))
    for i, item in enumerate(STRANGE)
    for w, worker in enumerate(["ann", "bob", "eve"])
]


def save(path: Path, rows=ROWS, header=HEADER) -> Path:
    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, delimiter="\t" if path.suffix == ".tsv" else ",")
        writer.writerow(header)
        writer.writerows(rows)
    return path


def columns(rows=ROWS):
    return dict(zip(HEADER, map(list, zip(*rows, strict=True)), strict=True))


@pytest.fixture(scope="module")
def expected():
    return cs.infer(columns(), **NAMES)


def test_every_kind_of_table_gives_the_same(tmp_path, expected):
    save(tmp_path / "t.csv")
    save(tmp_path / "t.TSV".lower())
    (tmp_path / "bom.csv").write_bytes(b"\xef\xbb\xbf" + (tmp_path / "t.csv").read_bytes())
    pq.write_table(pa.table(columns()), tmp_path / "t.parquet")
    frame = pd.DataFrame({**columns(), "more": 1})
    for table in [
        tmp_path / "t.csv",
        str(tmp_path / "t.tsv"),
        tmp_path / "bom.csv",
        tmp_path / "t.parquet",
        frame,
        frame.convert_dtypes(),
        frame.astype({"worker": "category"}),
        pl.DataFrame(columns()),
        pa.table(columns()),
        {name: np.array(column) for name, column in columns().items()},
    ]:
        found = cs.infer(table, **NAMES)
        assert found.truth == expected.truth
        assert found.noise == expected.noise


def test_what_is_not_rated_is_left_out(tmp_path, expected):
    blanks = [("a,b", "ann", ""), ("new", "bob", "NaN"), ("x", "eve", " n/a "), ("", "", "")]
    found = cs.infer(save(tmp_path / "t.csv", [*ROWS, *blanks]), **NAMES)
    assert found.truth == expected.truth
    assert found.diagnostics["not_rated"] == 4
    frame = pd.DataFrame([*ROWS, ("new", "ann", None)], columns=HEADER).convert_dtypes()
    assert cs.infer(frame, **NAMES).truth == expected.truth
    assert cs.infer(pl.from_pandas(frame), **NAMES).truth == expected.truth


def test_ids_are_kept_as_they_are():
    found = cs.infer(columns([(1, 10, 2.0), (2, 10, 3.0), (1, 11, 2.5), (2, 11, 3.5)]), **NAMES)
    assert list(found.truth) == [1, 2]
    assert list(found.noise) == [10, 11]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("", "empty"),
        ("item,worker,score\n", "no ratings in column 'score'"),
        ("item,worker,score\na,x,\n", "no ratings"),
        ("item,worker,points\na,x,1\n", "no column called 'score'; the columns are item, worker, "),
        ("item,worker,score,score\na,x,1,2\n", "2 columns called 'score'"),
        ("item,worker,score\na,x,1\n\na,y,good\n", "line 4.*column 'score', found 'good'"),
        ('item,worker,score\n"a\nb",x,1\na,y,1e999\n', "line 4.*finite"),
        ("item,worker,score\na,x,1\na,y\n", "line 3: expected 3 columns, found 2"),
        ("item,worker,score\na,x,1\n,y,2\n", "line 3: a rating without an id in column 'item'"),
        ('item,worker,score\na,x,1\n"a,y,2\n', "line 3"),
    ],
)
def test_faults_of_a_file_are_named_by_line(tmp_path, content, expected):
    path = tmp_path / "t.csv"
    path.write_text(content)
    with pytest.raises(cs.TableError, match=expected) as caught:
        cs.infer(path, **NAMES)
    assert str(path) in str(caught.value)


def test_other_faults_are_named(tmp_path):
    (tmp_path / "latin.csv").write_bytes("item,worker,score\né,x,1\n".encode("latin-1"))
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 no")
    for table, expected in [
        (tmp_path / "latin.csv", "UTF-8"),
        (tmp_path / "bad.parquet", "not a readable parquet"),
        (tmp_path / "none.csv", "no such file"),
        (tmp_path / "t.xlsx", "expected a .csv"),
        (tmp_path, "expected a .csv"),
        ([1, 2], "found list"),
        ({**columns(), "score": [1.0]}, "one length"),
        (pd.DataFrame(columns()).assign(score="x"), "row 0.*found 'x'"),
        (columns([("a", None, 1.0)]), "row 0.*without an id in column 'worker'"),
        (columns([("a", "x", 10**400)]), "row 0"),
    ]:
        with pytest.raises(cs.TableError, match=expected):
            cs.infer(table, **NAMES)
    with pytest.raises(cs.TableError, match="three different columns"):
        cs.infer(columns(), task="item", party="item", value="score")


@pytest.mark.parametrize("kind", ["csv", "tsv", "parquet"])
def test_what_is_saved_can_be_read_again(tmp_path, expected, kind):
    truths, parties = tmp_path / f"truth.{kind}", tmp_path / f"parties.{kind}"
    expected.save(truths, "item")
    expected.save_parties(parties, "worker")
    read = {"csv": pd.read_csv, "parquet": pd.read_parquet,
            "tsv": lambda path: pd.read_csv(path, sep="\t")}[kind]  # fmt: skip
    back = read(truths).set_index("item")
    assert back["truth"].to_dict() == expected.truth
    assert list(zip(back["low"], back["high"], strict=True)) == list(expected.intervals.values())
    assert back["ratings"].tolist() == [3] * len(STRANGE)
    assert read(parties).set_index("worker")["noise"].to_dict() == expected.noise
    assert {path.name for path in tmp_path.iterdir()} == {truths.name, parties.name}


def test_mixed_ids_and_unknown_noise_are_saved(tmp_path):
    found = cs.infer(columns([(1, "x", 2.0), ("b", "y", 3.0)]), **NAMES)
    found.save(tmp_path / "t.parquet")
    found.save_parties(tmp_path / "p.csv")
    assert pq.read_table(tmp_path / "t.parquet")["low"].to_pylist() == [None, None]
    assert (tmp_path / "p.csv").read_text().splitlines()[1].startswith("x,,0.0,1.0,1,,no task")


def test_a_failed_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("old")
    with pytest.raises(ValueError, match="shorter"):
        write(path, {"a": [1, 2], "b": [1]})
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def command(*words, cwd: Path, script: str | None = None) -> subprocess.CompletedProcess[str]:
    start = [sys.executable, "-c", script] if script else [
        str(Path(sys.executable).with_name("consilience"))]  # fmt: skip
    return subprocess.run(
        [*start, "infer", *map(str, words)], cwd=cwd, capture_output=True, text=True, timeout=120
    )


OPTIONS = ["--task", "item", "--party", "worker", "--value", "score"]


@pytest.mark.integration
def test_the_command_writes_tables_and_json(tmp_path, expected):
    save(tmp_path / "r.csv", [*ROWS, ("a", "stranger", "")])
    done = command(
        "r.csv", *OPTIONS, "-o", "t.parquet", "--parties-out", "p.csv", "--json", cwd=tmp_path
    )
    assert done.returncode == 1, done.stderr  # somebody rates too high
    told = json.loads(done.stdout)
    assert {task: of["truth"] for task, of in told["tasks"].items()} == expected.truth
    assert {party: of["noise"] for party, of in told["parties"].items()} == expected.noise
    assert told["diagnostics"]["not_rated"] == 1
    table = pq.read_table(tmp_path / "t.parquet").to_pydict()
    assert dict(zip(table["item"], table["truth"], strict=True)) == expected.truth
    assert (tmp_path / "p.csv").read_text().startswith("worker,noise,bias,gain,ratings,")


def test_the_command_says_what_it_wrote_and_replaces_nothing_unasked(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    noise = {"ann": 1, "bob": 1, "cat": 1, "dan": 1, "eve": 20}
    save(Path("r.csv"), [(t, p, t + rng.normal(0, s)) for t in range(40) for p, s in noise.items()])
    words = ["infer", "r.csv", *OPTIONS, "-o", "t.csv", "--parties-out", "p.csv"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 1  # eve stands out
    assert done.stdout.splitlines()[-2:] == ["written: t.csv", "written: p.csv"]
    Path("t.csv").write_text("mine")
    Path("p.csv").unlink()
    again = CliRunner().invoke(app, words)
    assert again.exit_code == 2
    assert "t.csv: exists already; --force replaces it" in again.stderr
    assert Path("t.csv").read_text() == "mine"
    assert not Path("p.csv").exists()
    forced = CliRunner().invoke(app, [*words, "--force", "--json"])
    assert forced.exit_code == 1
    assert json.loads(forced.stdout)["parties"]["eve"]["reason"]
    assert forced.stderr.splitlines() == ["written: t.csv", "written: p.csv"]
    assert Path("t.csv").read_text().startswith("item,truth")


def test_the_command_shows_truths_and_names_faults(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = save(Path("r.csv")).read_bytes()

    def run(*words):
        done = CliRunner().invoke(app, ["infer", "r.csv", *words])
        return done.exit_code, done.output.replace("\n", " ").replace("  ", " ")

    code, output = run(*OPTIONS)
    assert code == 1  # somebody rates too high
    assert "18 ratings of 6 tasks by 3 parties" in output
    assert "[red]x[/red]" in output
    for words, expected in [
        ([*OPTIONS, "-o", "r.csv"], "holds the ratings"),
        ([*OPTIONS, "-o", "no/t.csv"], "folder that exists"),
        ([*OPTIONS, "-o", "t.xlsx"], ".csv, .tsv or .parquet"),
        ([*OPTIONS, "-o", "t.csv", "--parties-out", "./t.csv"], "named twice"),
        ([*OPTIONS[:-1], "points"], "the columns are item, worker, score"),
        ([*OPTIONS, "--method", "mode"], "choose from pairwise"),
    ]:
        code, output = run(*words)
        assert code == 2
        assert expected in output
    for mark, told in ((b";", "';'"), (b"\t", r"'\t'")):
        Path("r.csv").write_bytes(before.replace(b",", mark))
        assert f"is the separator {told}? A .csv has ','" in run(*OPTIONS)[1]
    Path("r.csv").write_bytes(before)
    assert [path.name for path in tmp_path.iterdir()] == ["r.csv"]


@pytest.mark.integration
def test_without_pyarrow_csv_works_and_parquet_names_the_extra(tmp_path):
    save(tmp_path / "r.csv")
    script = (
        "import sys\nfor name in ('pyarrow', 'pandas', 'polars'): sys.modules[name] = None\n"
        "from consilience.cli.commands import app\napp()"
    )
    assert command("r.csv", *OPTIONS, "-o", "t.csv", cwd=tmp_path, script=script).returncode == 1
    done = command("r.csv", *OPTIONS, "-o", "t.parquet", cwd=tmp_path, script=script)
    assert done.returncode == 2
    assert "consilience[tables]" in done.stderr.replace("\n", "")
