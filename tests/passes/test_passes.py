"""Both passes from end to end equal naive numpy, on the compiled loops and on numpy's."""

from functools import lru_cache

import ml_dtypes
import numpy as np
import pytest

import consilience as cs
from consilience.passes.combine import combine, reduce
from consilience.passes.corroborate import Witnesses
from consilience.passes.observe import observe
from consilience.passes.sampling import SMALL, sampled_spans
from consilience.updates.parsing import parse

pytestmark = pytest.mark.usefixtures("each_loops")

SINGLE = ("f4", "f2", ml_dtypes.bfloat16, "f4")
MIXED = ("f4", "f8", ml_dtypes.bfloat16, "f2")
SIZES = [5, 1000, SMALL - 1, SMALL, SMALL + 1]


def tree(x, dtypes):
    """Return numbers as tensors of several dtypes and shapes, one of them empty."""
    a, b, c, d = np.split(x, [1, len(x) // 3, len(x) // 2])
    return {
        "a": a.astype(dtypes[0]),
        "more": [b.astype(dtypes[1]), {"none": np.zeros((0, 3), "f4"), "c": c.astype(dtypes[2])}],
        "z": d.astype(dtypes[3]).reshape(-1, 1),
    }


def numbers(found):
    b, inner = found["more"]
    parts = [found["a"], b, inner["none"], inner["c"], found["z"]]
    return np.concatenate([part.reshape(-1).astype(float) for part in parts])


@lru_cache(4)
def made(seed, parties, size, dtypes=SINGLE, center=True):
    """Return updates, their numbers after rounding, and those of the centre."""
    random = np.random.default_rng(seed)
    scales = random.uniform(0.5, 2, (parties, 1))
    X = 3 + scales * random.standard_normal((parties, size), np.float32)
    trees = [tree(x, dtypes) for x in X]
    origin = tree(3 + random.standard_normal(size), dtypes) if center else None
    updates = parse(trees, origin)
    exact = np.array([numbers(found) for found in trees])
    return updates, exact, np.zeros(size) if origin is None else numbers(origin)


class Room:
    """Where results go."""

    def __init__(self, updates):
        self.updates = updates
        self.values = {}

    def __call__(self, path):
        self.values[path] = self.updates.leaves[self.updates.template][path].empty()
        return self.values[path]

    @property
    def found(self):
        return numbers(self.updates.rebuild(self.values))


def naive_distances(X):
    X = X - X[0]
    squares = np.square(X).sum(axis=1)
    return np.maximum(squares[:, None] + squares - 2 * (X @ X.T), 0) / X.shape[1]


def rounding(expected, dtypes):
    """Return half of the last digit of each number in the tree's dtypes, and a little more."""
    ones = tree(np.ones(len(expected)), dtypes)
    parts = [ones["a"], ones["more"][0], ones["more"][1]["c"], ones["z"]]
    eps = [np.full(part.size, float(ml_dtypes.finfo(part.dtype).eps)) for part in parts]
    return np.concatenate(eps) * np.abs(expected) + 1e-5


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtypes", [SINGLE, MIXED], ids=["single", "mixed"])
@pytest.mark.parametrize("center", [False, True])
def test_distances(size, dtypes, center):
    updates, X, origin = made(size, 6, size, dtypes, center)
    usable, evidence = observe(updates, np.random.default_rng(0))
    assert usable is updates
    expected = naive_distances(np.vstack([X, origin]))
    np.testing.assert_allclose(evidence.blocks[0].distances, expected, rtol=1e-5, atol=1e-12)
    assert evidence.blocks[0].count == size


@pytest.mark.parametrize("size", [SMALL + 1, 900_000])
@pytest.mark.parametrize("exact", [False, True])
def test_distances_of_so_many_that_a_sample_is_taken(size, exact):
    parties = 65 if size < 200_000 else 10
    updates, X, origin = made(1, parties, size)
    spans = sampled_spans(size, parties, np.random.default_rng(7))
    assert len(spans) > 1
    places = np.concatenate([np.arange(*span) for span in spans])
    _, evidence = observe(updates, np.random.default_rng(7), exact=exact)
    everything = np.vstack([X, origin])
    expected = naive_distances(everything if exact else everything[:, places])
    np.testing.assert_allclose(evidence.blocks[0].distances, expected, rtol=1e-5, atol=1e-12)
    assert evidence.blocks[0].count == (size if exact else len(places))


@pytest.mark.parametrize("scale", [1e-15, 1e-20, 1e-25, 1e-30, 1e18, 1e30])
@pytest.mark.parametrize("dtype", ["f4", ml_dtypes.bfloat16])
def test_distances_whose_squares_single_precision_cannot_hold(scale, dtype):
    X = np.random.default_rng(0).standard_normal((5, SMALL + 1))
    X[4] *= 1e4
    updates = [(x * scale).astype(dtype) for x in X]
    (block,) = cs.Evidence.of(updates).blocks
    expected = naive_distances(np.array(updates, float) / scale)
    np.testing.assert_allclose(block.distances[:-1, :-1] / scale**2, expected, 1e-5, 1e-6)


def test_two_who_nearly_agree_beside_others_who_do_not():
    """The difference of the two is too small for squares in single precision, and alone."""
    X = np.zeros((6, SMALL + 1), np.float32)
    X[2:] = np.random.default_rng(0).standard_normal((4, SMALL + 1))
    X[1] = 1e-25
    (block,) = cs.Evidence.of(X).blocks
    assert block.distances[0, 1] == pytest.approx(1e-50)
    expected = naive_distances(X.astype(float))
    np.testing.assert_allclose(block.distances[:-1, :-1], expected, 1e-5, 1e-6)


@pytest.mark.parametrize("copies", [2, 4, 6])
def test_copies_of_the_reference_are_compared_once(copies):
    X = np.random.default_rng(0).standard_normal((6, SMALL + 1)).astype(np.float32)
    X[:copies] = X.mean(axis=0)
    told = []
    observe(parse(list(X)), np.random.default_rng(0), tell=told.append)
    assert sum(told) == SMALL + 1


@pytest.mark.parametrize("scale", [1e-20, 1e-25, 1e-30, 1e18])
def test_squares_that_single_precision_cannot_hold_beside_the_sum(scale):
    """In the ring, and of what was clipped."""
    X = np.random.default_rng(0).standard_normal((7, 1000)) * scale
    X[3, :9] += 100 * scale
    X = X.astype(np.float32)
    updates, _ = observe(parse(list(X)), np.random.default_rng(0))
    ring, weights = np.random.default_rng(0).permutation(7), np.append(np.full(7, 1 / 7), 0)
    squares, _ = combine(updates, weights, Room(updates), ring)
    exact = X.astype(float) / scale
    apart = np.square(exact[ring] - exact[np.roll(ring, 1)]).mean(axis=1)
    np.testing.assert_allclose(squares[ring] / scale**2, apart, rtol=1e-5)
    witnesses = Witnesses(b"\1" * 7, 2.0)
    squares, alone = combine(updates, weights, Room(updates), ring, witnesses=witnesses)
    np.testing.assert_allclose(squares[ring] / scale**2, apart, rtol=1e-5)
    ends = np.sort(exact, axis=0)[[1, -2]]
    beyond = 2 * (ends[1] - ends[0])
    heard = exact.clip(ends[0] - beyond, ends[1] + beyond)
    cut = np.square(exact - heard).mean(axis=1)
    np.testing.assert_allclose(alone / scale**2, cut, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("size", [*SIZES, 900_000])
@pytest.mark.parametrize("dtypes", [SINGLE, MIXED], ids=["single", "mixed"])
@pytest.mark.parametrize("paired", [False, True])
def test_weighted_sums(size, dtypes, paired):
    updates, X, origin = made(size, 7, size, dtypes)
    room, random = Room(updates), np.random.default_rng(size)
    weights = np.append(random.dirichlet(np.ones(7)) * 0.8, 0.2)
    weights[3] = 0
    ring = random.permutation(7) if paired else None
    told = []
    squares, _ = combine(updates, weights, room, ring, told.append)
    expected = weights @ np.vstack([X, origin])
    assert (np.abs(room.found - expected) <= rounding(expected, dtypes)).all()
    assert sum(told) == size
    if paired:
        apart = np.square(X[ring] - X[np.roll(ring, 1)]).mean(axis=1)
        np.testing.assert_allclose(squares[ring], apart, rtol=1e-5)


@pytest.mark.parametrize("size", [*SIZES, 900_000])
@pytest.mark.parametrize("dtypes", [SINGLE, MIXED], ids=["single", "mixed"])
@pytest.mark.parametrize("cut", [0, 3])
def test_trimmed_means(size, dtypes, cut):
    updates, X, _ = made(size, 7, size, dtypes, center=False)
    room = Room(updates)
    shares, squares = reduce(updates, cut, room, exact=True)
    ordered = np.sort(X, axis=0)[cut : 7 - cut]
    mean = ordered.mean(axis=0)
    assert (np.abs(room.found - mean) <= rounding(mean, dtypes)).all()
    inside = (ordered[0] <= X) & (ordered[-1] >= X)
    np.testing.assert_allclose(shares, (inside / inside.sum(axis=0)).mean(axis=1), rtol=1e-6)
    np.testing.assert_allclose(squares, np.square(X - mean).mean(axis=1), rtol=1e-5)
    shares, few = reduce(updates, cut, Room(updates))
    assert shares.sum() == pytest.approx(1)
    np.testing.assert_allclose(few, squares, rtol=0.2)


def test_the_centre_alone_and_nobody_at_all():
    updates, _, origin = made(0, 3, 100, MIXED)
    room = Room(updates)
    combine(updates, np.array([0.0, 0, 0, 1]), room)
    np.testing.assert_allclose(room.found, origin, rtol=1e-6)
    updates, _, _ = made(0, 3, 100, MIXED, center=False)
    room = Room(updates)
    combine(updates, np.array([0.0, 0, 0, 1]), room)
    assert not room.found.any()


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_shows_in_each_pass(bad):
    X = np.random.default_rng(0).standard_normal((5, SMALL + 9)).astype("f4")
    X[1, -3] = bad
    updates = parse(list(X))
    weights = np.full(6, 0.2)
    paths = Room(updates)
    assert np.isnan(combine(updates, weights, paths, np.roll(np.arange(5), 1))[0]).all()
    shares, squares = reduce(updates, 1, paths)
    assert np.isnan(shares).all()
    assert np.isnan(squares).all()
    usable, evidence = observe(updates, np.random.default_rng(0))
    assert list(usable.rejected) == ["1"]
    assert len(evidence.parties) == 4


@pytest.mark.filterwarnings("error")
def test_numbers_of_more_digits_than_float64_are_read_all_the_same():
    X = np.random.default_rng(0).standard_normal((4, 10)).astype(np.longdouble)
    expected = cs.aggregate(X.astype(float)).value
    np.testing.assert_array_equal(cs.aggregate(X).value, expected)
    np.testing.assert_array_equal(cs.aggregate([X[0], *X[1:].astype(float)]).value, expected)
    if np.finfo(np.longdouble).max > np.finfo(float).max:
        X[0, 0] = np.finfo(np.longdouble).max
        assert list(cs.aggregate(X).rejected) == ["0"]
