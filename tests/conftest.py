"""One thread for the tests: their matrices are small, and threads would wait for one another."""

import os
import sys
from itertools import islice
from pathlib import Path

import pytest

for variable in ["OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"]:
    os.environ.setdefault(variable, "1")

TESTS = Path(__file__).parent
SLOW = set((TESTS / "slow.txt").read_text().split())
# Both on the first worker: two federations of processes at once are too much for two cores, and
# Flower's database then says it is locked. After them what imports Transformers and PEFT, for ten
# seconds: next to each other, on one worker.
FLOWER = ("test_flower_deployment", "test_documented")
ADAPTERS = ("test_adapters_federated", "test_peft", "test_peft_settings")


@pytest.hookimpl(tryfirst=True)  # before marks choose
def pytest_collection_modifyitems(config, items):
    """Mark what is slow. What waits for processes begins first, and what is quick ends."""
    for item in items:
        if f"{item.path.relative_to(TESTS).as_posix()}::{item.originalname}" in SLOW:
            item.add_marker("slow")

    def kind(item):
        if item.path.stem in (*FLOWER, *ADAPTERS):
            return "flower" if item.path.stem in FLOWER else "adapters"
        return next((m for m in ("integration", "slow") if item.get_closest_marker(m)), "quick")

    kinds = {"flower": [], "adapters": [], "integration": [], "slow": [], "quick": []}
    for item in items:
        kinds[kind(item)].append(item)
    heads = [kinds["flower"] + kinds["adapters"], kinds["integration"], kinds["slow"]]
    workers = getattr(config, "workerinput", {}).get("workercount", 1)
    items[:] = in_parts(heads, kinds["quick"], workers)


def in_parts(heads, quick, workers):
    """Order the tests so that each worker begins with a head of its own, and ends with what is
    quick. A worker is given its part of the list, and who is idle steals from the end of another's:
    were all that waits at the beginning of the list, it would stay with one worker to the end."""
    rest, total, found = iter(quick), sum(map(len, (*heads, quick))), []
    for n in range(workers - 1):
        found += [item for head in heads[n : n + 1] for item in head]
        found += islice(rest, max(total * (n + 1) // workers - len(found), 0))
    return [*found, *(item for head in heads[workers - 1 :] for item in head), *rest]


@pytest.fixture(scope="session")
def transformers_import():
    """Hide a torchvision that was made for another torch: ByzFL may bring one along, and
    Transformers, which does not need it, could not be imported."""
    try:
        import torchvision  # noqa: F401
    except (ImportError, RuntimeError):  # not there, or its operators do not fit torch's
        sys.modules["torchvision"] = None


@pytest.fixture(params=["compiled", "plain"])
def each_loops(request, monkeypatch):
    """Run a test on the compiled loops, and once more on numpy's."""
    from consilience.passes import loops

    chosen = getattr(loops, request.param)
    if chosen is None:
        pytest.skip("the loops are not compiled here")
    monkeypatch.setattr(loops, "current", chosen)
    return chosen
