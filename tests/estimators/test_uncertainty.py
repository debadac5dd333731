"""Stated uncertainty: intervals for noise levels, and the posterior variance of the truth."""

from dataclasses import replace
from statistics import NormalDist

import numpy as np
import pytest
from numpy.testing import assert_allclose

import consilience as cs
import naive
from consilience.estimators.marginal import Marginal
from consilience.estimators.uncertainty import noise_intervals
from rounds import draw, evidence_of, scenario

Z90 = NormalDist().inv_cdf(0.95)
V = np.array([[1.5], [1.5], [-1.0], [0.0], [0.0], [0.5]])
OWN = np.array([0.3, 0.5, 1.0, 1.0, 1.5, 2.0])


def log_widths(beliefs, level=0.90):
    """Return the intervals' half widths in the logarithm of the noise variance."""
    lower, upper = noise_intervals(beliefs, level).T
    assert_allclose(np.sqrt(lower * upper), beliefs.noise, rtol=1e-9)
    return np.log(upper / lower)


@pytest.mark.parametrize(
    "method",
    [
        cs.IVAR("vb"),
        cs.ICOV(posterior="joint", rank=1),
        cs.ICOV(posterior="joint", rank=2),
        cs.ICOV(posterior="joint", rank=1, noise="shared"),
    ],
    ids=["ivar", "icov", "icov rank 2", "icov shared"],
)
@pytest.mark.parametrize("name", ["one round", "partial"])
def test_intervals_come_from_the_fisher_information(name, method):
    rounds, centres = scenario(name, size=80, parties=6, bias=2.0)
    beliefs = method.infer(evidence_of(rounds, centres))
    latent = beliefs.latent
    names = list(beliefs.parties)
    blocks = [([names.index(party) for party in updates], 80) for updates in rounds]
    shared = method != cs.IVAR("vb") and method.noise == "shared"
    expected = naive.noise_log_variances(
        blocks, latent.factors, latent.own, latent.prior_variance, shared
    )
    assert_allclose(log_widths(beliefs), Z90 * np.sqrt(expected), rtol=1e-4)


@pytest.mark.parametrize("unit", [1e-8, 1e-5, 1e-3, 1e3, 1e6])
@pytest.mark.parametrize("rank", [1, 2])
def test_intervals_follow_the_unit(rank, unit):
    _, X = draw(V, OWN, 1.0, 200, np.random.default_rng(0))
    plain = cs.ICOV(posterior="joint", rank=rank).infer(cs.Evidence.of(X))
    scaled = cs.ICOV(posterior="joint", rank=rank).infer(cs.Evidence.of(unit * X))
    assert_allclose(log_widths(scaled), log_widths(plain), rtol=1e-3)


def test_a_level_widens_the_interval():
    _, X = draw(V, OWN, 1.0, 100, np.random.default_rng(0))
    beliefs = cs.IVAR().infer(cs.Evidence.of(X))
    ratio = log_widths(beliefs, 0.99) / log_widths(beliefs, 0.5)
    assert_allclose(ratio, NormalDist().inv_cdf(0.995) / NormalDist().inv_cdf(0.75), rtol=1e-9)
    for level in (0.0, 1.0, 95):
        with pytest.raises(cs.ConsilienceError, match="level"):
            noise_intervals(beliefs, level)


def test_only_a_model_has_intervals():
    X = np.random.default_rng(0).standard_normal((4, 9))
    for method in cs.methods():
        consensus = cs.aggregate(X, method)
        assert (consensus.variance is not None) == (method in ("ivar-vb", "icov-vb"))
        if method in ("ivar-vb", "icov-vb", "pairwise"):
            assert set(consensus.noise_intervals()) == set(consensus.parties)
            assert consensus.known_intervals == consensus.noise_intervals(0.95)
        else:
            with pytest.raises(cs.ConsilienceError):
                consensus.noise_intervals()
            assert consensus.known_intervals == {}


@pytest.mark.parametrize("method", ["pairwise", "ivar-vb", "icov-vb"])
def test_an_interval_that_says_nothing_is_not_shown(method):
    assert cs.aggregate(np.ones((4, 9)), method).known_intervals == {}  # nobody differs
    assert cs.aggregate(np.ones((1, 9)), method).known_intervals == {}  # nobody to compare with
    # A party at the very centre may have any noise below that of the others.
    X = np.vstack([np.zeros(30), np.random.default_rng(0).standard_normal((5, 30))])
    consensus = cs.aggregate(X, method)
    shown = set(consensus.parties) - ({"0"} if method != "pairwise" else set())
    assert set(consensus.known_intervals) == shown


def test_beliefs_without_numbers_have_no_intervals_to_show():
    """Whatever becomes of the algebra, it costs no round."""
    X = np.random.default_rng(0).standard_normal((4, 9))
    consensus = cs.aggregate(X, cs.ICOV(rank=1))
    latent = replace(consensus.beliefs.latent, factors=np.full((4, 1), np.inf))
    broken = replace(consensus, beliefs=replace(consensus.beliefs, latent=latent))
    with np.errstate(all="ignore"):
        with pytest.raises(np.linalg.LinAlgError):
            broken.noise_intervals()
        assert broken.known_intervals == {}


