"""consilience merge as a person and a script meet it, kills included."""

import json
import os
import re
import signal
import time
from pathlib import Path
from threading import Event

import numpy as np
import pytest
from rich.console import Console
from safetensors.numpy import load_file, save_file
from typer.testing import CliRunner

import consilience as cs
from consilience.cli.commands import app
from consilience.cli.merge import _bar
from forks import MERGE, Forks


def run(*words: object) -> tuple[int, str, str]:
    found = CliRunner().invoke(app, ["merge", *map(str, words)])
    return found.exit_code, found.stdout, found.stderr.replace("\n", "")


def versions(count=5, size=1000, seed=0):
    random = np.random.default_rng(seed)
    truth = random.standard_normal(size)
    noise = random.standard_normal((count, size)) * 0.1
    return [{"w": (truth + e).astype(np.float32), "n": np.array(7)} for e in noise]


@pytest.fixture
def here(tmp_path: Path, monkeypatch):
    """Five good versions, good0 to good4, in the folder one is in."""
    monkeypatch.chdir(tmp_path)
    for j, model in enumerate(versions()):
        save_file(model, f"good{j}.safetensors")
    return tmp_path


def poison(here: Path):
    flipped, broken = versions(2, seed=1)
    save_file({"w": -10 * flipped["w"], "n": flipped["n"]}, here / "flipped.safetensors")
    broken["w"][17] = np.nan
    save_file(broken, here / "broken.safetensors")


def test_good_versions_merge_into_their_mean(here: Path):
    code, said, _ = run("good*.safetensors", "-o", "out.safetensors")
    assert code == 0
    assert "written: out.safetensors" in said
    assert [f"good{j}.safetensors" in said for j in range(5)] == [True] * 5
    mean = np.mean([model["w"] for model in versions()], axis=0)
    found = load_file("out.safetensors")
    assert np.linalg.norm(found["w"] - mean) < 0.01 * np.linalg.norm(mean)
    assert found["n"] == 7


def test_the_bad_are_named_and_scripts_are_told(here: Path):
    poison(here)
    code, said, _ = run("*.safetensors", "-o", "out.safetensors", "--json")
    assert code == 1
    found = json.loads(said)
    assert found["output"] == "out.safetensors"
    assert found["method"] == "pairwise"
    assert found["parties"]["broken.safetensors"] == {
        "weight": 0.0,
        "noise": None,
        "noise_interval": None,
        "group": None,
        "rejected": True,
        "reason": "tensor 'w' holds nan at position 17",
    }
    flipped = found["parties"]["flipped.safetensors"]
    assert flipped["weight"] < 0.01
    assert "noise" in flipped["reason"]
    assert found["parties"]["good0.safetensors"]["reason"] is None
    code, said, _ = run("*d*.safetensors", "-o", "out2.safetensors")
    assert code == 1
    assert "flipped.safetensors" in said
    assert "× the typical" in said


@pytest.mark.parametrize("method", cs.methods())
def test_table_code_json_and_record_agree_whatever_the_method(here: Path, method):
    flipped = load_file("good0.safetensors")
    save_file({**flipped, "w": -flipped["w"]}, "flipped.safetensors")
    words = ["[fg]*.safetensors", "--method", method]
    code, said, _ = run(*words, "-o", "out.safetensors", "--record", "r.jsonl")
    assert code == 1
    assert "× the typical" in said
    _, said, _ = run(*words, "--dry-run", "--json")
    parties = json.loads(said)["parties"]
    assert {p for p in parties if parties[p]["reason"]} == {"flipped.safetensors"}
    (kept,) = cs.Record.read("r.jsonl")
    assert set(kept.reasons) == {"flipped.safetensors"}


@pytest.mark.parametrize("method", ["pairwise", "ivar-vb", "krum"])
def test_noise_is_shown_with_its_interval_where_there_is_one(here: Path, method):
    words = ["good*.safetensors", "--method", method]
    _, said, _ = run(*words, "-o", "out.safetensors", "--record", "r.jsonl")
    found = re.findall(r" 0\.\d+ \((0\.\d+)–(0\.\d+)\) ", said)
    _, told, _ = run(*words, "--dry-run", "--json")
    parties = json.loads(told)["parties"]
    (kept,) = cs.Record.read("r.jsonl")
    if method == "krum":
        assert found == []
        assert {one["noise_interval"] for one in parties.values()} == {None}
        assert kept.noise_intervals == {}
        return
    assert len(found) == len(kept.noise_intervals) == 5
    for one in parties.values():
        assert one["noise_interval"][0] < one["noise"] < one["noise_interval"][1]
    shown = sorted((float(low), float(high)) for low, high in found)
    np.testing.assert_allclose(shown, sorted(kept.noise_intervals.values()), rtol=0.01)


