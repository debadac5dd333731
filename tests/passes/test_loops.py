"""The loops equal naive sums in double precision: every compiled set there is, and numpy's."""

import os
import subprocess
import sys
from contextlib import suppress

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from consilience.passes import loops

LENGTHS = [0, 1, 2, 15, 16, 17, 31, 33, 1023, 1025, 5000]
ROWS = range(1, 41)
DTYPES = {"f": np.float32, "d": np.float64, "e": np.float16, "b": ml_dtypes.bfloat16}
EPS = {code: float(ml_dtypes.finfo(dtype).eps) for code, dtype in DTYPES.items()}
LARGEST = {code: float(ml_dtypes.finfo(dtype).max) for code, dtype in DTYPES.items()}
BLOCK = 32  # columns that the compiled loops sort at once
anew = settings(
    deadline=None,
    max_examples=40,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@pytest.fixture(params=["avx512", "avx2", "any", "plain"])
def these(request):
    """Each set of loops in turn."""
    if request.param == "plain":
        yield loops.plain
        return
    if loops.compiled is None or request.param not in loops.compiled.available():
        pytest.skip(f"no {request.param} here")
    before = loops.compiled.in_use()
    loops.compiled.use(request.param)
    yield loops.compiled
    loops.compiled.use(before)


@pytest.fixture
def compiled():
    if loops.compiled is None:
        pytest.skip("the loops are not compiled here")
    return loops.compiled


def encoded(values, code):
    """Return numbers as they lie in an update."""
    found = np.asarray(values).astype(DTYPES[code])
    return found.view(np.uint16) if code == "b" else found


def decoded(row, code):
    with np.errstate(invalid="ignore"):  # a NaN may be a signal
        return (row.view(ml_dtypes.bfloat16) if code == "b" else row).astype(float)


def empty(length, code):
    return encoded(np.full(length, 7.0), code)


def mixture(random, count):
    return "".join(random.choice(list("fdeb"), count))


def made(values, codes):
    """Return rows of several dtypes, and their numbers after rounding."""
    rows = [encoded(x, code) for x, code in zip(values, codes, strict=True)]
    exact = [decoded(row, code) for row, code in zip(rows, codes, strict=True)]
    return rows, np.array(exact).reshape(len(codes), -1)


def summed(these, rows, codes, weights, code="d", ring=0, wide=False):
    """Return the sum, the squares and whether all is finite."""
    out = empty(len(rows[0]), code)
    squares = np.zeros(ring) if ring else None
    weights = np.asarray(weights, float)
    finite = these.combine(rows, codes.encode(), weights, out, code.encode(), squares, wide)
    return decoded(out, code), squares, finite


def trimmed(these, rows, codes, cut, code="d", every=1, wide=False):
    """Return the mean, the shares, the squares and of how many columns they are."""
    out, shares, squares = empty(len(rows[0]), code), np.zeros(len(rows)), np.zeros(len(rows))
    seen = these.trim(rows, codes.encode(), cut, out, code.encode(), every, shares, squares, wide)
    return decoded(out, code), shares, squares, seen


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("wide", [False, True])
def test_gram_is_naive(these, length, wide):
    random = np.random.default_rng([length, wide])
    for count in ROWS:
        codes = mixture(random, count)
        rows, X = made(random.standard_normal((count, length)) + 1, codes)
        about = int(random.integers(-1, count))
        for j in np.flatnonzero(random.random(count) < 0.1):
            if j != about:
                rows[j], X[j] = None, 0
        size = np.abs(X) + (np.abs(X[about]) if about >= 0 else 0)
        if about >= 0:
            X = X - X[about]
        before = random.standard_normal((count, count))
        total = before.copy()
        these.gram(rows, codes.encode(), about, total, wide)
        allowed = (1e-13 if wide else 3e-6) * (size @ size.T + 1)
        assert (np.abs(total - before - np.tril(X @ X.T)) <= allowed).all()
        np.testing.assert_array_equal(np.triu(total, 1), np.triu(before, 1))


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("paired", [False, True])
def test_combine_is_naive(these, length, wide, paired):
    random = np.random.default_rng([length, wide, paired])
    for count in ROWS:
        codes, code = mixture(random, count), mixture(random, 1)
        rows, X = made(random.standard_normal((count, length)) + 1, codes)
        weights = random.standard_normal(count) * (random.random(count) < 0.7)
        ring = int(random.integers(1, count + 1)) if paired else 0
        y, squares, finite = summed(these, rows, codes, weights, code, ring, wide)
        assert finite is True
        allowed = (1e-14 if wide else 1e-6) * (np.abs(weights) @ np.abs(X) + 1)
        expected = weights @ X
        assert (np.abs(y - expected) <= allowed + EPS[code] * np.abs(expected)).all()
        if paired:
            apart = np.square(X[:ring] - np.roll(X[:ring], 1, axis=0)).sum(axis=1)
            np.testing.assert_allclose(squares, apart, rtol=1e-13 if wide else 1e-5)


def naive_trim(X, cut):
    """Return the mean, and shares and squares column by column."""
    ordered = np.sort(X, axis=0)[cut : len(X) - cut]
    mean = ordered.mean(axis=0)
    inside = (ordered[0] <= X) & (ordered[-1] >= X)
    return mean, inside / inside.sum(axis=0), np.square(X - mean)


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("every", [1, 3])
def test_trim_is_naive(these, length, wide, every):
    random = np.random.default_rng([length, wide, every])
    for count in ROWS if length < 5000 else [1, 2, 7, 8, 40]:
        codes, code = mixture(random, count), mixture(random, 1)
        # Numbers that every dtype has, many of them equal.
        rows, X = made(random.integers(-40, 41, (count, length)) / 8, codes)
        cut = int(random.integers(0, (count - 1) // 2 + 1))
        y, shares, squares, seen = trimmed(these, rows, codes, cut, code, every, wide)
        mean, parts, apart = naive_trim(X, cut)
        assert (np.abs(y - mean) <= max(EPS[code], 1e-14 if wide else 1e-7) * np.abs(mean)).all()
        told = np.arange(length) // BLOCK % (1 if these is loops.plain else every) == 0
        assert seen == told.sum()
        np.testing.assert_allclose(shares, parts[:, told].sum(axis=1), rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(squares, apart[:, told].sum(axis=1), rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("length", [1, 2, 17, 5000])
def test_looking_at_places(these, length, wide):
    random = np.random.default_rng(length)
    rows, values = made(random.standard_normal((4, length)), "fdeb")
    places = np.sort(random.integers(0, length, 37))
    out = np.zeros((4, 40), float if wide else np.float32)
    these.look(rows, b"fdeb", places, out, 2, wide)
    np.testing.assert_array_equal(out[:, 2:39], values[:, places].astype(out.dtype))
    assert not out[:, :2].any()
    assert not out[:, 39:].any()


def test_looking_beyond_a_row_is_refused(compiled):
    row, out = np.zeros(5), np.zeros((1, 3))
    for places, at in (([0, 5], 0), ([-1, 0], 0), ([0, 1], 2), ([0, 1], -1)):
        with pytest.raises(ValueError, match="places within the rows"):
            compiled.look([row], b"d", np.array(places), out, at, True)
    with pytest.raises(ValueError, match="places within the rows"):
        compiled.look([row, row], b"dd", np.array([0]), out, 0, True)


def naive_corroboration(X, weights, witnesses, headroom):
    """Column by column: nobody far beyond the second of the witnesses."""
    heard, parties = X.copy(), len(witnesses)
    for k in range(X.shape[1]):
        said = sorted(X[j, k] for j in range(parties) if witnesses[j])
        room = headroom * (said[-2] - said[1])
        heard[:parties, k] = np.clip(X[:parties, k], said[1] - room, said[-2] + room)
    return weights @ heard, np.square(X - heard).sum(axis=1)[:parties]


@pytest.mark.parametrize("length", [1, 31, 33, 511, 513, 1100])
@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("headroom", [0.0, 2.0])
def test_corroboration_is_naive(these, length, wide, headroom):
    random = np.random.default_rng(length)
    for count in (3, 4, 5, 6, 7, 14, 41):
        codes = "".join(random.choice(list("feb" if not wide else "fdeb"), count + 1))
        # Whole numbers: ties, as where several parties send zero.
        values = np.round(2 * random.standard_cauchy((count + 1, length)).clip(-20, 20))
        rows = [encoded(x, code) for x, code in zip(values, codes, strict=True)]
        weights = random.dirichlet(np.ones(count + 1))
        witnesses = bytes([1, 1, 1, *random.integers(0, 2, count - 3)])
        out, squares, alone = np.empty(length), np.ones(count), np.ones(count)
        arguments = (weights, witnesses, headroom, out, b"d", squares, alone, wide)
        assert these.corroborate(rows, codes.encode(), *arguments)
        value, cut = naive_corroboration(values, weights, witnesses, headroom)
        np.testing.assert_allclose(out, value, rtol=1e-5, atol=1e-4)
        np.testing.assert_allclose(alone, 1 + cut, rtol=1e-4)
        apart = np.square(values[:count] - np.roll(values[:count], 1, axis=0)).sum(axis=1)
        np.testing.assert_allclose(squares, 1 + apart, rtol=1e-5)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("count", [1, 2, 8])
def test_corroboration_hides_nothing_that_is_not_finite(these, bad, count):
    rows = list(np.random.default_rng(0).standard_normal((9, 100)))
    for row in rows[:count]:
        row[57] = bad
    out, alone = np.empty(100), np.zeros(9)
    arguments = (np.ones(9) / 9, b"\1" * 9, 2.0, out, b"d", None, alone, False)
    with np.errstate(invalid="ignore"):
        assert not these.corroborate(rows, b"d" * 9, *arguments)


def test_corroboration_of_numbers_too_large_for_single_precision(these):
    X = np.random.default_rng(0).standard_normal((9, 100)) * 1e39
    X[0] *= 1e6
    out, alone, ones = np.empty(100), np.zeros(9), np.ones(9)
    arguments = (ones / 9, b"\1" * 9, 1.0, out, b"d", None, alone, False)
    assert these.corroborate(list(X), b"d" * 9, *arguments)
    np.testing.assert_allclose(out, naive_corroboration(X, ones / 9, b"\1" * 9, 1.0)[0], rtol=1e-9)


def moved(rows, by):
    """Return the rows at addresses so many bytes after a cache line."""
    found = []
    for row in rows:
        memory = np.empty(row.nbytes + 128, np.uint8)
        start = by - memory.ctypes.data % 64 + 64
        found.append(memory[start : start + row.nbytes].view(row.dtype))
        found[-1][:] = row
    return found


@pytest.mark.parametrize("code", list("fdeb"))
@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("length", [11, 300, 9000])
def test_results_do_not_depend_on_where_memory_lies(these, code, wide, length):
    random = np.random.default_rng(length)
    rows, _ = made(random.standard_cauchy((7, length)).clip(-50, 50), code * 7)
    weights, found = random.dirichlet(np.ones(7)), set()
    for by in range(0, 64, rows[0].itemsize):
        there = moved(rows, by)
        out, squares, alone = empty(length, code), np.zeros(7), np.zeros(7)
        rest = (weights, b"\1" * 7, 1.0, out, code.encode(), squares, alone, wide)
        these.corroborate(there, code.encode() * 7, *rest)
        sums = summed(these, there, code * 7, weights, code, 7, wide)[:2]
        means = trimmed(these, there, code * 7, 2, code, wide=wide)[:3]
        gram = np.zeros((7, 7))
        these.gram(there, code.encode() * 7, 0, gram, wide)
        found.add(b"".join(x.tobytes() for x in (out, squares, alone, *sums, *means, gram)))
    assert len(found) == 1


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 16, 31, 40])
def test_the_least_trim_leaves_the_median(these, count):
    X = np.random.default_rng(count).standard_normal((count, 100))
    y, shares, _, _ = trimmed(these, list(X), "d" * count, (count - 1) // 2, wide=True)
    np.testing.assert_allclose(y, np.median(X, axis=0), rtol=1e-15)
    assert shares.sum() == pytest.approx(100)


def around(code):
    """Return every number of a dtype, what lies midway between two, and the floats beside that."""
    every = np.arange(1 << 16, dtype=np.uint16)
    every = every.view(np.float16 if code == "e" else ml_dtypes.bfloat16).astype(np.float32)
    every = np.sort(every[np.isfinite(every)])
    midway = (every[:-1] / 2 + every[1:] / 2).astype(np.float32)
    beyond = np.float32([1e5, 3.4e38, -1e5, -3.4e38])
    both = np.concatenate([midway, every])
    with np.errstate(over="ignore"):
        beside = [np.nextafter(both, np.float32(end)) for end in (np.inf, -np.inf)]
    found = np.concatenate([every, midway, beyond, *beside])
    return found[np.isfinite(found)]


@pytest.mark.parametrize("code", ["e", "b"])
@pytest.mark.parametrize("wide", [False, True])
def test_results_are_rounded_as_others_round(these, code, wide):
    x = around(code)
    assert len(x) > 200_000
    # A sum that starts from zero knows no negative zero.
    bits = encoded(np.clip(x + np.float32(0), -LARGEST[code], LARGEST[code]), code).view(np.uint16)
    out = empty(len(x), code)
    assert these.combine([x], b"f", np.ones(1), out, code.encode(), None, wide)
    np.testing.assert_array_equal(out.view(np.uint16), bits)
    out = empty(len(x), code)
    sums = np.zeros(1), np.zeros(1)
    assert these.trim([x], b"f", 0, out, code.encode(), 1, *sums, wide) == len(x)
    np.testing.assert_array_equal(out.view(np.uint16), bits)


@pytest.mark.parametrize("code", ["e", "b"])
def test_every_number_of_16_bits_is_read_as_it_is(these, code):
    row = np.arange(1 << 16, dtype=np.uint16)
    row = row if code == "b" else row.view(np.float16)
    row = row[np.isfinite(decoded(row, code))]
    for wide in (False, True):
        y, _, finite = summed(these, [row], code, [1.0], "d", wide=wide)
        np.testing.assert_array_equal(y, decoded(row, code))
        assert finite


def test_what_is_too_large_for_the_dtype_becomes_its_largest(these):
    x = np.array([1e300, -1e300, 1.0, 1e39, -3.5e38])
    for code in "feb":
        y, _, finite = summed(these, [x], "d", [1.0], code)
        np.testing.assert_array_equal(y, np.clip(x, -LARGEST[code], LARGEST[code]))
        assert finite


@pytest.mark.parametrize("length", [3, 5000])
def test_what_overflows_in_single_precision_is_formed_in_double(these, length):
    x, zero = np.ones(length, np.float32), np.zeros(length, np.float32)
    x[1] = 3e38
    y, _, finite = summed(these, [x, x], "ff", [2.0, -1.5])
    np.testing.assert_allclose(y, x.astype(float) / 2, rtol=1e-6)
    assert finite
    y, squares, finite = summed(these, [x, zero], "ff", [0.0, 1.0], ring=2)
    np.testing.assert_allclose(squares, float(x[1]) ** 2, rtol=1e-6)
    assert finite
    assert not y.any()
    y, _, finite = summed(these, [x.astype(float) * 1e200], "d", [1e-200])
    np.testing.assert_allclose(y, x.astype(float), rtol=1e-12)
    assert finite


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("code", list("fdeb"))
@pytest.mark.parametrize(("length", "at"), [(1, 0), (17, 16), (33, 20), (5000, 0), (5000, 4999)])
def test_what_is_not_finite_is_told(these, bad, code, length, at):
    values = np.ones((5, length))
    values[2, at] = bad
    rows, _ = made(values, code * 5)
    for wide in (False, True):
        assert summed(these, rows, code * 5, np.ones(5), wide=wide)[2] is False
        assert trimmed(these, rows, code * 5, 2, wide=wide)[3] == -1
        weights = [1, 1, 0, 1, 1]
        y, _, finite = summed(these, rows, code * 5, weights, wide=wide)
        assert finite is True
        assert (y == 4).all()
        _, squares, finite = summed(these, rows, code * 5, weights, ring=5, wide=wide)
        assert finite is False
        assert not squares.any()
        total = np.zeros((5, 5))
        with np.errstate(invalid="ignore"):
            these.gram(rows, (code * 5).encode(), 0, total, wide)
        assert np.isfinite(np.delete(np.delete(total, 2, 0), 2, 1)).all()
        assert not np.isfinite(total[2, 2])


def test_a_weight_that_is_no_number_is_told(these):
    assert summed(these, [np.ones(3)], "d", [np.nan])[2] is False
    assert summed(these, [np.ones(3)], "d", [np.inf])[2] is False


def test_nothing_comes_of_no_rows(these):
    out, none = np.ones(100), np.zeros(0)
    assert these.combine([], b"", none, out, b"d", None, False)
    assert not out.any()
    these.gram([], b"", -1, np.zeros((0, 0)), False)
    total = np.ones((2, 2))
    these.gram([None, None], b"fd", -1, total, True)
    assert (total == 1).all()


def test_what_was_there_is_added_to(these):
    x = np.arange(3.0)
    squares, shares = np.ones(2), np.ones(2)
    these.combine([x, x + 1], b"dd", np.ones(2), np.empty(3), b"d", squares, True)
    np.testing.assert_array_equal(squares, [4, 4])
    these.trim([x, x + 2], b"dd", 0, np.empty(3), b"d", 1, shares, squares, True)
    np.testing.assert_array_equal(squares, [7, 7])
    np.testing.assert_array_equal(shares, [2.5, 2.5])


def test_the_parties_numbers_may_be_read_only_and_are_left_alone(these):
    rows = [np.arange(50, dtype=np.float32), np.arange(50.0)]
    copies = [row.copy() for row in rows]
    for row in rows:
        row.flags.writeable = False
    these.gram(rows, b"fd", 0, np.zeros((2, 2)), False)
    summed(these, rows, "fd", [1, 2], ring=2)
    trimmed(these, rows, "fd", 0)
    for row, copy in zip(rows, copies, strict=True):
        np.testing.assert_array_equal(row, copy)


SEEDS = st.integers(0, 1 << 32)


@anew
@given(SEEDS, st.integers(1, 12), st.integers(1, 200))
def test_the_order_of_the_rows_does_not_matter(these, seed, count, length):
    random = np.random.default_rng(seed)
    codes = mixture(random, count)
    rows, _ = made(random.standard_normal((count, length)), codes)
    order = random.permutation(count)
    moved, named = [rows[j] for j in order], "".join(codes[j] for j in order)
    one, two = np.zeros((count, count)), np.zeros((count, count))
    these.gram(rows, codes.encode(), 0, one, True)
    these.gram(moved, named.encode(), int(np.flatnonzero(order == 0)[0]), two, True)
    one, two = (np.tril(total) + np.tril(total, -1).T for total in (one, two))
    np.testing.assert_allclose(two, one[np.ix_(order, order)], rtol=1e-12, atol=1e-12)
    cut = int(random.integers(0, (count - 1) // 2 + 1))
    y, shares, squares, _ = trimmed(these, rows, codes, cut)
    again = trimmed(these, moved, named, cut)
    np.testing.assert_array_equal(again[0], y)
    np.testing.assert_allclose(again[1], shares[order], rtol=1e-12)
    np.testing.assert_array_equal(again[2], squares[order])


@anew
@given(SEEDS, st.integers(1, 12), st.integers(1, 200), st.integers(-20, 20))
def test_powers_of_two_change_no_digit(these, seed, count, length, power):
    random, factor = np.random.default_rng(seed), 2.0**power
    X = random.standard_normal((count, length)).astype(np.float32)
    rows, scaled, codes = list(X), list(X * np.float32(factor)), "f" * count
    one, two = np.zeros((count, count)), np.zeros((count, count))
    these.gram(rows, codes.encode(), -1, one, False)
    these.gram(scaled, codes.encode(), -1, two, False)
    np.testing.assert_array_equal(two, one * factor**2)
    weights = random.standard_normal(count)
    y, squares, _ = summed(these, rows, codes, weights, ring=count)
    more = summed(these, scaled, codes, weights, ring=count)
    np.testing.assert_array_equal(more[0], y * factor)
    np.testing.assert_array_equal(more[1], squares * factor**2)
    y, shares, _, _ = trimmed(these, rows, codes, (count - 1) // 2)
    more = trimmed(these, scaled, codes, (count - 1) // 2)
    np.testing.assert_array_equal(more[0], y * factor)
    np.testing.assert_array_equal(more[1], shares)


@anew
@given(SEEDS, st.integers(1, 12), st.integers(1, 100))
def test_a_trimmed_mean_lies_among_what_it_is_of(these, seed, count, length):
    random = np.random.default_rng(seed)
    X = random.standard_normal((count, length)).astype(np.float32)
    y, shares, _, seen = trimmed(these, list(X), "f" * count, (count - 1) // 2)
    assert (y >= X.min(axis=0)).all()
    assert (y <= X.max(axis=0)).all()
    assert shares.sum() == pytest.approx(seen)


HOW = {
    "bar": 0.3,
    "exact": 0.01,
    "hardening": 0.7,
    "tolerance": 1e-9,
    "most": 9,
    "pull": 1e-6,
    "least": 1e-3,
    "same": 5e-3,
}


def distances_of(random, count, kind="noisy"):
    """Return distances between so many parties, and how often each two met."""
    X = random.standard_normal((count, 300)) * np.exp(random.standard_normal(count))[:, None]
    if kind == "clique":
        X[: count // 5 + 2] = 0.3 * X[: count // 5 + 2] + random.standard_normal(300)
    D = np.square(X[:, None] - X).mean(axis=2)
    often = random.integers(1, 4, (count, count)) / 3
    met = np.triu(often, 1) + np.triu(often, 1).T
    if kind == "apart" and count > 3:  # two met nobody else: only the sum of their levels is known
        met[:2, 2:] = met[2:, :2] = 0.0
    if kind == "ring":  # each met two: what one end of it says takes many steps to the other
        far = np.abs(np.subtract.outer(np.arange(count), np.arange(count)))
        met[np.minimum(far, count - far) > 1] = 0.0
    return D, met


def descended(these, pairs, start, ends=(), **changes):
    """Return the levels, the iterations and the objective."""
    levels = np.full_like(start, 7.0)
    ends = np.array(ends, float).reshape(-1, len(start))
    found = these.descend(pairs, start, ends, levels, tuple({**HOW, **changes}.values()))
    return levels, *found


def naive_descent(D, met, start, bar, exact, hardening, most, pull, least, **_):
    """Return where so many iterations lead to, and the objective there."""
    s = start
    for turn in range(most):
        p = s[:, None] + s
        V = met * np.maximum(np.abs(1 - D / p), max(bar * hardening**turn, exact)) ** -1.5 / p**2
        diagonal = V.sum(axis=1)
        right = (V * D).sum(axis=1) + pull * diagonal * start
        s = np.maximum(np.linalg.solve(V + (1 + pull) * np.diag(diagonal), right), least)
    misfit = np.abs(1 - D / (s[:, None] + s))
    return s, (met * np.sqrt(np.maximum(misfit, exact))).sum()


@pytest.mark.parametrize("kind", ["noisy", "clique", "apart", "ring"])
@pytest.mark.parametrize("count", [3, 4, 5, 8, 9, 14, 31, 64, 99, 100, 137])
def test_levels_descend_as_the_equations_say(these, kind, count):
    random = np.random.default_rng(count)
    pairs, start = distances_of(random, count, kind), random.random(count) + 0.5
    levels, iterations, objective = descended(these, pairs, start)
    expected, lowest = naive_descent(*pairs, start, **HOW)
    assert iterations == HOW["most"]
    np.testing.assert_allclose(levels, expected, rtol=1e-6)
    assert objective == pytest.approx(lowest, rel=1e-6)


def test_a_descent_ends_where_it_stays_or_where_another_ended(these):
    random = np.random.default_rng(0)
    pairs, start = distances_of(random, 9), np.ones(9)
    levels, iterations, objective = descended(these, pairs, start, tolerance=1e-6, most=1000)
    assert 13 < iterations < 1000  # the bar has sunk, and then the levels stay
    again = descended(these, pairs, levels, bar=0.0, tolerance=1e-5)
    assert again[1] == 1
    near = [levels * 100, levels * (1 + 4e-3)]
    _, earlier, never = descended(these, pairs, start, near, tolerance=1e-6, most=1000)
    assert never == np.inf
    assert earlier < iterations
    alone = descended(these, pairs, start, [levels * 100], tolerance=1e-6, most=1000)
    assert alone[1:] == (iterations, objective)


def test_no_level_is_below_the_least(these):
    D, met = distances_of(np.random.default_rng(0), 6)
    D[0, 1:] = D[1:, 0] = D[1:, 1:][D[1:, 1:] > 0].min() / 9  # nearer than the others allow
    levels, _, _ = descended(these, (D, met), np.ones(6), least=0.2)
    assert levels.min() == 0.2
    assert np.isfinite(levels).all()


@anew
@given(SEEDS, st.integers(3, 130), st.integers(-300, 300))
def test_levels_have_no_scale(these, seed, count, power):
    """Nor an order; and powers of two change no digit of them."""
    random, factor = np.random.default_rng(seed), 2.0**power
    (D, met), start = distances_of(random, count), random.random(count) + 0.5
    levels, _, objective = descended(these, (D, met), start, most=3)
    scaled = descended(these, (factor * D, met), factor * start, most=3, least=factor * 1e-3)
    np.testing.assert_array_equal(scaled[0], factor * levels)
    assert scaled[2] == objective
    order = random.permutation(count)
    moved = np.ascontiguousarray(D[order][:, order]), np.ascontiguousarray(met[order][:, order])
    np.testing.assert_allclose(
        descended(these, moved, start[order], most=3)[0], levels[order], rtol=1e-5
    )


def read_only(x):
    x.flags.writeable = False
    return x


def between(length):
    """Return numbers between two addresses."""
    return np.frombuffer(bytearray(4 * length + 1), np.float32, length, 1)


X, W = [np.ones(6, np.float32), np.ones(6, np.float32)], np.ones(2)
TWO, NONE, HERE = (np.ones((2, 2)), np.ones((2, 2))), np.ones((0, 2)), tuple(HOW.values())
WRONG = {
    "a code too few": ("gram", X, b"f", -1, np.zeros((2, 2)), False),
    "a code too many": ("gram", X, b"fff", -1, np.zeros((2, 2)), False),
    "a code that is none": ("gram", X, b"fx", -1, np.zeros((2, 2)), False),
    "half a number": ("gram", [bytearray(7), X[0]], b"ff", -1, np.zeros((2, 2)), False),
    "codes that are text": ("gram", X, "ff", -1, np.zeros((2, 2)), False),
    "codes with a zero": ("gram", X, b"f\0", -1, np.zeros((2, 2)), False),
    "other lengths": ("gram", [X[0], X[1][:5]], b"ff", -1, np.zeros((2, 2)), False),
    "other dtypes": ("gram", X, b"fd", -1, np.zeros((2, 2)), False),
    "a row that is strided": ("gram", [X[0][::2], X[1][:3]], b"ff", -1, np.zeros((2, 2)), False),
    "a row between addresses": ("gram", [between(6), X[1]], b"ff", -1, np.zeros((2, 2)), False),
    "a row that is text": ("gram", ["no", X[1]], b"ff", -1, np.zeros((2, 2)), False),
    "rows that are a number": ("gram", 3, b"ff", -1, np.zeros((2, 2)), False),
    "no such row": ("gram", X, b"ff", 2, np.zeros((2, 2)), False),
    "a row that is None": ("gram", [None, X[0]], b"ff", 0, np.zeros((2, 2)), False),
    "a small total": ("gram", X, b"ff", -1, np.zeros((2, 1)), False),
    "a large total": ("gram", X, b"ff", -1, np.zeros((3, 3)), False),
    "a total in single": ("gram", X, b"ff", -1, np.zeros((2, 2), np.float32), False),
    "no total": ("gram", X, b"ff", -1, None, False),
    "a total read only": ("gram", X, b"ff", -1, read_only(np.zeros((2, 2))), False),
    "a total by columns": ("gram", X, b"ff", -1, np.zeros((2, 2), order="F"), False),
    "too few arguments": ("gram", X, b"ff", -1),
    "None among summands": ("combine", [None, X[0]], b"ff", W, X[0] * 0, b"f", None, False),
    "nothing but None": ("combine", [None, None], b"ff", W, X[0] * 0, b"f", None, False),
    "nowhere": ("combine", X, b"ff", W, None, b"f", None, False),
    "no code for it": ("combine", X, b"ff", W, X[0] * 0, b"", None, False),
    "a wrong code for it": ("combine", X, b"ff", W, X[0] * 0, b"q", None, False),
    "a short output": ("combine", X, b"ff", W, X[0][:5] * 0, b"f", None, False),
    "a strided output": ("combine", X, b"ff", W, np.zeros((6, 2))[:, 0], b"d", None, False),
    "an output read only": ("combine", X, b"ff", W, read_only(X[0] * 0), b"f", None, False),
    "bytes": ("combine", X, b"ff", W, bytes(24), b"f", None, False),
    "an output between": ("combine", X, b"ff", W, between(6), b"f", None, False),
    "a weight too few": ("combine", X, b"ff", W[:1], X[0] * 0, b"f", None, False),
    "no weights": ("combine", X, b"ff", None, X[0] * 0, b"f", None, False),
    "weights in single": ("combine", X, b"ff", X[0][:2], X[0] * 0, b"f", None, False),
    "squares too many": ("combine", X, b"ff", W, X[0] * 0, b"f", np.zeros(3), False),
    "squares in single": ("combine", X, b"ff", W, X[0] * 0, b"f", X[0][:2] * 0, False),
    "a square": ("combine", X, b"ff", W, X[0] * 0, b"f", 3.0, False),
    "squares read only": ("combine", X, b"ff", W, X[0] * 0, b"f", read_only(W * 0), False),
    "all cut": ("trim", X, b"ff", 1, X[0] * 0, b"f", 1, W * 0, W * 0, False),
    "far too much cut": ("trim", X, b"ff", sys.maxsize, X[0] * 0, b"f", 1, W * 0, W * 0, False),
    "less than nothing": ("trim", X, b"ff", -1, X[0] * 0, b"f", 1, W * 0, W * 0, False),
    "no rows": ("trim", [], b"", 0, X[0] * 0, b"f", 1, W[:0], W[:0], False),
    "None to sort": ("trim", [None, X[0]], b"ff", 0, X[0] * 0, b"f", 1, W * 0, W * 0, False),
    "no mean": ("trim", X, b"ff", 0, None, b"f", 1, W * 0, W * 0, False),
    "never": ("trim", X, b"ff", 0, X[0] * 0, b"f", 0, W * 0, W * 0, False),
    "no shares": ("trim", X, b"ff", 0, X[0] * 0, b"f", 1, None, W * 0, False),
    "no distances": ("trim", X, b"ff", 0, X[0] * 0, b"f", 1, W * 0, None, False),
    "small shares": ("trim", X, b"ff", 0, X[0] * 0, b"f", 1, W[:1] * 0, W * 0, False),
    "distances alone": ("descend", TWO[:1], W, NONE, W * 0, HERE),
    "distances of more": ("descend", (np.ones((3, 3)),) * 2, W, NONE, W * 0, HERE),
    "one met too few": ("descend", (TWO[0], np.ones((2, 1))), W, NONE, W * 0, HERE),
    "met in whole numbers": ("descend", (TWO[0], np.ones((2, 2), bool)), W, NONE, W * 0, HERE),
    "met by nobody": ("descend", (TWO[0], None), W, NONE, W * 0, HERE),
    "no start": ("descend", TWO, None, NONE, W * 0, HERE),
    "a long start": ("descend", TWO, np.ones(3), NONE, W * 0, HERE),
    "ends of others": ("descend", TWO, W, np.ones((1, 3)), W * 0, HERE),
    "no ends": ("descend", TWO, W, None, W * 0, HERE),
    "few levels": ("descend", TWO, W, NONE, W[:1] * 0, HERE),
    "no levels": ("descend", TWO, W, NONE, None, HERE),
    "levels read only": ("descend", TWO, W, NONE, read_only(W * 0), HERE),
    "not told how": ("descend", TWO, W, NONE, W * 0, HERE[1:]),
    "a number too large": ("trim", X, b"ff", 1 << 70, X[0] * 0, b"f", 1, W * 0, W * 0, False),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_arguments_are_refused(compiled, name):
    function, *arguments = WRONG[name]
    with pytest.raises((ValueError, BufferError, TypeError, OverflowError)):
        getattr(compiled, function)(*arguments)
    assert (X[0] == 1).all()
    assert (X[1] == 1).all()


@pytest.mark.parametrize("code", [b"f", b"x"])
@pytest.mark.parametrize("out", [bytearray(8), bytearray(7), bytearray(12), b"12345678", None])
@pytest.mark.parametrize("weights", [bytearray(16), bytearray(8), None])
def test_nothing_is_held_after_a_call_however_it_ends(compiled, code, out, weights):
    held = [bytearray(8), bytearray(8)]
    total = bytearray(32)
    squares = bytearray(16)
    rest = (out, b"f", bytearray(16), squares, False)
    for call in [
        lambda: compiled.gram(held, b"f" + code, 0, total, False),
        lambda: compiled.gram(held, b"f" + code, 0, out, False),
        lambda: compiled.combine(held, b"f" + code, weights, *rest),
        lambda: compiled.trim(held, b"f" + code, 0, out, b"f", 1, weights, squares, False),
        lambda: compiled.descend((held[0], out), held[1], b"", weights, HERE),
    ]:
        with suppress(ValueError, BufferError, TypeError):
            call()
        for memory in (*held, total, squares, out, weights):
            if isinstance(memory, bytearray):
                memory += b"x"  # which nobody may while it is held
                del memory[-1:]


def test_rows_may_be_the_same_and_come_one_by_one(compiled):
    row = np.ones(4)
    total = np.zeros((3, 3))
    compiled.gram((row for _ in range(3)), b"ddd", -1, total, True)
    np.testing.assert_array_equal(total, np.tril(np.full((3, 3), 4)))


def test_a_set_can_be_chosen_and_says_its_name(compiled):
    before = compiled.in_use()
    assert before == compiled.available()[0]
    assert compiled.available()[-1] == "any"
    try:
        for name in compiled.available():
            compiled.use(name)
            assert compiled.in_use() == name
            if loops.current is compiled:
                assert loops.described() == f"compiled loops ({name})"
        with pytest.raises(ValueError, match="no such"):
            compiled.use("no such")
        assert compiled.in_use() == "any"
    finally:
        compiled.use(before)


@pytest.mark.integration
@pytest.mark.parametrize("asked", ["", "1"])
def test_the_version_names_the_loops(asked):
    found = subprocess.run(
        [sys.executable, "-m", "consilience_command", "--version"],
        env={**os.environ, "CONSILIENCE_PLAIN": asked},
        capture_output=True,
        text=True,
        check=True,
    )
    numpy = bool(asked) or loops.compiled is None
    said = "numpy, not compiled" if numpy else f"compiled loops ({loops.compiled.available()[0]})"
    assert said in found.stdout
