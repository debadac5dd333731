"""Sums of products, cut to a rank, equal the singular value decomposition of the matrix formed."""

import numpy as np
import pytest

from consilience.passes import factors
from consilience.passes.factors import Stack, cut, grams_of, inner_products, whole

OUT, INTO, RANK = 60, 50, 4


def made(kind: str, dtype: str) -> Stack:
    """Return five points whose factors are as a kind of party might send them."""
    random = np.random.default_rng(1)
    pairs = [(random.standard_normal((OUT, RANK)), random.standard_normal((RANK, INTO)))]
    for j in range(1, 5):
        left, right = random.standard_normal((OUT, RANK)), random.standard_normal((RANK, INTO))
        if kind == "shared":  # the same rows, in another gauge
            turn = random.standard_normal((RANK, RANK))
            right = turn @ pairs[0][1]
        elif kind == "far" and j == 3:  # another unit
            left, right = left * 1e25, right * 1e-25
        elif kind == "cancel":  # nearly nothing is left of them together
            left, right = pairs[0][0] * (-1) ** j + 1e-3 * left, pairs[0][1] + 1e-4 * right
        pairs.append((left, right))
    pairs = [(left.astype(dtype), right.astype(dtype)) for left, right in pairs]
    by = np.repeat([1.0, 1.0, 0.5, 1.5, 1e-42 if kind == "light" else 1.0], RANK)
    return Stack(np.hstack([left for left, _ in pairs]), np.vstack([r for _, r in pairs]), by)


def formed(stack: Stack):
    return (stack.left.astype(float) * stack.by) @ stack.right.astype(float)


def off(found, expected) -> float:
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))


@pytest.mark.parametrize("kind", ["apart", "shared", "far", "cancel", "light"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_cut_is_the_singular_value_decomposition(kind: str, dtype: str):
    if (kind, dtype) == ("far", "float16"):
        pytest.skip("half precision has no such numbers")
    stack = made(kind, dtype)
    full = formed(stack)
    u, values, v = np.linalg.svd(full)
    for rank in (3, 10, 19):
        (left, right), lost = cut(stack, rank, grams_of(stack))
        assert left.shape == (OUT, rank)
        assert off(left.astype(float) @ right, (u[:, :rank] * values[:rank]) @ v[:rank]) < 1e-6
        expected = np.square(values[rank:]).sum()
        assert lost == pytest.approx(expected, rel=1e-6, abs=1e-12 * np.square(full).sum())


@pytest.mark.parametrize("kind", ["apart", "far", "light"])
def test_the_whole_stack_is_the_sum(kind: str):
    stack = made(kind, "float32")
    left, right = (factor.astype(float) for factor in whole(stack))
    assert off(left @ right, formed(stack)) < 1e-6
    alone = stack._replace(by=np.repeat([0, 0, 0, 0, stack.by[-1]], RANK))
    left, right = (factor.astype(float) for factor in whole(alone))
    assert off(left @ right, formed(alone)) < 1e-6


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [("apart", "float32"), ("shared", "float32"), ("far", "float64"), ("cancel", "float64")],
)
def test_single_precision_is_for_sums_that_are_not_small(kind: str, dtype: str):
    stack = made(kind, "float32")
    assert cut(stack, 3, grams_of(stack)).factors.right.dtype == dtype


@pytest.mark.parametrize("tile", [1, 100, 1 << 17])
def test_grams_do_not_depend_on_the_tiles(tile: int, monkeypatch):
    monkeypatch.setattr(factors, "_TILE", tile)
    stack = made("apart", "float32")
    left, right = (side.astype(float) for side in (stack.left, stack.right))
    found = grams_of(stack)
    np.testing.assert_allclose(found.left, left.T @ left, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(found.right, right @ right.T, rtol=1e-12, atol=1e-12)
    ranks = [RANK] * 5

    def load(some, room):
        terms = np.concatenate([np.arange(j * RANK, (j + 1) * RANK) for j in some])
        return Stack(stack.left[:, terms], stack.right[terms], stack.by[terms])

    whole = inner_products(ranks, load)
    assert whole.grams is not None
    monkeypatch.setattr(factors, "_TOGETHER", 2 * RANK)
    parts = inner_products(ranks, load)
    assert parts.grams is None
    np.testing.assert_allclose(parts.products, whole.products, rtol=1e-12)
    np.testing.assert_allclose(parts.reach, whole.reach, rtol=1e-12)
