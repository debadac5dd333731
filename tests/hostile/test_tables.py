"""Tables made to mislead or to stop `infer`: names, values, shapes and sizes nobody expects."""

import csv
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import consilience as cs
from consilience.cli.commands import app
from consilience.crowd.inference import PARTY_COLUMNS, TRUTH_COLUMNS

NAMES = {"task": "item", "party": "worker", "value": "score"}
METHODS = ["pairwise", "affine", "ivar", "median", "mean"]
ESCAPES = "eve\n\x1b[2Jann: all is well\x9b31m\u202e"


def table(rows):
    return dict(zip(("item", "worker", "score"), map(list, zip(*rows, strict=True)), strict=True))


def rows_of(parties, tasks=12, seed=0):
    rng = np.random.default_rng(seed)
    return [(f"t{t}", p, t + rng.normal()) for t in range(tasks) for p in parties]


def save(path: Path, rows, header=("item", "worker", "score")) -> Path:
    with open(path, "w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([header, *rows])
    return path


def run(*words):
    done = CliRunner().invoke(app, ["infer", *map(str, words)])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done


def printable(text: str) -> bool:
    return text.replace("\n", "").isprintable()


@pytest.mark.parametrize("name", TRUTH_COLUMNS)
def test_task_ids_are_not_overwritten(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    save(Path("r.csv"), rows_of("xyz"), (name, "worker", "score"))
    options = ["--task", name, "--party", "worker", "--value", "score"]
    done = run("r.csv", *options, "-o", "t.csv")
    assert done.exit_code == 2
    assert f"cannot be called '{name}'" in done.output.replace("\n", " ")
    assert not Path("t.csv").exists()
    assert run("r.csv", *options).exit_code == 0  # nothing is written, nothing is lost
    with pytest.raises(cs.TableError, match=f"cannot be called '{name}'"):
        cs.infer(table(rows_of("xyz")), **NAMES).save("t.csv", name)


@pytest.mark.parametrize("name", PARTY_COLUMNS)
def test_party_ids_are_not_overwritten(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    save(Path("r.csv"), rows_of("xyz"), ("item", name, "score"))
    options = ["--task", "item", "--party", name, "--value", "score"]
    done = run("r.csv", *options, "--parties-out", "p.csv")
    assert done.exit_code == 2
    assert f"cannot be called '{name}'" in done.output.replace("\n", " ")
    with pytest.raises(cs.TableError, match=f"cannot be called '{name}'"):
        cs.infer(table(rows_of("xyz")), **NAMES).save_parties("p.csv", name)
    assert not Path("p.csv").exists()


def test_ids_that_look_like_formulas_stay_what_they_are(tmp_path):
    ids = ["=1+1", "+1", "-1", '@SUM(A1)"', "\t=1", "line\r\nend"]
    cs.infer(table(rows_of(ids)), **NAMES).save_parties(tmp_path / "p.csv", "worker")
    with open(tmp_path / "p.csv", encoding="utf-8", newline="") as file:
        assert sorted(row["worker"] for row in csv.DictReader(file)) == sorted(ids)


def test_names_reach_the_terminal_as_one_printable_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    parties = [ESCAPES, "x" * 9000, *"abcdefgh"]
    rows = [(t, p, t + rng.normal()) for t in range(40) for p in parties[2:]]
    shared = rng.normal(size=40)
    rows += [(t, p, 5 * shared[t]) for t in range(40) for p in parties[:2]]
    save(Path("r.csv"), [(f"\x1b]0;{t}", p, x) for t, p, x in rows], (ESCAPES, "worker", "score"))
    options = ["--task", ESCAPES, "--party", "worker", "--value", "score"]
    done = run("r.csv", *options)
    assert done.exit_code == 1  # two move together
    assert "voice" in done.output
    assert printable(done.output)
    assert len(done.output) < 20_000
    done = run("r.csv", *options, "--json")
    assert printable(done.output)
    assert ESCAPES in json.loads(done.output)["parties"]


@pytest.mark.parametrize(
    ("header", "rows", "options"),
    [
        ((ESCAPES, "worker", "score"), rows_of("xy"), ["item", "worker", "score"]),
        (("item", "worker", "score"), rows_of("xy"), [ESCAPES, "worker", "score"]),
        (("item", "worker", ESCAPES), rows_of("xy"), ["item", ESCAPES, ESCAPES]),
        (("item", "worker", "score"), [("a", "x", ESCAPES)], ["item", "worker", "score"]),
        (("item", "worker", "score"), [("a", "x", "9" * 100_000)], ["item", "worker", "score"]),
        (
            ("item", "worker", "score"),
            [(ESCAPES, "x" * 9000, 1e250), *rows_of("xy")],
            ["item", "worker", "score"],
        ),
        ([f"column {c}" for c in range(10_000)], [], ["item", "worker", "score"]),
    ],
)
def test_errors_are_short_and_printable(tmp_path, monkeypatch, header, rows, options):
    monkeypatch.chdir(tmp_path)
    save(Path("r.csv"), rows, header)
    words = zip(("--task", "--party", "--value"), options, strict=True)
    done = run("r.csv", *(word for pair in words for word in pair))
    assert done.exit_code == 2
    assert printable(done.output)
    assert len(done.output) < 2500


def test_file_names_are_shown_on_one_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("no\n\x1b[2J.csv", "no\n\x1b[2J.txt"):
        done = run(name, "--task", "item", "--party", "worker", "--value", "score")
        assert done.exit_code == 2
        assert printable(done.output)


def test_two_ids_that_look_the_same_on_a_line_keep_their_own_reasons():
    rng = np.random.default_rng(0)
    rows = rows_of(["a\nb", *"uvwxyz"], tasks=40)
    rows += [(f"t{t}", "a\\nb", t + 30 * rng.normal()) for t in range(40)]
    found = cs.infer(table(rows), **NAMES)
    assert "noise" in found.reasons["a\\nb"]
    assert "a\nb" not in found.reasons


@pytest.mark.parametrize(
    ("column", "values", "expected"),
    [
        ("item", [["a"], ["b"], ["c"]], "row 0: expected text or a number as an id, found list"),
        ("worker", ["x", {"y": 1}, "z"], "row 1: expected text or a number.*found dict.*'worker'"),
        ("worker", ["x", 10**5000, "z"], "row 1: an id too long to be written"),
        ("score", [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], "row 0: expected a number.*'score'"),
        ("score", [1.0, 10**5000, 2.0], "row 1: expected a number.*'score', found one too large"),
        ("score", [1.0, 2j, 2.0], "row 1: expected a number.*'score', found '2j'"),
        ("score", [1.0, 2.0, -1.7e308], "row 2: expected a finite number of at most 1e\\+300"),
        ("score", [1.0, float("inf"), 2.0], "row 1: expected a finite number"),
        ("score", "123", "expected a list of values in column 'score', found str"),
        ("score", {0: 1.0, 1: 2.0, 2: 3.0}, "expected a list of values.*found dict"),
        ("score", np.array(1.0), "expected a list of values.*found ndarray"),
        ("item", 7, "expected a list of values in column 'item', found int"),
    ],
)
def test_what_is_no_id_and_no_rating_is_named(column, values, expected):
    columns = {"item": list("abc"), "worker": list("xyz"), "score": [1.0, 2.0, 3.0]}
    with pytest.raises(cs.TableError, match=expected):
        cs.infer({**columns, column: values}, **NAMES)


@pytest.mark.parametrize("column", ["item", "worker", "score"])
def test_nested_columns_of_parquet_are_named(tmp_path, column):
    plain = {"item": list("ab"), "worker": list("xy"), "score": [1.0, 2.0]}
    for nested in ([{"a": 1}, {"a": 2}], [[1.0, 2.0], [3.0, 4.0]]):
        pq.write_table(pa.table({**plain, column: nested}), tmp_path / "t.parquet")
        with pytest.raises(cs.TableError, match=f"row 0: expected .* column '{column}'"):
            cs.infer(tmp_path / "t.parquet", **NAMES)


def test_nul_bytes_are_text_like_any_other_and_huge_fields_are_named(tmp_path):
    path = save(tmp_path / "t.csv", [(f"a{t}\0", f"x{p}", t) for t in range(3) for p in range(3)])
    assert set(cs.infer(path, **NAMES).truth) == {"a0\0", "a1\0", "a2\0"}
    save(path, [("a", "x", "1"), ("b", "y" * 1_000_000, "1")])
    with pytest.raises(cs.TableError, match="line 3: field larger"):
        cs.infer(path, **NAMES)


def test_text_that_no_file_can_hold_is_named(tmp_path):
    found = cs.infer(table(rows_of(["x", "y\ud800", "z"])), **NAMES)
    for name in ("p.csv", "p.parquet"):
        with pytest.raises(cs.TableError, match="no valid text"):
            found.save_parties(tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_ids_too_large_for_parquet_become_text(tmp_path):
    found = cs.infer(table(rows_of([1, 2, 10**30])), **NAMES)
    found.save_parties(tmp_path / "p.parquet", "worker")
    assert pq.read_table(tmp_path / "p.parquet")["worker"].to_pylist() == ["1", str(10**30), "2"]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    "rows",
    [
        [("a", "x", 5.0)] * 3000,
        [("a", "x", 1e300)] * 3000 + [("a", "y", 1e300), ("b", "x", -1e300)],
        [(t, "x", float(t)) for t in range(50)],
        [("a", p, float(p)) for p in range(50)],
        [("a", p, 1.0) for p in range(50)],
        [(t, p, 3.0) for t in range(10) for p in range(10)],
        [(t, t, float(t)) for t in range(50)],
        [(t, p, 5e-324 * round(10 * x)) for t, p, x in rows_of(range(9), tasks=9)],
        [(t, p, 1e298 * x) for t, p, x in rows_of(range(9), tasks=9)],
    ],
    ids=["one rating", "far apart", "one party", "one task", "one task, equal", "all equal",
         "nothing in common", "tiny", "huge"],
)  # fmt: skip
def test_tables_that_say_little_give_finite_truths(rows, method):
    found = cs.infer(table(rows), **NAMES, method=method)
    truths, values = list(found.truth.values()), [value for _, _, value in rows]
    assert np.isfinite(truths).all()
    slack = 1e-3 * (max(values) / 2 - min(values) / 2)
    assert min(values) - slack <= min(truths)
    assert max(truths) <= max(values) + slack
    assert not found.groups


def test_a_link_to_itself_is_replaced_like_any_other(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("t.csv").write_text("i,w,s\na,x,1\nb,x,2\na,y,1\nb,y,2\n")
    Path("out.csv").symlink_to("out.csv")
    words = "infer t.csv --task i --party w --value s -o out.csv --parties-out parties.csv"
    assert CliRunner().invoke(app, words.split()).exit_code == 0
    assert Path("out.csv").read_text().startswith("i,truth")


def test_what_is_wrong_with_a_line_is_said_on_one_line(tmp_path):
    path = tmp_path / "ratings.tsv"
    path.write_text('item\tworker\tscore\nt1\t"a"b\t3\n')
    with pytest.raises(cs.TableError) as caught:
        cs.infer(path, **NAMES)
    assert str(caught.value).isprintable()
