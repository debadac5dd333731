"""BLAS on one thread for a while, whoever else asks for it at the same time."""

from threading import Barrier, Thread

import numpy as np
import pytest

from consilience.passes import blas


def counts():
    return [get() for get, _ in blas._switches()]


@pytest.fixture(autouse=True)
def several():
    """Let BLAS have three threads, and put it back."""
    if not blas._switches():
        pytest.skip("no OpenBLAS in this process")
    before = counts()
    for _, switch in blas._switches():
        switch(3)
    yield
    for (_, switch), count in zip(blas._switches(), before, strict=True):
        switch(count)


def test_one_thread_within_and_as_many_as_before_after():
    assert set(counts()) == {3}
    with blas.one_thread():
        assert set(counts()) == {1}
        np.linalg.cholesky(np.eye(300))
    assert set(counts()) == {3}


def test_after_an_error_too():
    with pytest.raises(ValueError, match="so"), blas.one_thread():
        raise ValueError("so")
    assert set(counts()) == {3}


def test_rounds_that_overlap_restore_what_the_first_found():
    first, second = Barrier(2), Barrier(2)

    def other():
        with blas.one_thread():
            first.wait()
            second.wait()

    thread = Thread(target=other)
    thread.start()
    first.wait()
    with blas.one_thread():
        pass
    assert set(counts()) == {1}  # the other is still inside
    second.wait()
    thread.join()
    assert set(counts()) == {3}
