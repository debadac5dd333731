"""What a worker process runs in a test; it must be importable from there."""

import os

from consilience.passes.parallel import cores


def work(value, tick):
    threads = [int(os.environ["OMP_NUM_THREADS"]), cores()]
    return [{"value": value, "process": os.getpid(), "threads": threads}]


def fail(tick):
    raise ValueError("this cell cannot be run")
