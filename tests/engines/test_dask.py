"""Shards on a real Dask scheduler with two real workers, on loopback; one is killed."""

import os
import subprocess
import sys
import time
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path
from threading import Thread

import numpy as np
import pytest
from numpy.testing import assert_allclose

import consilience as cs
import naive
import shards

distributed = pytest.importorskip("distributed")
from consilience.engines.dask import aggregate_shards  # noqa: E402
from consilience.passes.sampling import sampled_spans  # noqa: E402

pytestmark = [
    pytest.mark.integration,
    # What Dask says about dead workers and closing sockets is its own affair.
    pytest.mark.filterwarnings("default"),
]
COUNT = 6


@contextmanager
def cluster(folder):
    """A scheduler, two workers and a client: (client, the workers' processes)."""
    where = folder / "scheduler.json"
    paths = [str(Path(shards.__file__).parent), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    common = ["--scheduler-file", str(where), "--no-dashboard"]

    def start(what, *options):
        command = [sys.executable, "-m", f"distributed.cli.dask_{what}", *common, *options]
        with open(folder / f"{what}.log", "ab") as log:
            return subprocess.Popen(command, env=environment, stdout=log, stderr=log, cwd=folder)

    running = [start("scheduler", "--host", "127.0.0.1", "--port", "0")]
    try:
        deadline = time.monotonic() + 60
        while not where.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        workers = [
            start("worker", "--host", "127.0.0.1", "--nthreads", "1", "--no-nanny")
            for _ in range(2)
        ]
        running += workers
        with distributed.Client(scheduler_file=str(where), timeout=60) as client:
            client.wait_for_workers(2, timeout=60)
            yield client, workers
    finally:
        for process in running:
            process.kill()
            process.wait(timeout=30)


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    """Of one cluster for all, since its processes take seconds to start."""
    with cluster(tmp_path_factory.mktemp("dask")) as (client, _):
        yield client


def loads(**how):
    return [partial(shards.load, n, **how) for n in range(COUNT)]


def whole(bad=None):
    """The same parties, all shards in this process."""
    parts = [shards.load(n, bad) for n in range(COUNT)]
    return {p: {str(n): part[p]["w"] for n, part in enumerate(parts)} for p in parts[0]}


def saved(consensus):
    return [np.load(path).tobytes() for path in consensus.value]


def test_shards_agree_with_one_process_and_survive_a_killed_worker(tmp_path):
    with cluster(tmp_path) as (client, workers):
        agree_and_survive(client, workers, tmp_path)


def agree_and_survive(client, workers, tmp_path):
    quiet, disturbed = tmp_path / "quiet", tmp_path / "disturbed"
    quiet.mkdir(), disturbed.mkdir()
    expected = aggregate_shards(client, loads(), exact=True, save=partial(shards.save, quiet))
    alone = cs.aggregate(whole(), exact=True)
    assert expected.weights == pytest.approx(alone.weights, rel=1e-6)
    assert expected.groups == alone.groups == (("c0", "c1"),)
    for n, part in enumerate(saved(expected)):
        np.testing.assert_allclose(
            np.frombuffer(part, np.float32), alone.value[str(n)], rtol=1e-4, atol=1e-5
        )

    found = []
    thread = Thread(
        target=lambda: found.append(
            aggregate_shards(client, loads(), exact=True, save=partial(shards.save, disturbed))
        )
    )
    thread.start()
    deadline = time.monotonic() + 60
    while not list(disturbed.glob("begun-*")) and time.monotonic() < deadline:
        time.sleep(0.01)
    workers[0].kill()  # in the middle of the second pass
    thread.join(timeout=120)
    assert not thread.is_alive()
    assert len(client.scheduler_info()["workers"]) == 1
    assert saved(found[0]) == saved(expected)
    assert found[0].weights == expected.weights


def test_who_is_bad_in_one_shard_is_rejected_in_all(client):
    found = aggregate_shards(client, loads(bad="h2"))
    assert found.rejected == {"h2": "tensor 'w' holds nan at position 59993"}
    without = {p: update for p, update in whole().items() if p != "h2"}
    assert found.weights["h2"] == 0
    expected = cs.aggregate(without).weights
    assert {p: w for p, w in found.weights.items() if p != "h2"} == pytest.approx(
        expected, rel=0.02
    )
    missing = aggregate_shards(client, [partial(shards.lacking, n) for n in range(COUNT)])
    assert missing.rejected == {"h3": "it is not in every shard"}


def test_who_cannot_be_walked_through_costs_itself_alone(client):
    found = aggregate_shards(client, [partial(shards.nested, n) for n in range(3)])
    assert set(found.rejected) == {"h4"}
    with pytest.raises(RecursionError):
        aggregate_shards(client, [partial(shards.failing, n) for n in range(2)])


@pytest.mark.parametrize("method", ["coordinate-median", cs.TrimmedMean(0.4)])
def test_coordinatewise_rules_equal_those_in_process(client, method):
    found = aggregate_shards(client, loads(), method, exact=True)
    alone = cs.aggregate(whole(), method, exact=True)
    for n, part in enumerate(found.value):
        assert part["w"].tobytes() == alone.value[str(n)].tobytes()
    assert found.weights == pytest.approx(alone.weights)
    assert found.noise == pytest.approx(alone.noise)
    assert found.reasons == alone.reasons
    bad = aggregate_shards(client, loads(bad="h2"), method)
    assert bad.rejected == {"h2": "tensor 'w' holds nan at position 59993"}


@pytest.mark.parametrize("method", ["pairwise", "trimmed-mean"])
def test_what_hides_in_a_sampled_shard_is_found(client, method):
    """The places of the sample are those that the seed leads to, and the NaN is beside them."""
    seeds = np.random.default_rng(5).integers(2**63, size=2).tolist()
    spans = sampled_spans(shards.LARGE, 8, np.random.default_rng(seeds[1]))
    at = next(stop for (_, stop), (start, _) in pairwise(spans) if start > stop)
    large = [partial(shards.load, n, size=shards.LARGE, bad="h2", at=at) for n in range(2)]
    found = aggregate_shards(client, large, method, seed=5)
    assert found.rejected == {"h2": f"tensor 'w' holds nan at position {at}"}
    without = [shard() for shard in large]
    alone = cs.aggregate(
        {p: [part[p] for part in without] for p in without[0] if p != "h2"}, method, exact=True
    )
    for ours, theirs in zip(found.value, alone.value, strict=True):
        assert_allclose(ours["w"], theirs["w"], rtol=0.1, atol=0.02)
    assert found.weights["h2"] == 0


def test_squares_that_single_precision_cannot_hold(client):
    ordinary, tiny = (
        aggregate_shards(client, [partial(shards.poisoned, n, scale) for n in range(2)], seed=0)
        for scale in (1, 1e-25)
    )
    assert ordinary.uncorroborated["p0"] > 0.5
    assert tiny.uncorroborated == pytest.approx(ordinary.uncorroborated, rel=1e-4)
    assert tiny.reasons == ordinary.reasons


def test_memory_centers_and_sampling(client):
    large = [partial(shards.load, n, size=shards.LARGE) for n in range(2)]
    memory = cs.Memory()
    for _ in range(2):
        found = aggregate_shards(client, large, memory=memory)
    assert memory.rounds == 2
    ours = [[shard()[party]["w"] for party in memory.trails.parties] for shard in large]
    sent = np.hstack(ours)[:, memory.trails.places]
    errors = naive.errors_of(dict(zip(memory.trails.parties, sent, strict=True)))
    assert_allclose(memory.trails.means, [*errors.values()], atol=1e-6)
    assert found.diagnostics["coordinates_seen"] < shards.LARGE
    one, other, third = (aggregate_shards(client, large, seed=s).weights for s in (1, 1, None))
    assert one == other != third
    assert one == pytest.approx(third, rel=0.05)
    assert found.weights["c0"] + found.weights["c1"] < 0.1
    centers = [partial(shards.center, n) for n in range(COUNT)]
    around = aggregate_shards(client, loads(), "ivar-vb", centers=centers)
    assert sum(around.weights.values()) < 1  # the centre has a say
    with pytest.raises(cs.ConsilienceError, match="6 shards but 1 centers"):
        aggregate_shards(client, loads(), centers=centers[:1])
