"""One thread for the tests: their matrices are small, and threads would wait for one another."""

import os
from pathlib import Path

import pytest

for variable in ["OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"]:
    os.environ.setdefault(variable, "1")

TESTS = Path(__file__).parent
SLOW = set((TESTS / "slow.txt").read_text().split())
# Minutes, mostly of waiting: each begins with the run, and the others go on meanwhile.
FIRST = ("test_a_federation_of_processes", "test_the_commands_of_the_example")


@pytest.hookimpl(tryfirst=True)  # before marks choose
def pytest_collection_modifyitems(config, items):
    """Mark what is slow. What waits for processes begins first, and what is quick ends."""
    for item in items:
        if f"{item.path.relative_to(TESTS).as_posix()}::{item.originalname}" in SLOW:
            item.add_marker("slow")
    kinds = ("integration", "slow")
    items.sort(key=lambda item: [item.get_closest_marker(kind) is None for kind in kinds])
    # Each worker begins with an equal share of the list.
    workers = getattr(config, "workerinput", {}).get("workercount", 1)
    for worker, name in enumerate(FIRST):
        for place in [n for n, item in enumerate(items) if item.originalname == name]:
            items.insert(len(items) // workers * (worker % workers), items.pop(place))


@pytest.fixture(params=["compiled", "plain"])
def each_loops(request, monkeypatch):
    """Run a test on the compiled loops, and once more on numpy's."""
    from consilience.passes import loops

    chosen = getattr(loops, request.param)
    if chosen is None:
        pytest.skip("the loops are not compiled here")
    monkeypatch.setattr(loops, "current", chosen)
    return chosen
