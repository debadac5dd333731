"""Minimum-diameter averaging, DnC, CAF, centred clipping, and what comes before: NNM and ARC."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

import consilience as cs
import naive
from consilience.beliefs import Given
from rounds import consensuses, evidence_of, scenario


def blocks(seed):
    """Return rounds of different parties, three to six, and their centres."""
    rounds, centres = scenario("partial", parties=6, seed=seed)
    different = {frozenset(updates): i for i, updates in enumerate(rounds)}
    return [rounds[i] for i in different.values()], [centres[i] for i in different.values()]


def check(method, expected, seed=0):
    """Hold a method against a function of a round and its centre."""
    rounds, centres = blocks(seed)
    beliefs = method.infer(evidence_of(rounds, centres))
    found = consensuses(beliefs, rounds, centres)
    for value, updates, centre in zip(found, rounds, centres, strict=True):
        assert_allclose(value, expected(updates, centre), rtol=1e-7, atol=1e-9)


SEEDS = pytest.mark.parametrize("seed", range(6))
ADVERSARIES = pytest.mark.parametrize("f", [0, 1])


@SEEDS
@ADVERSARIES
def test_mda_takes_those_with_the_least_diameter(f, seed):
    check(cs.MDA(f), lambda updates, _: naive.smallest(updates, f), seed)


@SEEDS
@ADVERSARIES
def test_dnc_leaves_out_the_farthest_along_the_direction_of_most_variance(f, seed):
    check(cs.DnC(f), lambda updates, _: naive.divide_and_conquer(updates, f), seed)


@SEEDS
@ADVERSARIES
def test_caf_is_the_mean_of_least_variance_on_the_way(f, seed):
    check(cs.CAF(f), lambda updates, _: naive.covariance_filter(updates, f), seed)


@SEEDS
@pytest.mark.parametrize("radius", [None, 0.3, 2.0, 1e9])
@pytest.mark.parametrize("steps", [1, 2, 10])
def test_centred_clipping_goes_by_clipped_differences(radius, steps, seed):
    check(
        cs.CentredClipping(radius, steps),
        lambda updates, centre: naive.centred_clipping(updates, centre, radius, steps),
        seed,
    )


@SEEDS
@ADVERSARIES
def test_mixing_comes_before_a_method(f, seed):
    check(cs.NNM(cs.Mean(), f), lambda u, _: np.mean([*naive.mixed(u, f).values()], axis=0), seed)
    check(cs.NNM(cs.CAF(f), f), lambda u, _: naive.covariance_filter(naive.mixed(u, f), f), seed)


@SEEDS
@pytest.mark.parametrize("f", [2, 3, 5])
def test_with_more_adversaries(f, seed):
    random = np.random.default_rng(seed)
    X = random.standard_normal((12, 7)) * random.uniform(0.5, 3, (12, 1))
    updates = dict(enumerate(X))
    clipped = naive.robustly_clipped(updates, 0, f)
    for method, expected in (
        (cs.MDA(f), naive.smallest(updates, f)),
        (cs.DnC(f), naive.divide_and_conquer(updates, f)),
        (cs.CAF(f), naive.covariance_filter(updates, f)),
        (cs.NNM(cs.CAF(f), f), naive.covariance_filter(naive.mixed(updates, f), f)),
        (cs.ARC(cs.DnC(f), f), naive.divide_and_conquer(clipped, f)),
    ):
        weights = method.infer(cs.Evidence.of(X)).weights[0]
        assert_allclose(weights @ X, expected, rtol=1e-7, atol=1e-9)


@SEEDS
def test_mixing_comes_before_the_geometric_median(seed):
    X = np.random.default_rng(seed).standard_normal((12, 7))
    mixed = naive.mixed(dict(enumerate(X)), 3)
    assert min(naive.typical_distances(mixed).values()) > 0  # no majority agrees
    expected, _ = naive.weiszfeld(mixed, dict.fromkeys(mixed, 1 / 12), 3, 0.1)
    median = cs.GeometricMedian(0.1, tolerance=-1.0, max_iterations=3)
    beliefs = cs.NNM(median, 3).infer(cs.Evidence.of(X))
    assert_allclose(beliefs.weights[0] @ X, expected, rtol=1e-8)
    assert beliefs.iterations == len(beliefs.objective) == 3
    assert not beliefs.converged


@SEEDS
@ADVERSARIES
def test_robust_clipping_comes_before_a_method(f, seed):
    def mean(updates, centre):
        return np.mean([*naive.robustly_clipped(updates, centre, f).values()], axis=0)

    def mixed(updates, centre):
        clipped = naive.mixed(naive.robustly_clipped(updates, centre, f), f)
        return naive.covariance_filter(clipped, f)

    check(cs.ARC(cs.Mean(), f), mean, seed)
    check(cs.ARC(cs.NNM(cs.CAF(f), f), f), mixed, seed)


def test_what_is_clipped_is_the_distance_from_the_centre():
    X = np.array([[1.0, 0.0], [0.0, 2.0], [30.0, 40.0]])
    found = cs.aggregate(X, cs.ARC(cs.Mean()))
    assert_allclose(found.value, (X[0] + X[1] + [1.2, 1.6]) / 3)
    assert found.center_weight == pytest.approx(0.96 / 3)
    moved = cs.aggregate(X + 7, cs.ARC(cs.Mean()), center=np.full(2, 7.0))
    assert_allclose(moved.value, found.value + 7)


def test_weights_of_a_prior_go_through_the_mixing():
    """A method that believes the centre, before which updates are clipped and mixed."""
    random = np.random.default_rng(0)
    X, center = 5 + random.standard_normal((7, 50)), random.standard_normal(50)
    vb = cs.IVAR("vb", prior_variance=0.1)
    means = np.array([*naive.mixed(dict(enumerate(X)), 3).values()])
    found, expected = (
        cs.aggregate(X, cs.NNM(vb), center=center),
        cs.aggregate(means, vb, center=center),
    )
    assert expected.center_weight > 0.1
    assert_allclose(found.value, expected.value, rtol=1e-6)


def test_sample_counts_reach_the_method():
    X = np.random.default_rng(0).standard_normal((5, 20))
    counts = {str(j): 1.0 + j for j in range(5)}
    mixed = naive.mixed({str(j): x for j, x in enumerate(X)}, 2)
    beliefs = cs.NNM(cs.Mean()).infer(cs.Evidence.of(X), Given(counts))
    assert_allclose(beliefs.weights[0] @ X, naive.fedavg(mixed, counts))


def test_updates_equally_far_away_share_a_place():
    """Here all at the same distance from the first, whatever rounding says of it."""
    turned = np.linalg.qr(np.random.default_rng(0).standard_normal((6, 6)))[0]
    X = np.vstack([np.zeros(6), turned])
    weights = cs.NNM(cs.Mean(), 3).infer(cs.Evidence.of(X)).weights[0]
    assert_allclose(weights[1:], weights[1], rtol=1e-9)
    assert weights[0] == pytest.approx(2 * weights[1])


@pytest.mark.parametrize("rule", [cs.MDA, cs.DnC, cs.CAF, lambda f=None: cs.NNM(cs.Mean(), f)])
def test_the_most_adversaries_are_fewer_than_half(rule):
    random = np.random.default_rng(0)
    for count, most in [(1, 0), (2, 0), (3, 1), (4, 1), (7, 3)]:
        X = random.standard_normal((count, 30))
        assert_allclose(cs.aggregate(X, rule()).value, cs.aggregate(X, rule(most)).value)
        with pytest.raises(cs.ConsilienceError, match=f"{count} parties tolerates 0 to {most} "):
            cs.aggregate(X, rule(most + 1))
        with pytest.raises(cs.ConsilienceError, match="asked for -1"):
            cs.aggregate(X, rule(-1))


def test_mda_declines_what_would_take_forever():
    for count, f, possible in [
        (20, None, True),
        (30, 4, True),
        (60, 4, False),
        (300, 9, False),
    ]:
        evidence = cs.Evidence.of(np.random.default_rng(0).standard_normal((count, 2)))
        if possible:
            assert np.count_nonzero(cs.MDA(f).infer(evidence).weights[0]) == count - (f or 9)
        else:
            with pytest.raises(cs.ConsilienceError, match=f"of {count} parties .* too many"):
                cs.MDA(f).infer(evidence)


def test_mda_takes_the_first_of_equal_choices():
    """Equal but for rounding."""
    for seed in range(5):
        turned = np.linalg.qr(np.random.default_rng(seed).standard_normal((5, 5)))[0]
        assert_allclose(cs.MDA(2).infer(cs.Evidence.of(turned)).weights[0], [1 / 3] * 3 + [0, 0])


def test_rounding_does_not_decide_who_is_silenced_by_caf():
    """Two are equally far: both lose all at once, and nothing that rounding leaves sets a scale."""
    t = np.array([-2.0, -1.6, -1.2, -0.6, 0.6, 1.2, 1.6, 2.0])
    left = np.maximum(1 - (t / 2) ** 2, 0) * np.maximum(1 - (t / 1.6) ** 2, 0)
    for seed in range(20):
        scale, shift = np.random.default_rng(seed).standard_normal(2)
        evidence = cs.Evidence.of(scale * t[:, None] + shift)
        assert_allclose(cs.CAF(3).infer(evidence).weights[0], left / left.sum(), atol=1e-9)


def test_caf_ends_beside_one_far_away():
    """Whose square would else remain the largest, and nobody lose anything."""
    X = np.random.default_rng(0).standard_normal((9, 50))
    X[8] *= 1e12
    weights = cs.CAF().infer(cs.Evidence.of(X)).weights[0]
    assert weights[8] == 0
    assert np.count_nonzero(weights) >= 5


def test_centred_clipping_reaches_the_parties_from_afar():
    """In one step, if the centre is among them; in a few, if not."""
    random = np.random.default_rng(0)
    X = 1000 + random.standard_normal((10, 200))
    X[8:] = 1000 + 50 * random.standard_normal((2, 200))

    def error(**how):
        return np.sqrt(np.mean((cs.aggregate(X, cs.CentredClipping(**how)).value - 1000) ** 2))

    assert error() < 0.5
    assert error(steps=1) > 2
    assert cs.aggregate(X, "centred-clipping").center_weight < 1e-4
    near = cs.aggregate(X, cs.CentredClipping(steps=1), center=np.full(200, 1000.0))
    assert np.sqrt(np.mean((near.value - 1000) ** 2)) < 0.5


@pytest.mark.parametrize("radius", [0.0, -1.0, np.nan])
def test_a_radius_is_positive(radius):
    with pytest.raises(cs.ConsilienceError, match="radius"):
        cs.CentredClipping(radius)


@pytest.mark.parametrize("method", ["centred-clipping", "arc"])
def test_parties_that_send_nothing_outvote_the_rest(method):
    X = np.zeros((7, 5))
    X[5:] = 9.0
    assert_allclose(cs.aggregate(X, method).value, 0.0)


@pytest.mark.parametrize("before", [cs.NNM, cs.ARC])
def test_mixing_comes_before_what_goes_by_distances(before):
    with pytest.raises(cs.ConsilienceError, match=r"distances alone.*TrimmedMean\(trim=0.2\)"):
        before(cs.TrimmedMean())
    with pytest.raises(cs.ConsilienceError, match="'krum'"):
        before("krum")
