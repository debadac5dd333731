"""What a worker process runs in a test; it must be importable from there."""

import os


def work(value, tick):
    return [{"value": value, "process": os.getpid(), "threads": os.environ["OMP_NUM_THREADS"]}]


def fail(tick):
    raise ValueError("this cell cannot be run")