def test_the_weight_of_the_centre_is_shown(here: Path):
    random = np.random.default_rng(0)
    for j in range(4):
        save_file({"w": 30 * random.standard_normal(1000)}, f"noisy{j}.safetensors")
    code, said, warned = run("noisy*.safetensors", "--dry-run", "--method", "ivar-vb")
    assert code == 1  # nobody stands out, but this is no merge of theirs
    assert re.search(r"the centre *\d\d\.\d %", said)
    assert re.search(r"the centre holds \d\d % of the weight", warned)
    _, said, _ = run("noisy*.safetensors", "--dry-run", "--method", "ivar-vb", "--json")
    found = json.loads(said)
    total = sum(party["weight"] for party in found["parties"].values())
    assert found["center_weight"] == pytest.approx(1 - total)
    assert found["center_weight"] > 0.5
    assert len(found["caveats"]) == 1
    assert "centre" not in run("good*.safetensors", "--dry-run")[1]


def test_two_cannot_judge_each_other(here: Path):
    code, said, warned = run("good[01].safetensors", "-o", "out.safetensors")
    assert code == 1
    assert "only 2 usable parties" in warned
    assert "written: out.safetensors" in said
    poison(here)
    code, said, _ = run("good[01].safetensors", "broken.safetensors", "--dry-run", "--json")
    assert code == 1
    assert json.loads(said)["caveats"] == [
        "only 2 usable parties: neither can be judged by the other"
    ]


def test_parties_that_move_together_are_one_group(here: Path):
    one = load_file("good0.safetensors")
    for j in range(3):
        save_file(one, f"copy{j}.safetensors")
    _, said, _ = run("*.safetensors", "--dry-run", "--json")
    parties = json.loads(said)["parties"]
    groups = {name: party["group"] for name, party in parties.items()}
    assert {name for name, group in groups.items() if group == 1} == {
        "good0.safetensors",
        *(f"copy{j}.safetensors" for j in range(3)),
    }


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        (["--least-parties", "6"], "4.99 effective parties, expected 6 at least"),
        (["--most-suspects", "0.1"], "1 of 7 parties are rejected or move together (broken"),
    ],
)
def test_what_does_not_count_is_not_merged(here: Path, asked, reason):
    poison(here)
    before = sorted(os.listdir())
    code, _, said = run("*.safetensors", "-o", "out.npz", "--memory", "m.npz", *asked)
    assert code == 2
    assert reason in said
    assert sorted(os.listdir()) == before


def test_some_tensors_are_merged_and_some_judged_by(here: Path):
    for j, model in enumerate(versions()):
        head = np.full(j + 1, np.nan, np.float32)
        save_file({**model, "head": head, "bn": np.full(3, 99.0 * j)}, f"good{j}.safetensors")
    words = ["good*.safetensors", "-o", "out.npz", "--tensors", "!head", "--evidence", "!bn"]
    code, said, _ = run(*words)
    assert code == 0, said
    assert set(np.load("out.npz")) == {"w", "n", "bn"}
    code, _, said = run(*words, "--force", "--tensors", "!haed")
    assert code == 2
    assert "no tensor is called like '!haed'" in said


def test_a_dry_run_writes_no_model(here: Path):
    poison(here)
    words = ["*.safetensors", "--dry-run", "--memory", "m.npz", "--record", "r.jsonl"]
    before = sorted(os.listdir())
    code, said, _ = run(*words, "-o", "out.safetensors", "--json")
    assert code == 1
    assert sorted(os.listdir()) == before
    dry = json.loads(said)
    _, said, _ = run("*.safetensors", "-o", "out.safetensors", "--json")
    assert dry["parties"] == json.loads(said)["parties"]
    assert dry["output"] is None


