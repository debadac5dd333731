"""Partitions are partitions, and of the kind their names say."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from consilience.lab import partitions

LABELS = np.arange(1000) % 10
labels_of_any_kind = st.lists(st.integers(0, 5), max_size=60).map(lambda x: np.array(x, np.uint8))
seeds = st.integers(0, 2**32 - 1)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def assert_partition(parts: list[partitions.Indices], samples: int, parties: int) -> None:
    assert len(parts) == parties
    assert all(part.dtype == np.intp and part.ndim == 1 for part in parts)
    assert sorted(np.concatenate(parts).tolist()) == list(range(samples))


@given(samples=st.integers(0, 60), parties=st.integers(1, 12), seed=seeds)
def test_iid_is_a_partition(samples: int, parties: int, seed: int) -> None:
    parts = partitions.iid(samples, parties, rng(seed))
    assert_partition(parts, samples, parties)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


@given(
    labels=labels_of_any_kind, parties=st.integers(1, 12), alpha=st.floats(1e-3, 1e3), seed=seeds
)
def test_dirichlet_is_a_partition(
    labels: partitions.Labels, parties: int, alpha: float, seed: int
) -> None:
    parts = partitions.dirichlet(labels, parties, alpha, rng(seed))
    assert_partition(parts, len(labels), parties)


@given(labels=labels_of_any_kind, parties=st.integers(1, 12), gamma=st.floats(0, 1), seed=seeds)
def test_gamma_is_a_partition(
    labels: partitions.Labels, parties: int, gamma: float, seed: int
) -> None:
    parts = partitions.gamma_similarity(labels, parties, gamma, rng(seed))
    assert_partition(parts, len(labels), parties)


@given(labels=labels_of_any_kind, parties=st.integers(1, 12))
def test_one_class_per_party_is_a_partition(labels: partitions.Labels, parties: int) -> None:
    if parties > len(np.unique(labels)):
        with pytest.raises(ValueError, match=f"{parties} parties but"):
            partitions.one_class_per_party(labels, parties)
        return
    assert_partition(partitions.one_class_per_party(labels, parties), len(labels), parties)


def test_one_class_per_party() -> None:
    parts = partitions.one_class_per_party(LABELS, 10)
    assert [np.unique(LABELS[part]).tolist() for part in parts] == [[c] for c in range(10)]
    parts = partitions.one_class_per_party(LABELS, 4)
    assert np.unique(LABELS[parts[1]]).tolist() == [1, 5, 9]


def largest_share(parts: list[partitions.Indices]) -> float:
    """How much of a party's data is of its main class, on average."""
    counts = [np.bincount(LABELS[part], minlength=10) for part in parts if len(part)]
    return float(np.mean([count.max() / count.sum() for count in counts]))


def test_alpha_goes_from_one_class_to_iid() -> None:
    share = [largest_share(partitions.dirichlet(LABELS, 10, a, rng())) for a in (0.01, 1, 1000)]
    assert share[0] > 0.65
    assert 0.2 < share[1] < 0.6
    assert share[2] < 0.13


def test_gamma_goes_from_sorted_to_iid() -> None:
    share = [largest_share(partitions.gamma_similarity(LABELS, 10, g, rng())) for g in (0, 0.5, 1)]
    assert share[0] == 1.0
    assert 0.5 < share[1] < 0.65
    assert share[2] < 0.25


def test_the_seed_repeats() -> None:
    for make in (
        lambda seed: partitions.iid(1000, 3, rng(seed)),
        lambda seed: partitions.dirichlet(LABELS, 3, 1.0, rng(seed)),
        lambda seed: partitions.gamma_similarity(LABELS, 3, 0.5, rng(seed)),
        lambda seed: partitions.overlapping(1000, {(0, 1): 9, (2,): 9}, rng(seed)).indices,
    ):
        once, again, other = make(1), make(1), make(2)
        assert all(np.array_equal(a, b) for a, b in zip(once, again, strict=True))
        assert not all(np.array_equal(a, b) for a, b in zip(once, other, strict=True))


groups = st.sets(st.integers(0, 4), min_size=1).map(lambda members: tuple(sorted(members)))


@given(blocks=st.dictionaries(groups, st.integers(0, 20), min_size=1), seed=seeds)
def test_the_overlap_is_what_is_said(blocks: dict[tuple[int, ...], int], seed: int) -> None:
    samples = sum(blocks.values()) + 5
    indices, counts = partitions.overlapping(samples, blocks, rng(seed))
    held = [set(part.tolist()) for part in indices]
    assert [len(part) for part in indices] == [len(part) for part in held]
    assert counts.tolist() == [[len(a & b) for b in held] for a in held]
    assert all(0 <= i < samples for part in held for i in part)


def test_the_overlap_that_was_asked_for() -> None:
    blocks = {(0, 1): 200, (0,): 100, (1,): 100, (2,): 300}
    _, counts = partitions.overlapping(700, blocks, rng())
    assert counts.tolist() == [[300, 200, 0], [200, 300, 0], [0, 0, 300]]


@pytest.mark.parametrize(
    ("call", "complaint"),
    [
        (lambda: partitions.iid(10, 0, rng()), "0 parties"),
        (lambda: partitions.dirichlet(LABELS, 3, 0.0, rng()), "alpha is 0"),
        (lambda: partitions.dirichlet(LABELS, 3, float("nan"), rng()), "alpha is nan"),
        (lambda: partitions.gamma_similarity(LABELS, 3, 1.5, rng()), "gamma is 1.5"),
        (lambda: partitions.overlapping(10, {(0,): 11}, rng()), "11 samples, but there are 10"),
        (lambda: partitions.overlapping(10, {(-1,): 1}, rng()), "expected party numbers from 0"),
        (lambda: partitions.overlapping(10, {(): 1}, rng()), "expected party numbers from 0"),
        (lambda: partitions.overlapping(10, {}, rng()), "expected party numbers from 0"),
        (lambda: partitions.overlapping(10, {(0,): -1}, rng()), "counts of at least 0"),
    ],
)
def test_what_is_refused(call, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        call()
