"""ICOV by variational Bayes, in its four variants."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose

import consilience as cs
import naive
from consilience.beliefs import Given
from consilience.estimators import icov_vb
from rounds import SCENARIOS, consensuses, draw, evidence_of, never_falls, scenario

VARIANTS = pytest.mark.parametrize(
    ("joint", "shared"), [(joint, shared) for joint in (True, False) for shared in (True, False)]
)


def random_start(names, rank, *, shared, seed=3):
    random = np.random.default_rng(seed)
    A = random.standard_normal((len(names), rank, rank))
    own = np.full(len(names), 0.9) if shared else random.uniform(0.4, 1.5, len(names))
    mean = random.standard_normal((len(names), rank))
    spread = 0.1 * (A @ A.transpose(0, 2, 1) + np.eye(rank))
    return naive.Hidden(names, mean, spread, own, prior=1.7, scale_u=0.6, scale_v=1.2)


@pytest.mark.parametrize("centred", [False, True])
@pytest.mark.parametrize("name", SCENARIOS)
@VARIANTS
def test_it_is_the_papers_equations(name, centred, joint, shared):
    rounds, centres = scenario(name, centred=centred)
    evidence = evidence_of(rounds, centres)
    start = random_start(list(evidence.parties), 2, shared=shared)
    tasks, state, free_energies = naive.icov_vb(
        rounds, centres, start, iterations=4, joint=joint, shared=shared
    )
    model = icov_vb.Settings(
        2,
        shared,
        joint,
        floor=0.0,
        tolerance=0.0,
        max_iterations=4,
        accelerate=False,
        least_squares=False,
    )
    same = icov_vb.PartyBeliefs(
        start.v, start.psi, start.own, start.prior, start.scale_u, start.scale_v
    )
    beliefs = icov_vb.infer_vb(evidence, model, same)
    found = np.concatenate(consensuses(beliefs, rounds, centres))
    assert_allclose(found, [task.y for task in tasks], rtol=1e-8)
    assert_allclose(beliefs.latent.factors, state.v * np.sqrt(state.scale_u), rtol=1e-8)
    assert_allclose(beliefs.latent.own, state.own, rtol=1e-8)
    assert_allclose(beliefs.latent.prior_variance, state.prior, rtol=1e-8)
    assert_allclose(beliefs.objective, free_energies, rtol=1e-8)
    phi = naive.latent_covariance(state.v, state.scale_u, state.own)
    assert_allclose(beliefs.covariance, phi, rtol=1e-8)
    assert_allclose(beliefs.noise, np.sqrt(np.diag(phi)), rtol=1e-8)
    lambdas = [beliefs.variance[evidence.find(u)] for u in rounds for _ in range(7)]
    assert_allclose(lambdas, [task.lam for task in tasks], rtol=1e-8)

    line_2 = icov_vb.infer_vb(evidence, replace(model, least_squares=True), same)
    assert_allclose(line_2.objective, free_energies, rtol=1e-8)
    assert_allclose(line_2.covariance, phi, rtol=1e-8)
    for updates, value in zip(rounds, consensuses(line_2, rounds), strict=True):
        part = naive.covariance_among(phi, list(evidence.parties), updates)
        assert_allclose(value, naive.icov_truth(updates, part), rtol=1e-8)
        variance = line_2.variance[evidence.find(updates)]
        assert_allclose(variance, 1 / np.linalg.inv(part).sum(), rtol=1e-8)


def test_it_returns_line_2_of_algorithm_2_unless_asked_for_the_posterior_mean():
    """The weights sum to one, whatever the prior makes of the truth; ȳ may be close to nothing."""
    rounds, centres = scenario("partial", size=60, parties=6)
    evidence = evidence_of(rounds, centres)
    names = list(evidence.parties)
    for rank in (0, 1, 2, "auto"):
        beliefs = cs.ICOV(rank=rank).infer(evidence)
        for updates, value in zip(rounds, consensuses(beliefs, rounds), strict=True):
            part = naive.covariance_among(beliefs.covariance, names, updates)
            assert_allclose(value, naive.icov_truth(updates, part), rtol=1e-8)
            assert_allclose(beliefs.weights[evidence.find(updates)].sum(), 1.0, rtol=1e-12)
    random = np.random.default_rng(0)
    X = 0.1 * random.standard_normal(1000) + random.standard_normal((10, 1000))
    by_default = cs.aggregate(X, "icov-vb")
    shrunken = cs.aggregate(X, cs.ICOV(estimate="posterior-mean"))
    assert_allclose(sum(by_default.weights.values()), 1.0, rtol=1e-12)
    assert sum(shrunken.weights.values()) < 0.5
    assert shrunken.covariance == pytest.approx(by_default.covariance)


@pytest.mark.parametrize("shared", [True, False])
def test_a_prior_variance_that_is_given_is_kept(shared):
    rounds, centres = scenario("partial")
    evidence = evidence_of(rounds, centres)
    start = random_start(list(evidence.parties), 2, shared=shared)
    start.prior = 0.3
    _, state, free_energies = naive.icov_vb(
        rounds, centres, start, iterations=4, joint=False, shared=shared, fixed_prior=0.3
    )
    model = icov_vb.Settings(
        2, shared, False, floor=0.0, tolerance=0.0, max_iterations=4, accelerate=False, prior=0.3
    )
    same = icov_vb.PartyBeliefs(start.v, start.psi, start.own, 0.3, start.scale_u, start.scale_v)
    beliefs = icov_vb.infer_vb(evidence, model, same)
    assert beliefs.latent.prior_variance == 0.3
    assert_allclose(beliefs.objective, free_energies, rtol=1e-8)
    assert_allclose(beliefs.latent.own, state.own, rtol=1e-8)
    noise = "shared" if shared else "per-party"
    for rank in (0, 1, 2, "auto"):
        found = cs.ICOV(rank=rank, noise=noise, prior_variance=0.3).infer(evidence)
        assert found.latent.prior_variance == 0.3
        assert never_falls(found.objective)


def test_a_wide_prior_shrinks_nothing():
    """With σ_y² far above what is seen the posterior mean is line 2 with the same parties."""
    _, X = draw(np.ones((6, 1)), np.ones(6), 0.01, 200, np.random.default_rng(0))
    method = cs.ICOV(rank=1, posterior="joint", prior_variance=1e6, estimate="posterior-mean")
    weights = method.infer(cs.Evidence.of(X)).weights[0]
    assert_allclose(weights.sum(), 1.0, atol=1e-5)


def implied_state(beliefs, rounds, centres, *, joint):
    """Beliefs hold v̄σ_u, σ_j² and σ_y². Fix the scale of u at one, which only names the unit of
    v, and find the Ψ_j and σ_v² that go with them by their own equations."""
    v = beliefs.latent.factors
    size, rank = v.shape
    state = naive.Hidden(
        list(beliefs.parties), v, np.zeros((size, rank, rank)), beliefs.latent.own,
        beliefs.latent.prior_variance, 1.0, 1.0,
    )  # fmt: skip
    for _ in range(30):
        tasks = naive.infer_tasks(rounds, centres, state, joint)
        state = replace(state, psi=naive.infer_parties(tasks, state).psi)
        state = replace(state, scale_v=naive.party_scale(state))
    return state


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("name", ["one round", "partial"])
def test_where_it_converges_every_equation_of_the_paper_holds(name, shared):
    rounds, centres = scenario(name, size=60, parties=6, bias=2.0)
    method = cs.ICOV(
        rank=1, noise="shared" if shared else "per-party", posterior="factorized",
        tolerance=1e-13, max_iterations=20_000, estimate="posterior-mean",
    )  # fmt: skip
    beliefs = method.infer(evidence_of(rounds, centres))
    assert beliefs.converged
    state = implied_state(beliefs, rounds, centres, joint=False)
    assert np.abs(state.v).max() > 0.3
    tasks = naive.infer_tasks(rounds, centres, state, joint=False)
    for task in tasks:
        y, u = naive.truth_mean(state, task.x, task.centre, task.u), task.u
        assert_allclose(task.y, y, rtol=1e-6, atol=1e-9)
        assert_allclose(u, naive.feature_mean(state, task.x, task.y), rtol=1e-6, atol=1e-9)
    found = np.concatenate(consensuses(beliefs, rounds, centres))
    assert_allclose(found, [task.y for task in tasks], rtol=1e-6)
    assert_allclose(naive.infer_parties(tasks, state).v, state.v, rtol=1e-6, atol=1e-7)
    assert_allclose(naive.own_noise(tasks, state, shared), state.own, rtol=1e-6)
    assert_allclose(naive.truth_scale(tasks), state.prior, rtol=1e-6)
    assert_allclose(naive.feature_scale(tasks), 1.0, rtol=1e-6)
    assert_allclose(naive.latent_free_energy(tasks, state), beliefs.objective[-1], rtol=1e-9)


@pytest.mark.parametrize("accelerate", [True, False])
@VARIANTS
@pytest.mark.parametrize("name", SCENARIOS)
def test_the_free_energy_never_falls(name, joint, shared, accelerate):
    for seed in range(3):
        rounds, centres = scenario(name, size=30, parties=6, seed=seed)
        method = cs.ICOV(
            rank=2,
            noise="shared" if shared else "per-party",
            posterior="joint" if joint else "factorized",
            accelerate=accelerate,
            max_iterations=200,
        )
        beliefs = method.infer(evidence_of(rounds, centres))
        assert beliefs.iterations > 5
        assert never_falls(beliefs.objective)


@VARIANTS
def test_acceleration_changes_the_way_and_not_the_end(joint, shared):
    rounds, centres = scenario("partial", size=60, parties=6, bias=2.0)
    evidence = evidence_of(rounds, centres)
    method = cs.ICOV(
        rank=1,
        noise="shared" if shared else "per-party",
        posterior="joint" if joint else "factorized",
        tolerance=1e-11,
        max_iterations=20_000,
    )
    fast, slow = method.infer(evidence), replace(method, accelerate=False).infer(evidence)
    assert fast.converged
    assert slow.converged
    assert fast.iterations < slow.iterations / 2
    assert_allclose(fast.objective[-1], slow.objective[-1], rtol=1e-9)
    for quick, plain in zip(fast.weights, slow.weights, strict=True):
        assert_allclose(quick, plain, atol=1e-6)


def test_the_way_does_not_depend_on_the_unit():
    _, X = draw(np.ones((6, 1)), np.linspace(0.5, 2, 6), 3.0, 300, np.random.default_rng(0))
    X[::2] -= 1.5 * np.random.default_rng(1).standard_normal(300)
    method = cs.ICOV(rank=2)
    plain = method.infer(cs.Evidence.of(X))
    for unit in (1e-6, 1e-3, 1e3):
        scaled = method.infer(cs.Evidence.of(unit * X))
        assert abs(scaled.iterations - plain.iterations) <= 2
        assert_allclose(scaled.noise, unit * plain.noise, rtol=1e-4)


def test_the_joint_posterior_is_exact_given_the_parties():
    """With v_j known, q(y, u) is the posterior: λ and ȳ are those of conditioning the Gaussian."""
    random = np.random.default_rng(0)
    names = ["a", "b", "c", "d"]
    V, own = random.standard_normal((4, 2)), random.uniform(0.5, 2, 4)
    _, X = draw(V, own, 1.5, 5, random)
    evidence = cs.Evidence.of(dict(zip(names, X, strict=True)))
    state = icov_vb.PartyBeliefs(V, np.zeros((4, 2, 2)), own, 1.5, 1.0, 1.0)
    task = icov_vb.infer_tasks(evidence.blocks[0], state, np.arange(4), joint=True)
    sigma = 1.5 + V @ V.T + np.diag(own)
    gain = 1.5 * np.ones(4) @ np.linalg.inv(sigma)
    assert_allclose(task.weights[:-1], gain, rtol=1e-10)
    assert_allclose(task.covariance[0, 0], 1.5 - 1.5 * gain.sum(), rtol=1e-10)


def test_rank_zero_with_noise_of_each_its_own_is_ivar():
    rounds, centres = scenario("partial")
    evidence = evidence_of(rounds, centres)
    for estimate in ("gls", "posterior-mean"):
        found = cs.ICOV(rank=0, estimate=estimate).infer(evidence)
        expected = cs.IVAR("vb", estimate=estimate).infer(evidence)
        for mine, theirs in zip(found.weights, expected.weights, strict=True):
            assert_allclose(mine, theirs)


def test_a_rank_zero_model_of_the_latent_code_is_ivar_too():
    """The same free energy, so that ranks can be compared by it."""
    rounds, centres = scenario("partial", size=30)
    evidence = evidence_of(rounds, centres)
    model = icov_vb.Settings(0, False, True, floor=0.0, tolerance=1e-12, max_iterations=5000)
    found = icov_vb.infer_vb(evidence, model)
    expected = cs.IVAR("vb", tolerance=1e-12, max_iterations=5000).infer(evidence)
    assert_allclose(found.objective[-1], expected.objective[-1], rtol=1e-10)
    assert_allclose(found.noise, expected.noise, rtol=1e-6)


def test_a_rank_beyond_the_parties_is_cut():
    rounds, centres = scenario("one round", size=30)
    assert cs.ICOV(rank=50).infer(evidence_of(rounds, centres)).latent.factors.shape == (5, 4)


def test_what_is_known_is_where_the_next_round_starts():
    rounds, centres = scenario("one round", size=60)
    evidence = evidence_of(rounds, centres)
    settled = cs.ICOV(rank=1, tolerance=1e-11, max_iterations=5000).infer(evidence)
    once = cs.ICOV(rank=1, max_iterations=1)
    warm, fresh = once.infer(evidence, Given(known=settled.known)), once.infer(evidence)
    gap = np.abs(warm.weights[0] - settled.weights[0]).max()
    assert gap < 0.2 * np.abs(fresh.weights[0] - settled.weights[0]).max()


@pytest.mark.parametrize(
    "wrong",
    [
        {"inference": "map"}, {"rank": -1}, {"rank": "all"}, {"noise": "none"},
        {"posterior": "exact"}, {"kernel": "rbf"}, {"optimizer": "adam"}, {"estimate": "mode"},
        {"prior_variance": 0.0}, {"prior_variance": float("nan")},
        {"inference": "mle", "prior_variance": 1.0},
        {"inference": "mle", "estimate": "posterior-mean"},
    ],
)  # fmt: skip
def test_unknown_choices_are_refused(wrong):
    with pytest.raises(cs.ConsilienceError):
        cs.ICOV(**wrong)
