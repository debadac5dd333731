"""Distances: equal to a naive computation, whoever is huge, near or hidden."""

import warnings
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

import consilience as cs
from consilience.evidence import Block, Evidence, residual_products
from consilience.passes.observe import observe
from consilience.passes.sampling import sampled_spans
from consilience.updates.parsing import parse

LARGE = 400_000  # above 131,072 coordinates float32 is read in single precision
SAMPLED = 1_700_000  # and of five parties a sample is read


def naive(X, center=None):
    """Return mean squared distances between rows and the centre, one pair at a time."""
    X = np.asarray(X, float)
    points = [*X, np.zeros(X.shape[1]) if center is None else np.asarray(center, float)]
    return np.array([[np.mean((x - y) ** 2) for y in points] for x in points])


def distances(updates, center=None, exact=True):
    (block,) = Evidence.of(updates, center, exact=exact).blocks
    return block.distances


def split(x, cuts):
    return {str(n): part for n, part in enumerate(np.split(x, cuts))}


@pytest.mark.parametrize("size", [1, 3, 255, 256, 257, 8192, 20_001])
@pytest.mark.parametrize("center", [False, True])
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_distances_equal_naive_ones(size, center, dtype):
    random = np.random.default_rng(size)
    X = (random.standard_normal((6, size)) * np.arange(1, 7)[:, None]).astype(dtype)
    guess = random.standard_normal(size).astype(dtype) if center else None
    np.testing.assert_allclose(distances(X, guess), naive(X, guess), rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(distances(list(X), guess), naive(X, guess), rtol=1e-12, atol=1e-14)


def test_distances_of_means_follow_from_those_of_the_points():
    random = np.random.default_rng(0)
    X, center = random.standard_normal((6, 50)), random.standard_normal(50)
    means = random.standard_normal((7, 7))
    means[-1, :-1] = 0.0
    means /= means.sum(axis=1, keepdims=True)
    (block,) = Evidence.of(X, center).blocks
    points = means @ np.vstack([X, center])
    np.testing.assert_allclose(block.mixed(means).distances, naive(points[:-1], center), rtol=1e-9)
    assert (block.mixed(means[[0] * 6 + [6]]).distances[:-1, :-1] == 0).all()


@pytest.mark.parametrize("cuts", [[], [1], [5, 5, 700], [256, 999], list(range(1, 40))])
@pytest.mark.parametrize("widest", [1, 7, 300, None])
@pytest.mark.parametrize("work", [1, 1000])
def test_pieces_stripes_and_tensors_just_add_up(monkeypatch, cuts, widest, work):
    random = np.random.default_rng(3)
    X, center = random.standard_normal((5, 1000)), random.standard_normal(1000)
    monkeypatch.setattr("consilience.passes.parallel._LEAST_WORK", work)
    updates = parse([split(x, cuts) for x in X], split(center, cuts))
    _, found = observe(replace(updates, widest=widest), np.random.default_rng(0))
    np.testing.assert_allclose(found.blocks[0].distances, naive(X, center), rtol=1e-12)


@pytest.mark.parametrize(
    "dtypes", [("f4", "f2", "f8"), ("f4", "f2", "bfloat16"), ("f2", "f2", "f2")]
)
@pytest.mark.parametrize("size", [50, LARGE])
def test_dtypes_may_differ(dtypes, size):
    import ml_dtypes

    random = np.random.default_rng(3)
    kinds = [ml_dtypes.bfloat16 if name == "bfloat16" else name for name in dtypes]
    X = [random.standard_normal(size).astype(kind) for kind in kinds]
    exact = [np.asarray(x, float) for x in X]
    center = random.standard_normal(size).astype("f2")
    # Products of large half-precision updates are added up in single precision, piece by piece: the
    # narrower the processor's registers, the more terms to a sum.
    np.testing.assert_allclose(
        distances(X, center), naive(exact, center), rtol=1e-12 if size == 50 else 5e-6
    )


def test_tensors_without_numbers_do_not_count():
    random = np.random.default_rng(3)
    X = random.standard_normal((4, 60))
    empty = np.empty((0, 3))
    sent = [{"a": empty, "b": x[:20], "c": empty, "d": x[20:], "e": empty} for x in X]
    np.testing.assert_allclose(distances(sent), naive(X), rtol=1e-12)
    value = cs.aggregate(sent, "mean").value
    np.testing.assert_allclose(value["d"], X.mean(axis=0)[20:])
    assert value["c"].shape == (0, 3)


def test_shape_of_the_evidence():
    evidence = Evidence.of({"b": np.ones(3), "a": np.zeros(3)})
    assert evidence.parties == ("a", "b")
    np.testing.assert_array_equal(evidence.counts, [3, 3])
    np.testing.assert_array_equal(evidence.blocks[0].distances, [[0, 1, 0], [1, 0, 1], [0, 1, 0]])
    assert evidence.least_noise == 0.5
    assert Evidence.of(np.ones((3, 4))).least_noise == 0


def test_what_coordinates_are_worth_beside_some_peers():
    """Nothing without any: a party alone is compared with nobody."""
    for peers, worth in [(0, 0.0), (1, 1 / 4), (2, 1 / 3), (10, 9 / 11)]:
        parties = tuple(map(str, range(peers + 1)))
        block = Block(parties, np.zeros((peers + 2, peers + 2)), 60.0)
        np.testing.assert_allclose(Evidence((block,)).worth, 60 * worth)
    both = Evidence((block, Block(("0",), np.zeros((2, 2)), 1e6)))
    np.testing.assert_array_equal(both.worth, Evidence((block,)).worth)


def test_unusable_updates_are_left_out():
    evidence = Evidence.of({"a": np.ones(2), "b": np.array([1, np.inf]), "c": np.zeros(2)})
    assert evidence.parties == ("a", "c")


def rounds(random, size):
    return random.standard_normal((3, size)), random.standard_normal(size)


def test_rounds_of_the_same_parties_merge_by_their_coordinates():
    random = np.random.default_rng(0)
    (X, c), (Y, d) = rounds(random, 100), rounds(random, 300)
    first = Evidence.of(dict(zip("abc", X, strict=True)), c)
    second = Evidence.of(list(Y), d)
    # The same parties in another order.
    second = Evidence((Block(("c", "a", "b"), second.blocks[0].distances, 300.0),))
    merged = first + second
    assert len(merged.blocks) == 1
    assert merged.blocks[0].count == 400
    together = np.hstack([X, Y[[1, 2, 0]]]), np.concatenate([c, d])
    np.testing.assert_allclose(merged.blocks[0].distances, naive(*together), rtol=1e-12)


def test_rounds_of_other_parties_stay_apart():
    random = np.random.default_rng(0)
    X, Y = random.standard_normal((3, 100)), random.standard_normal((2, 50))
    merged = Evidence.of(dict(zip("abc", X, strict=True))) + Evidence.of({"d": Y[0], "b": Y[1]})
    merged += Evidence.of(dict(zip("abc", X, strict=True)))
    assert merged.parties == ("a", "b", "c", "d")
    assert [block.count for block in merged.blocks] == [200, 50]
    np.testing.assert_array_equal(merged.counts, [200, 250, 200, 50])
    assert [list(members) for members in merged.members] == [[0, 1, 2], [1, 3]]
    assert merged.find({"b", "d"}) == 1
    np.testing.assert_allclose(merged.blocks[0].distances, naive(X), rtol=1e-12)
    with pytest.raises(ValueError, match="different parties"):
        merged.blocks[0].merged(merged.blocks[1])


def test_discounting_keeps_distances():
    evidence = Evidence.of(np.eye(3))
    less = evidence.discounted(0.25)
    assert less.blocks[0].count == 0.75
    np.testing.assert_array_equal(less.blocks[0].distances, evidence.blocks[0].distances)


@pytest.mark.parametrize("shift", [0.0, 1e3])
def test_residuals_and_products_equal_naive_ones(shift):
    random = np.random.default_rng(5)
    X = random.standard_normal((4, 60)) + shift
    weights = np.array([0.4, 0.3, 0.5, -0.2, 0.0])
    (block,) = Evidence.of(X).blocks
    errors = np.vstack([X, np.zeros(60)]) - weights[:-1] @ X
    expected = errors @ errors.T / 60
    tolerance = 1e-12 * max(1, shift**2)
    np.testing.assert_allclose(
        residual_products(block.gram, weights), expected, rtol=1e-9, atol=tolerance
    )
    np.testing.assert_allclose(block.residuals(weights), np.diag(expected), rtol=1e-9)


@pytest.mark.parametrize("far", [1.0, 1e8, 1e14, 1e30])
def test_points_are_what_the_inner_products_say(far):
    """However far one of them is: to rounding of its own distance, and no product is larger than
    the lengths allow."""
    random = np.random.default_rng(5)
    X = random.standard_normal((5, 60))
    X[2] *= far
    (block,) = Evidence.of(X).blocks
    lengths = np.sqrt(np.diag(block.gram))
    assert (np.abs(block.gram) <= np.outer(lengths, lengths) * (1 + 1e-12)).all()
    products = block.coordinates @ block.coordinates.T
    tolerance = 1e-12 if far < 1e10 else 0.1  # the direction of one so far is rounding
    assert (np.abs(products - block.gram) <= tolerance * np.outer(lengths, lengths)).all()
    near = np.array([0, 1, 3, 4, 5])
    at = np.ix_(near, near)
    np.testing.assert_allclose(products[at], block.gram[at], atol=max(1e-12, tolerance / 5))


def test_less_than_half_do_not_set_the_typical_distance():
    random = np.random.default_rng(5)
    for honest in (2, 3, 6):
        X = random.standard_normal((2 * honest - 1, 200))
        X[honest:] *= 1e8
        (block,) = Evidence.of(X).blocks
        assert 1.0 < block.typical < 3.0
        assert (block.typical_distances[:honest] < 3.0).all()
        assert block.central_weights[honest:].sum() < 1e-12
        np.testing.assert_allclose(block.central_weights.sum(), 1.0)
    (equal,) = Evidence.of(np.ones((3, 4))).blocks
    assert equal.typical == 0.0
    np.testing.assert_allclose(equal.central_weights, 1 / 3)
    (most,) = Evidence.of(np.array([[1.0], [1.0], [1.0], [3.0]])).blocks
    assert most.typical == 4.0  # the least that is any


def near_equal(size, offset, relative=1e-6, parties=6, seed=0):
    random = np.random.default_rng(seed)
    base = offset * (1 + random.random(size))
    return (base * (1 + relative * random.standard_normal((parties, size)))).astype(np.float32)


@pytest.mark.parametrize("size", [2000, LARGE, SAMPLED])
@pytest.mark.parametrize("offset", [1.0, 1e6, -1e-6])
@pytest.mark.parametrize("form", [np.asarray, list], ids=["stack", "list"])
def test_near_equal_parties_keep_their_distances(size, offset, form):
    """Relative differences of 1e-6 in float32, the origin a million differences away."""
    X = near_equal(size, offset)
    (block,) = Evidence.of(form(X), seed=3).blocks
    spans = sampled_spans(size, len(X), np.random.default_rng(3))
    assert (len(spans) > 1) == (size == SAMPLED)
    Y = np.hstack([X[:, start:stop] for start, stop in spans])
    pairs = ~np.eye(len(X) + 1, dtype=bool)
    assert (block.distances[pairs] > 0).all()
    np.testing.assert_allclose(block.distances, naive(Y), rtol=1e-3)
    assert (np.diag(block.gram) >= 0).all()


@pytest.mark.parametrize("method", cs.methods())
@pytest.mark.parametrize("relative", [1e-6, 1e-9, 0.0])
@pytest.mark.parametrize("centre", ["far", "close"])
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_near_equal_parties_give_numbers(method, relative, centre, dtype):
    random = np.random.default_rng(1)
    base = random.standard_normal(2000)
    X = (base * (1 + relative * random.standard_normal((6, 2000)))).astype(dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = cs.aggregate(X, method, center=base if centre == "close" else None)
    assert np.isfinite(list(found.noise.values())).all()
    assert np.isfinite(list(found.weights.values())).all()
    np.testing.assert_allclose(found.value, X.mean(axis=0), rtol=10 * relative + 1e-6)


@pytest.mark.parametrize("method", ["mean", "multi-krum", "icov-full"])
def test_noise_of_near_equal_parties_far_from_the_centre(method):
    random = np.random.default_rng(1)
    X = random.standard_normal(2000) * (1 + 1e-9 * random.standard_normal((6, 2000)))
    found = cs.aggregate(X, method)
    residuals = X - np.array(list(found.weights.values())) @ (X - X[0]) - X[0]
    expected = np.sqrt((residuals**2).mean(axis=1))
    rtol = 0.05 if method == "icov-full" else 1e-3  # its noise has a share of the prior's
    np.testing.assert_allclose(list(found.noise.values()), expected, rtol=rtol)


@pytest.mark.parametrize("far", [10.0, 1e3, 1e6, 1e9])
@pytest.mark.parametrize("relative", [0.0, 1e-9, 1e-6, 1e-4])
def test_colluders_far_away_spoil_no_distance(far, relative):
    random = np.random.default_rng(2)
    X = 1 + 0.1 * random.standard_normal((9, 3000))
    X[:3] = far * random.standard_normal(3000) * (1 + relative * random.standard_normal((3, 3000)))
    found = distances(X)
    expected = naive(X)
    np.testing.assert_allclose(found[3:, 3:], expected[3:, 3:], rtol=1e-12, atol=1e-16)
    np.testing.assert_allclose(found[:3, 3:], expected[:3, 3:], rtol=1e-12)
    # Among themselves a trillionth of the square of their distance from the rest is resolved.
    np.testing.assert_allclose(found[:3, :3], expected[:3, :3], rtol=5e-3, atol=1e-14 * far**2)
    assert (found >= 0).all()


@pytest.mark.parametrize("method", [*cs.methods(), cs.ICOV("mle", 2, "per-party")], ids=str)
@pytest.mark.parametrize("far", [3.0, 10.0, 1e6, 1e9])
@pytest.mark.parametrize("relative", [0.0, 1e-6, 1e-8])
def test_colluders_far_away_do_not_stop_the_round(method, far, relative):
    random = np.random.default_rng(11)
    X = 1 + 0.1 * random.standard_normal((9, 1000))
    X[:3] = far * random.standard_normal(1000) * (1 + relative * random.standard_normal((3, 1000)))
    found = cs.aggregate(X, method)
    assert np.isfinite(found.value).all()
    assert np.isfinite(list(found.noise.values())).all()


def hide(X, where, party, size):
    """Make a party huge, either everywhere or only beyond the first coordinates, where it looks
    more typical than anybody."""
    X[party] *= size
    if where == "beyond":
        X[party, :600] = np.delete(X, party, axis=0)[:, :600].mean(axis=0)
    return X


@pytest.mark.parametrize("where", ["everywhere", "beyond"])
@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("size", [2000, LARGE])
@pytest.mark.parametrize("party", [0, 4])
def test_a_huge_party_does_not_spoil_the_others_distances(where, dtype, size, party):
    random = np.random.default_rng(0)
    X = hide(1 + 0.1 * random.standard_normal((5, size)), where, party, 1e30).astype(dtype)
    found = distances(X, exact=False)
    others = [*np.delete(np.arange(5), party), 5]
    rest = np.ix_(others, others)
    np.testing.assert_allclose(found[rest], naive(X[others[:-1]]), rtol=1e-10)
    assert (found[party, others] > 1e59).all()


@pytest.mark.parametrize("method", ["ivar-mle", "ivar-vb", "icov-vb", "krum", "multi-krum"])
@pytest.mark.parametrize("where", ["everywhere", "beyond"])
def test_a_huge_party_is_outweighed(method, where):
    """geometric-median and icov-full are missing: the first stops, and smooths, at a millionth of
    the longest distance, the second takes its variances about the plain mean."""
    random = np.random.default_rng(4)
    X = hide(1 + 0.1 * random.standard_normal((9, 2000)), where, 0, 1e30)
    found = cs.aggregate(X, method)
    error = np.sqrt(np.mean((found.value - 1) ** 2))
    assert error < (0.11 if method == "krum" else 0.05)
    assert abs(found.weights["0"]) < 1e-40


def test_sampled_distances_are_close_and_with_a_seed_repeatable():
    random = np.random.default_rng(6)
    X = random.standard_normal((5, SAMPLED), dtype=np.float32)
    X *= np.arange(1, 6, dtype=np.float32)[:, None]
    (block,) = Evidence.of(X, seed=1).blocks
    assert 100_000 < block.count < 200_000
    exact = distances(X)
    np.testing.assert_allclose(block.distances, exact, rtol=0.02)
    assert not np.allclose(block.distances, exact, rtol=1e-9)  # a sample, not all
    again = Evidence.of(list(X.copy()), seed=1).blocks[0]
    np.testing.assert_array_equal(again.distances, block.distances)


def test_without_a_seed_nobody_knows_which_coordinates_are_looked_at():
    X = np.random.default_rng(6).standard_normal((5, SAMPLED), dtype=np.float32)
    first, second = (Evidence.of(X).blocks[0] for _ in range(2))
    assert first.count == second.count < SAMPLED
    assert (first.distances != second.distances)[~np.eye(6, dtype=bool)].all()


SIZES = [(131_073, 1000), (140_000, 60), (SAMPLED, 5), (10**9, 5), (10**9, 10_000)]


@pytest.mark.parametrize(("size", "parties"), SIZES)
def test_spans_lie_in_order_and_within(size, parties):
    spans = sampled_spans(size, parties, np.random.default_rng(0))
    assert all(0 <= start < stop <= size for start, stop in spans)
    assert all(stop <= start for (_, stop), (start, _) in pairwise(spans))
    seen = sum(stop - start for start, stop in spans)
    assert seen < size
    assert seen * parties <= 1 << 23 or seen <= 1 << 14
    assert sampled_spans(size, parties, np.random.default_rng(0)) == spans
    assert sampled_spans(size, parties, np.random.default_rng(1)) != spans


def test_every_coordinate_may_be_looked_at():
    """No stretch is out of reach: over many rounds the spans cover nearly everything."""
    covered = np.zeros(SAMPLED, bool)
    random = np.random.default_rng(0)
    for _ in range(60):
        for start, stop in sampled_spans(covered.size, 5, random):
            covered[start:stop] = True
    assert covered.mean() > 0.95


@pytest.mark.parametrize(
    ("size", "parties", "whole"),
    [
        (131_072, 1000, True),
        (131_073, 1000, False),
        (10**9, 4, True),
        ((1 << 23) // 8, 8, True),
        ((1 << 23) // 8 + 1, 8, False),
    ],
)
def test_few_numbers_are_read_whole(size, parties, whole):
    spans = sampled_spans(size, parties, np.random.default_rng(0))
    assert (spans == [(0, size)]) == whole


@pytest.mark.parametrize("parties", [5, 45])
@pytest.mark.parametrize("form", [np.asarray, list], ids=["stack", "list"])
@pytest.mark.parametrize("method", ["pairwise", "trimmed-mean"])
def test_bits_do_not_depend_on_the_number_of_threads(monkeypatch, parties, form, method):
    X = np.random.default_rng(1).standard_normal((parties, 600_000), dtype=np.float32)
    found = []
    for threads in (1, 2, 5):
        monkeypatch.setattr("consilience.passes.parallel.cores", lambda n=threads: n)
        consensus = cs.aggregate(form(X), method, exact=True)
        found.append((consensus.value.tobytes(), consensus.weights))
    assert found[0] == found[1] == found[2]
