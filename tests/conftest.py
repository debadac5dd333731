"""One thread for the tests: their matrices are small, and threads would wait for one another."""

import os

import pytest

for variable in ["OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"]:
    os.environ.setdefault(variable, "1")


def pytest_collection_modifyitems(items):
    """What mostly waits begins first, and the others run meanwhile."""
    items.sort(key=lambda item: "test_flower_deployment" not in item.nodeid)


@pytest.fixture(params=["compiled", "plain"])
def each_loops(request, monkeypatch):
    """Run a test on the compiled loops, and once more on numpy's."""
    from consilience.passes import loops

    chosen = getattr(loops, request.param)
    if chosen is None:
        pytest.skip("the loops are not compiled here")
    monkeypatch.setattr(loops, "current", chosen)
    return chosen
