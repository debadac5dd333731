"""The fuzzer for 100 cases, and the fuzzer itself: it sees what it is there to see."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from consilience.engines import aggregate, in_process
from fuzz import driver

TESTS = Path(__file__).parent.parent


def fuzz(*options: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
    return subprocess.run(
        [sys.executable, "-m", "fuzz", *options],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.mark.integration
def test_a_hundred_cases_of_hostile_input():
    found = fuzz("--seconds", "1e9", "--cases", "100", "--seed", "7")
    assert found.returncode == 0, found.stderr[-20_000:]
    told = re.match(r"(\d+) cases in \d+ s \((.*)\), 0 failures", found.stdout)
    assert told, found.stdout
    assert int(told[1]) == 100
    for kind in (
        "updates",
        "safetensors",
        "npz",
        "adapters",
        "memory",
        "record",
        "checkpoint",
        "csv",
        "flower",
    ):
        assert re.search(rf"\b{kind} \d+", told[2]), f"no case of {kind} was run"


def first_failure(folder: Path, kind: str, cases: int = 40) -> str:
    found = (driver.attempt(kind, 7, number, folder) for number in range(cases))
    return next((failure for failure in found if failure), "")


def test_a_coordinate_that_was_not_computed_is_seen(monkeypatch, tmp_path):
    honest = in_process.combine

    def combine(updates, weights, room, *more):
        made = {}

        def watched(path):
            made[path] = room(path)
            return made[path]

        apart = honest(updates, weights, watched, *more)
        for storage in made.values():
            storage[-1:] = 12345
        return apart

    monkeypatch.setattr(in_process, "combine", combine)
    assert "the value at" in first_failure(tmp_path, "updates")


def test_a_sound_party_that_is_rejected_is_seen(monkeypatch, tmp_path):
    honest = aggregate.parse

    def parse(*arguments):
        found = honest(*arguments)
        return found.without({found.parties[0]: "no"}) if len(found.parties) > 1 else found

    monkeypatch.setattr(aggregate, "parse", parse)
    assert "is sound and was rejected: no" in first_failure(tmp_path, "updates")


def test_a_slow_case_is_seen(monkeypatch, tmp_path):
    monkeypatch.setattr(driver, "SLOW", -1.0)
    assert "of processor time" in first_failure(tmp_path, "updates")
