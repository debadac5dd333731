"""How many cores a pass uses."""

import threading

import pytest

import consilience as cs
from consilience.passes import parallel


@pytest.mark.parametrize(("asked", "found"), [("1", 1), ("2", 2), ("99", 3), ("", 3)])
def test_fewer_threads_can_be_asked_for(monkeypatch, asked, found):
    monkeypatch.setattr(parallel.os, "sched_getaffinity", lambda pid: {0, 1, 2}, raising=False)
    monkeypatch.setenv("CONSILIENCE_THREADS", asked)
    assert parallel.cores() == found


@pytest.mark.parametrize("asked", ["0", "-1", "two", "1.5"])
def test_what_is_no_number_of_threads_is_named(monkeypatch, asked):
    monkeypatch.setenv("CONSILIENCE_THREADS", asked)
    with pytest.raises(cs.ConsilienceError, match=f"CONSILIENCE_THREADS is {asked}, expected a"):
        parallel.cores()


def test_with_one_thread_the_work_stays_where_it_is(monkeypatch):
    monkeypatch.setenv("CONSILIENCE_THREADS", "1")
    names = list(parallel.in_order(lambda _: threading.current_thread().name, range(3)))
    assert names == [threading.current_thread().name] * 3