@pytest.mark.parametrize(
    ("parties", "size", "spread"),
    [(3, 100, 2), (4, 100, 2), (5, 1000, 3), (7, 5, 4), (10, 200, 1), (10, 2000, 3), (20, 30, 3)],
)
def test_levels_are_where_pairwise_says_in_nine_of_ten_rounds_and_more(parties, size, spread):
    """Stated: 95 %. By chance 100 rounds of three parties have less than 0.91 once in 500."""
    noise, held = np.geomspace(1, spread, parties), []
    for seed in range(100):
        random = np.random.default_rng(seed)
        X = random.standard_normal(size) + noise[:, None] * random.standard_normal((parties, size))
        lower, upper = noise_intervals(cs.Pairwise().infer(cs.Evidence.of(X))).T
        held.append((lower <= noise) & (noise <= upper))
    assert np.mean(held) > 0.91


def test_what_is_known_of_levels_is_their_fisher_information():
    """By the covariance of contrasts, whatever the truth is: ½ n tr(Σ⁻¹ ∂Σ Σ⁻¹ ∂Σ)."""
    X = np.random.default_rng(0).standard_normal((5, 400)) * np.arange(1, 6)[:, None]
    beliefs = cs.Pairwise(slack=2.0).infer(cs.Evidence.of(X))
    contrasts, levels = np.eye(5)[1:] - np.eye(5)[0], beliefs.noise**2
    precision = np.linalg.inv(contrasts @ np.diag(levels) @ contrasts.T)
    change = [s * np.outer(c, c) for s, c in zip(levels, contrasts.T, strict=True)]
    parts = [precision @ part for part in change]
    information = [[400 / 2 / 2**4 * np.trace(a @ b) for b in parts] for a in parts]
    expected = Z90 * np.sqrt(np.diag(np.linalg.inv(information)))
    assert_allclose(log_widths(beliefs), expected, rtol=1e-6)


def test_a_consensus_names_the_parties_of_its_intervals():
    (updates,), _ = scenario("one round", size=50)
    consensus = cs.aggregate(updates, "ivar-vb")
    assert list(updates) != sorted(updates)
    for party, (lower, upper) in consensus.noise_intervals().items():
        assert_allclose(np.sqrt(lower * upper), consensus.noise[party], rtol=1e-9)


@pytest.mark.parametrize("rank", [0, 1, 7])
def test_the_marginal_is_that_of_the_updates(rank):
    random = np.random.default_rng(0)
    directions, centre = random.standard_normal((6, rank)), random.standard_normal(40)
    _, X = draw(directions, OWN, 1.5, 40, random, centre)
    sigma = 1.5 + directions @ directions.T + np.diag(OWN)
    marginal = Marginal.of(directions, OWN, 1.5)
    assert_allclose(marginal.precision, np.linalg.inv(sigma), rtol=1e-8, atol=1e-12)
    loadings = np.column_stack([np.ones(6), directions])
    assert_allclose(marginal.applied, np.linalg.solve(sigma, loadings), rtol=1e-8, atol=1e-12)
    sample = (X - centre) @ (X - centre).T / 40
    found = np.linalg.eigvalsh(marginal.whitened(cs.Evidence.of(X, centre).blocks[0]))
    expected = np.sort(np.linalg.eigvals(np.linalg.solve(sigma, sample)).real)
    assert_allclose(found, expected, rtol=1e-8)


def covered(method, directions, replicates, size):
    """Return how often 90 % intervals hold the true noise levels, and the truth."""
    random = np.random.default_rng(2021)
    noise = np.sqrt((directions**2).sum(axis=1) + OWN)
    noises = truths = 0.0
    for _ in range(replicates):
        truth, X = draw(directions, OWN, 1.5, size, random)
        beliefs = method.infer(cs.Evidence.of(X))
        lower, upper = noise_intervals(beliefs, 0.90).T
        noises += np.mean((lower < noise) & (noise < upper)) / replicates
        error = np.abs(beliefs.weights[0] @ X - truth)
        truths += np.mean(error < Z90 * np.sqrt(beliefs.variance[0])) / replicates
    return noises, truths


# A variance 30 % too small would cover 83.1 %, one 30 % too large 93.9 %. With 150 replicates of
# six parties the standard error is about 1 point; of the truth's coordinates, 0.1.
@pytest.mark.parametrize(
    ("method", "directions"),
    [
        (cs.IVAR("vb"), np.zeros((6, 0))),
        (cs.ICOV(posterior="joint", rank=1, tolerance=1e-5), 1.5 * V),
    ],
    ids=["ivar-vb", "icov-vb"],
)
def test_stated_intervals_cover_as_often_as_they_say(method, directions):
    noises, truths = covered(method, directions, replicates=150, size=1000)
    assert abs(noises - 0.90) < 0.03
    assert abs(truths - 0.90) < 0.01
