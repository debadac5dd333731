"""Integers and booleans: no one party decides."""

import doctest

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

import consilience as cs
from consilience.engines.dask import Shard
from consilience.updates import votes
from consilience.updates.parsing import parse
from consilience.updates.votes import at_most_a_third, weighted_median


def test_the_examples():
    assert doctest.testmod(votes).attempted
    assert not doctest.testmod(votes).failed


@given(st.lists(st.floats(1e-6, 1e12), min_size=3, max_size=9))
def test_two_can_outvote_one(weights):
    ballots = at_most_a_third(np.array(weights))
    assert ballots.max() <= ballots.sum() / 3 * (1 + 1e-9)
    uncut = ballots < ballots.max()
    assert (ballots[uncut] == np.array(weights)[uncut]).all()


@given(
    st.lists(st.tuples(st.integers(-5, 5), st.integers(1, 4)), min_size=1, max_size=7),
)
def test_the_median_of_the_votes_written_out(voters):
    written = sorted(value for value, count in voters for _ in range(count))
    values = np.array([[value] for value, _ in voters])
    counts = np.array([count for _, count in voters], float)
    assert weighted_median(values, counts)[0] == written[(len(written) - 1) // 2]


def parties(heavy):
    honest = {
        f"p{j}": {"w": np.full(3, 1.0 + j), "m": np.array([True, False]), "n": np.int64(7)}
        for j in range(4)
    }
    return {
        **honest,
        "eve": {"w": np.full(3, 2.0), "m": np.array([False, True]), "n": np.int64(heavy)},
    }


@pytest.mark.parametrize("claim", [np.iinfo(np.int64).max, np.iinfo(np.int64).min])
@pytest.mark.parametrize(
    "wrap", [lambda tree: tree, lambda tree: {k: torch.tensor(v) for k, v in tree.items()}]
)
def test_a_claim_of_samples_sets_no_mask(claim, wrap):
    updates = {p: wrap(tree) for p, tree in parties(claim).items()}
    counts = {**dict.fromkeys(updates, 1), "eve": 1e6}
    found = cs.aggregate(updates, "mean", sample_counts=counts)
    assert found.weights["eve"] > 0.999
    assert found.value["m"].tolist() == [True, False]
    assert int(found.value["n"]) == 7


def test_in_files_too(tmp_path):
    random = np.random.default_rng(0)
    size = 1 << 19  # more than one piece for five voters
    counters = random.integers(0, 100, (5, size))
    for j, counter in enumerate(counters):
        save_file(
            {"w": np.full(3, float(j)), "n": counter, "m": counter > 50},
            tmp_path / f"{j}.safetensors",
        )
    paths = [tmp_path / f"{j}.safetensors" for j in range(5)]
    found = load_file(cs.aggregate_files(paths, tmp_path / "out.safetensors", "mean").value)
    np.testing.assert_array_equal(found["n"], np.median(counters, axis=0))
    np.testing.assert_array_equal(found["m"], (counters > 50).sum(axis=0) > 2)


def test_without_a_positive_weight_all_votes_are_equal():
    updates = parse([{"w": 1.0, "n": n} for n in (3, 5, 90)])
    elected = np.empty(1, int)
    updates.elect(("n",), np.array([-1.0, 0.0, -2.0]), elected)
    assert elected == 5


def test_complex_numbers_part_by_part():
    sent = [{"w": np.ones(2), "z": np.array([a])} for a in (1 + 9j, 2 + 1j, 3 + 5j)]
    assert cs.aggregate(sent, "mean").value["z"][0] == 2 + 5j


def test_in_shards_too():
    shard = Shard(parse([{"w": np.ones(2), "n": n} for n in (3, 5, 90)]))
    weights = np.array([0.001, 0.001, 0.998, 0.0])
    value = shard.combine({}, False, weights, None, None).finish(weights[:-1], 0, None)
    assert value["n"] == 5
