"""Progress that fits the terminal."""

import subprocess
import sys
import time
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from consilience import ConsilienceError
from consilience.lab.runner import Cell, bars, load, pack, store, unpack


def test_a_long_name_does_not_push_the_numbers_off_the_screen():
    told = Console(file=StringIO(), width=80, force_terminal=True, color_system=None)
    with bars(told) as progress:
        progress.add_task("breakdown " + "method-pairwise_seed-2_" * 9, total=300, completed=17)
        shown = told.render_lines(progress.get_renderable(), told.options)
    lines = ["".join(part.text for part in line) for line in shown]
    assert len(lines) == 1
    assert "17/300" in lines[0]
    assert lines[0].rstrip().endswith("0:00:00")
    assert "…" in lines[0]


def test_cells_go_through_one_file_and_nothing_else_does(tmp_path):
    first, second = (Cell("x", {"seed": n}, lambda tick, n=n: [{"value": n}]) for n in (0, 1))
    store(first, tmp_path / "there")
    file = tmp_path / "cells.jsonl"
    pack([first, second], tmp_path / "there", file)
    assert len(file.read_text().splitlines()) == 1  # the second is not finished
    file.write_text(file.read_text() + file.read_text().replace('"x"', '"../../y"'))
    assert unpack(file, [first, second], tmp_path / "here") == 1
    assert load(first, tmp_path / "here") == [{"seed": 0, "value": 0}]
    assert load(second, tmp_path / "here") is None
    assert not list(tmp_path.glob("**/y"))

    file.write_text(file.read_text().replace('"value": 0', '"value": 7'))
    unpack(file, [first], tmp_path / "here")
    assert load(first, tmp_path / "here") == [{"seed": 0, "value": 0}]  # it was there already


@pytest.mark.parametrize("line", ["{", "[]", "{}", "3"])
def test_a_file_that_is_none_of_cells_is_named(tmp_path, line):
    file = tmp_path / "cells.jsonl"
    file.write_text('{"experiment": "x", "settings": {}}\n' + line + "\n")
    with pytest.raises(ConsilienceError, match=r"cells\.jsonl, line 2: expected a finished cell"):
        unpack(file, [], tmp_path)


# A pool whose workers tell their ids and then have much to do.
POOL = """
import os, time
from consilience.lab.runner import processes

if __name__ == "__main__":
    with processes(2) as pool:
        print(*pool.map(abs, range(2)), *(each.pid for each in pool._pool), flush=True)
        pool.map(time.sleep, [600, 600])
"""


@pytest.mark.integration
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_workers_end_with_a_parent_that_is_killed(tmp_path):
    script = tmp_path / "pool.py"
    script.write_text(POOL)
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE) as parent:
        workers = [int(word) for word in parent.stdout.readline().split()[2:]]
        assert len(workers) == 2
        parent.kill()
    deadline = time.monotonic() + 30
    while any(running(worker) for worker in workers):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def running(pid):
    try:
        told = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return told.rsplit(")", 1)[1].split()[0] != "Z"  # a zombie waits to be reaped, no more
