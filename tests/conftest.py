"""One thread for the tests: their matrices are small, and threads would wait for one another."""

import os
import sys
from pathlib import Path

import pytest

for variable in ["OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"]:
    os.environ.setdefault(variable, "1")

TESTS = Path(__file__).parent
SLOW = set((TESTS / "slow.txt").read_text().split())
# A minute or two each, so the run begins with them; both on the first worker, since two federations
# of processes at once are too much for two cores, and Flower's database then says it is locked.
FIRST = ("test_flower_deployment", "test_documented")
# Where Transformers and PEFT are imported, for ten seconds: next to each other, on one worker.
ADAPTERS = ("test_adapters_federated", "test_peft", "test_peft_settings")


@pytest.hookimpl(tryfirst=True)  # before marks choose
def pytest_collection_modifyitems(items):
    """Mark what is slow. What waits for processes begins first, and what is quick ends."""
    for item in items:
        if f"{item.path.relative_to(TESTS).as_posix()}::{item.originalname}" in SLOW:
            item.add_marker("slow")

    def order(item):
        marks = ("integration", "slow")
        first = (item.path.stem not in names for names in (FIRST, ADAPTERS))
        return *first, *(item.get_closest_marker(m) is None for m in marks)

    items.sort(key=order)


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
