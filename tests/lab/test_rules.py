"""FLAME, FoolsGold and BRA against their formulas, written out coordinate by coordinate."""

import math

import numpy as np
import pytest

import consilience
from consilience.lab.experiments.lineup import TOLD, method_of
from consilience.lab.rules import RULES, Bayesian, Flame, FoolsGold


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    return float(
        sum(x * y for x, y in zip(a, b, strict=True)) / math.dist(a, 0 * a) / math.dist(b, 0 * b)
    )


def clustered(rows: np.ndarray) -> set[int]:
    """Join parties at growing distances, until more than half of all hang together."""
    count = len(rows)
    apart = {(i, j): 1 - cosine(rows[i], rows[j]) for i in range(count) for j in range(i)}
    for bound in sorted(apart.values()):
        for start in range(count):
            found, grown = {start}, True
            while grown:
                near = {
                    k for pair, d in apart.items() if d <= bound and found & {*pair} for k in pair
                }
                found, grown = found | near, not near <= found
            if len(found) > count // 2:
                return found
    raise AssertionError


@pytest.mark.parametrize("seed", range(5))
def test_flame_is_the_mean_of_its_cluster_clipped_to_the_median_length(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((9, 6)) + 1
    rows[7:] = -5 * rows[:7].mean(0)
    kept = clustered(rows)
    assert not kept & {7, 8}
    bound = sorted(math.dist(row, 0 * row) for row in rows)[4]
    clipped = [row * min(1, bound / math.dist(row, 0 * row)) for row in rows]
    mean = sum(clipped[j] for j in kept) / len(kept)
    assert np.allclose(Flame(noise=0)(rows), mean)


def test_the_noise_of_flame_goes_by_the_median_length() -> None:
    rows = np.full((5, 20_000), 3.0)
    rows[0] *= 100  # the median length is that of the others
    off = Flame(noise=0.01)(rows) - 3.0
    assert off.std() == pytest.approx(0.01 * 3 * math.sqrt(20_000), rel=0.05)


def fools_gold(sums: np.ndarray) -> list[float]:
    """Algorithm 1 of the paper, with a confidence of one."""
    count = len(sums)
    others = [[k for k in range(count) if k != j] for j in range(count)]
    alike = [[cosine(sums[j], sums[k]) for k in range(count)] for j in range(count)]
    most = [max(alike[j][k] for k in others[j]) for j in range(count)]
    own = []
    for j in range(count):
        pardoned = [
            alike[j][k] * most[j] / most[k] if most[k] > most[j] else alike[j][k] for k in others[j]
        ]
        own.append(min(1.0, max(0.0, 1 - max(pardoned))))
    own = [min(0.99, value / max(own)) for value in own]
    return [
        min(1.0, max(0.0, math.log(value / (1 - value)) + 0.5)) if value else 0.0 for value in own
    ]


def test_fools_gold_compares_sums_over_rounds() -> None:
    rng, rule = np.random.default_rng(0), FoolsGold()
    aim, sums = rng.standard_normal(30), np.zeros((7, 30))
    for _ in range(5):
        rows = rng.standard_normal((7, 30)) + 0.5
        rows[5:] = aim + 0.3 * rng.standard_normal((2, 30))
        sums += rows
        value = rule(rows)
    weights = fools_gold(sums)
    assert weights[5] == weights[6] == 0 < min(weights[:5])
    assert np.allclose(value, np.average(rows, axis=0, weights=weights))


def test_copies_alone_make_no_step() -> None:
    assert not FoolsGold()(np.ones((4, 3), np.float32)).any()


def bayesian(rows: np.ndarray) -> np.ndarray:
    """EM for parties that are honest with probability rho, coordinate by coordinate."""
    rho, y = 0.95, sum(rows) / len(rows)
    q = [1.0] * len(rows)
    for _ in range(100):
        d = [math.dist(row, y) for row in rows]
        variance = sum(a * b * b for a, b in zip(q, d, strict=True)) / sum(q)
        p = [math.exp(-b * b / 2 / variance) / math.sqrt(2 * math.pi * variance) for b in d]
        q = [rho * a / (rho * a + 1 - rho) for a in p]
        rho = max(0.5, sum(q) / len(q))
        before, y = y, sum(a * row for a, row in zip(q, rows, strict=True)) / sum(q)
        if math.dist(y, before) <= 1e-3 * math.dist(before, 0 * before):
            return y
    return y


@pytest.mark.parametrize("scale", [0.01, 0.3, 1.0])
@pytest.mark.parametrize("seed", range(3))
def test_bra_is_em_for_who_is_honest(seed: int, scale: float) -> None:
    rng = np.random.default_rng(seed)
    rows = scale * (rng.standard_normal((9, 6)) + 1)
    rows[7:] = -5 * rows[:7].mean(0)
    value = Bayesian()(rows)
    assert np.allclose(value, bayesian(rows), rtol=1e-6)
    hears_all = np.allclose(value, rows.mean(0), rtol=1e-2)
    assert hears_all == (scale < 0.1)  # it depends on the units of the updates


def test_bra_leaves_out_who_is_far_away() -> None:
    rows = 0.1 * np.random.default_rng(0).standard_normal((9, 6)) + 1
    rows[8] = -50
    assert np.allclose(Bayesian()(rows), rows[:8].mean(0), rtol=0.01)


@pytest.mark.parametrize("name", RULES)
def test_updates_are_left_alone_and_keep_their_type(name: str) -> None:
    rows = np.random.default_rng(0).standard_normal((6, 8)).astype(np.float32)
    before = rows.copy()
    assert method_of(name, 1, 1)(rows).dtype == np.float32
    assert np.array_equal(rows, before)


@pytest.mark.parametrize("name", TOLD)
def test_the_told_are_told(name: str) -> None:
    assert method_of(name, adversaries=4, present=4).adversaries == 4
    most = 5 if "krum" in name else 6  # of 14: less than half; Krum asks for 2f + 3 parties
    assert method_of(name, adversaries=9, present=4).adversaries == most


@pytest.mark.parametrize("name", TOLD)
def test_the_told_take_what_they_are_told_where_nobody_attacks(name: str) -> None:
    rows = np.random.default_rng(0).standard_normal((10, 50))
    told = method_of(name, adversaries=4, present=0)
    assert np.isfinite(consilience.aggregate(rows, method=told).value).all()