def test_memory_record_and_report(here: Path):
    words = ["good*.safetensors", "-o", "out.safetensors", "--force"]
    words += ["--memory", "m.npz", "--record", "r.jsonl", "--report", "r.html"]
    for count, before in ((1, ""), (2, ", after 1 that were there")):
        code, said, _ = run(*words)
        assert code == 0
        assert said.splitlines()[-4:] == [
            "written: out.safetensors",
            f"written: m.npz, a memory of {count} rounds",
            f"written: r.jsonl, round {count}{before}",
            "written: r.html",
        ]
        assert cs.Memory.load("m.npz").rounds == count
        assert [r.round for r in cs.Record.read("r.jsonl")] == list(range(1, count + 1))
    assert "good3.safetensors" in Path("r.html").read_text()
    assert run("good*.safetensors", "--dry-run", "--report", "alone.html")[0] == 0
    assert "good3.safetensors" in Path("alone.html").read_text()
    assert not [name for name in os.listdir() if name.startswith(".")]


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["good0.safetensors"], "where to?"),
        (["nobody*.safetensors", "-o", "x.npz"], "nobody*.safetensors: no file is called"),
        (["nobody.safetensors", "-o", "x.npz"], "nobody.safetensors: no file is called"),
        (["good?.safetensors", "nobody.npz", "-o", "x.npz"], "nobody.npz: no file is called"),
        (["good0.safetensors", "-o", "good0.safetensors"], "exists already"),
        (["good?.safetensors", "-o", "good0.safetensors", "--force"], "one of the inputs"),
        (["good0.safetensors", "-o", "x.npz", "--base", "good1.npz"], "good1.npz: cannot be"),
        (
            [
                "good?.safetensors",
                "--base",
                "good.safetensors",
                "-o",
                "good.safetensors",
                "--force",
            ],
            "one of the inputs",
        ),
        (["good0.safetensors", "./good0.safetensors", "-o", "x.npz"], "given twice"),
        (["model.pt", "-o", "x.npz"], "save_file(torch.load(old, weights_only=True), new)"),
        (["good0.safetensors", "-o", "x.pt"], "x.pt: expected the name of a .safetensors"),
        (["good0.safetensors", "-o", "no/x.npz"], "there is no folder no"),
        (["good0.safetensors", "-o", "x.npz", "--method", "magic"], "unknown method 'magic'"),
        (["good0.safetensors", "-o", "x.npz", "--memory", "good1.safetensors"], "not a readable"),
        (["good0.safetensors", "-o", "x.npz", "--record", "good1.safetensors"], "not a record"),
        (["good0.safetensors", "-o", "x.npz", "--report", "good1.safetensors"], "an .html file"),
        (["good?.safetensors", "-o", "x.npz", "--most-suspects", "2"], "a share from 0 to 1"),
    ],
)
def test_mistakes_are_told_and_change_nothing(here: Path, words, reason):
    Path("model.pt").write_bytes(b"cos\nabort\n(tR.")
    save_file(versions()[0], "good.safetensors")
    before = {name: Path(name).read_bytes() for name in os.listdir()}
    code, _, said = run(*words)
    assert code == 2
    assert reason in said
    assert {name: Path(name).read_bytes() for name in os.listdir()} == before


def test_an_existing_output_needs_force(here: Path):
    Path("out.safetensors").write_text("precious")
    assert run("good*.safetensors", "-o", "out.safetensors")[0] == 2
    assert Path("out.safetensors").read_text() == "precious"
    assert run("good*.safetensors", "-o", "out.safetensors", "--force")[0] == 0
    assert load_file("out.safetensors")["n"] == 7


def test_what_cannot_be_kept_does_not_cost_the_model(here: Path):
    Path("r.html").mkdir()
    code, _, said = run("good*.safetensors", "-o", "out.safetensors", "--report", "r.html")
    assert code == 1
    assert "merged, but:" in said
    assert load_file("out.safetensors")["n"] == 7


@pytest.fixture
def mergers(tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for j, model in enumerate(versions(4, 1_000_000)):
        save_file(model, f"good{j}.safetensors")
    words = "good*.safetensors -o out.safetensors --force --exact --memory m.npz --record r.jsonl"
    with Forks(MERGE, words) as found:
        yield found


def test_threads_at_work_stop_when_the_end_is_asked_for():
    ended = Event()
    with _bar(Console(quiet=True), ended) as tell:
        tell("combination", 1, 2)
        ended.set()
        with pytest.raises(KeyboardInterrupt):
            tell("combination", 2, 2)


def writing_has_begun():
    deadline = time.monotonic() + 30
    while not [*Path().glob(".out.*.partial/content")] and time.monotonic() < deadline:
        time.sleep(0.001)


@pytest.mark.integration
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_cancelled_it_cleans_up(mergers: Forks, how):
    before = set(os.listdir())
    assert mergers.run(writing_has_begun, how) == 130
    assert set(os.listdir()) == before
