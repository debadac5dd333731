"""ICOV by maximum likelihood: its likelihood, its gradients, and where its maximum lies."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.optimize import approx_fprime, minimize

import consilience as cs
import naive
from consilience.estimators import icov_mle
from rounds import SCENARIOS, consensuses, draw, evidence_of, never_falls, scenario

KERNELS = pytest.mark.parametrize("kernel", ["linear", "rbf"])


def random_parameters(size, rank, seed=0):
    random = np.random.default_rng(seed)
    V, own = random.standard_normal((size, rank)), random.uniform(0.5, 2.0, size)
    return icov_mle.Parameters(V, 0.7, own)


@KERNELS
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("name", SCENARIOS)
def test_the_likelihood_is_the_sum_over_coordinates(name, shared, kernel):
    rounds, centres = scenario(name)
    evidence = evidence_of(rounds, centres)
    parameters = random_parameters(5, 2)
    if shared:
        parameters = replace(parameters, own=np.full(5, 0.8))
    likelihood = icov_mle.Likelihood(evidence, icov_mle.KERNELS[kernel], 2, shared)
    phi = naive.latent_covariance(parameters.V, 0.7, parameters.own, kernel)
    assert_allclose(parameters.covariance(icov_mle.KERNELS[kernel]), phi, rtol=1e-12)
    expected = naive.log_likelihood(rounds, list(evidence.parties), phi)
    assert_allclose(likelihood.total(likelihood.pack(parameters))[0], expected, rtol=1e-10)


def test_gradients_are_eq_sgd():
    (updates,), _ = scenario("one round")
    parameters = random_parameters(5, 2)
    phi = naive.latent_covariance(parameters.V, 0.7, parameters.own)
    residuals = np.array(list(updates.values())) - naive.icov_truth(updates, phi)
    products = residuals @ residuals.T / residuals.shape[1]
    found = icov_mle.gradients(parameters, icov_mle.KERNELS["linear"], products)[1:]
    expected = naive.sgd_gradients(updates, parameters.V, 0.7, parameters.own)
    for mine, theirs in zip(found, expected, strict=True):
        assert_allclose(mine, theirs, rtol=1e-8)


@KERNELS
def test_gradients_are_slopes(kernel):
    """Of E for a given y, in V, σ_u² and σ_j² themselves: central differences."""
    size, rank = 5, 2
    A = np.random.default_rng(1).standard_normal((size, 9))
    products, parameters = A @ A.T / 9, random_parameters(size, rank)

    def value(theta):
        at = icov_mle.Parameters(theta[:-6].reshape(size, rank), theta[-6], theta[-5:])
        phi = naive.latent_covariance(at.V, at.task_scale, at.own, kernel)
        return -np.linalg.slogdet(phi)[1] - np.trace(np.linalg.inv(phi) @ products)

    theta = np.concatenate([parameters.V.ravel(), [0.7], parameters.own])
    steps = 1e-5 * np.eye(theta.size)
    slopes = np.array([(value(theta + h) - value(theta - h)) / 2e-5 for h in steps])
    found, *gradients = icov_mle.gradients(parameters, icov_mle.KERNELS[kernel], products)
    assert_allclose(found, value(theta), rtol=1e-10)
    assert_allclose(np.concatenate([np.ravel(g) for g in gradients]), slopes, rtol=1e-6, atol=1e-8)


@KERNELS
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("name", SCENARIOS)
def test_the_gradient_of_all_rounds_is_the_slope_of_the_likelihood(name, shared, kernel):
    """With the truth profiled out and the variances in logarithms, as the search sees it."""
    rounds, _ = scenario(name)
    evidence = evidence_of(rounds)
    likelihood = icov_mle.Likelihood(evidence, icov_mle.KERNELS[kernel], 2, shared)
    vector = likelihood.pack(random_parameters(5, 2))
    steps = 1e-5 * np.eye(vector.size)
    slopes = [
        (likelihood.total(vector + h)[0] - likelihood.total(vector - h)[0]) / 2e-5 for h in steps
    ]
    assert_allclose(likelihood.total(vector)[1], slopes, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("seed", range(3))
@KERNELS
@pytest.mark.parametrize("noise", ["shared", "per-party"])
@pytest.mark.parametrize("name", ["one round", "partial"])
def test_the_likelihood_never_falls(name, noise, kernel, seed):
    rounds, centres = scenario(name, size=20, parties=6, bias=1.5, seed=seed)
    method = cs.ICOV("mle", rank=2, noise=noise, kernel=kernel, max_iterations=100)
    beliefs = method.infer(evidence_of(rounds, centres))
    assert never_falls(beliefs.objective)
    if (name, noise, kernel) != ("one round", "shared", "linear"):  # there it starts at the top
        assert beliefs.objective[-1] > beliefs.objective[0] + 1e-3


@pytest.mark.parametrize("size", [1, 3, 40])
def test_the_likelihood_never_falls_where_the_start_is_below_the_floor(size):
    """Fewer coordinates than parties: the closed form has no noise left, the floor has."""
    _, X = draw(np.ones((5, 1)), np.ones(5), 1.0, size, np.random.default_rng(0))
    beliefs = cs.ICOV("mle", rank=3, noise="shared").infer(cs.Evidence.of(X))
    assert never_falls(beliefs.objective)


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("name", ["one round", "many rounds"])
def test_full_participation_and_one_noise_level_give_the_plain_mean_in_closed_form(name, rank):
    rounds, centres = scenario(name, size=30, parties=6, bias=1.5)
    evidence = evidence_of(rounds, centres)
    names = list(evidence.parties)
    beliefs = cs.ICOV("mle", rank=rank, noise="shared").infer(evidence)
    assert_allclose(beliefs.weights[0], np.full(6, 1 / 6), atol=1e-5)
    for found, mean in zip(consensuses(beliefs, rounds), naive.plain_means(rounds), strict=True):
        assert_allclose(found, mean, atol=1e-4)

    R = naive.pair_covariance(rounds, naive.plain_means(rounds), names)
    values, vectors = np.linalg.eigh(R)
    noise = values[:-rank].sum() / (6 - rank)
    V = vectors[:, -rank:] * np.sqrt(values[-rank:] - noise)
    phi = naive.latent_covariance(V, 1.0, np.full(6, noise))
    assert_allclose(beliefs.covariance, phi, atol=1e-4 * values[-1])
    expected = naive.log_likelihood(rounds, names, phi)
    assert_allclose(beliefs.objective[-1], expected, rtol=1e-9)
    assert_allclose(beliefs.objective[0], expected, rtol=1e-9)  # the search starts there


@pytest.mark.parametrize("name", ["one round", "partial"])
def test_its_maximum_is_the_best_of_many_searches(name):
    """Each search climbs the likelihood as defined, from a random place, by finite slopes."""
    rounds, _ = scenario(name, size=25, bias=2.0, seed=4)
    evidence = evidence_of(rounds)
    names = list(evidence.parties)
    blocks = [np.array([updates.get(p, np.full(25, np.nan)) for p in names]) for updates in rounds]

    def negative(theta):
        phi = naive.latent_covariance(theta[:5, None], 1.0, np.full(5, np.exp(theta[5])))
        total = 0.0
        for X in blocks:
            here = np.isfinite(X[:, 0])
            part, x = phi[np.ix_(here, here)], X[here]
            inverse = np.linalg.inv(part)
            truth = np.ones(len(x)) @ inverse @ x / inverse.sum()
            fit = np.sum((x - truth) * (inverse @ (x - truth)))
            total += 0.5 * (25 * np.linalg.slogdet(2 * np.pi * part)[1] + fit)
        return total

    random = np.random.default_rng(0)
    starts = [np.append(2 * random.standard_normal(5), 0.0) for _ in range(6)]
    best = max(-minimize(negative, theta, method="BFGS").fun for theta in starts)
    found = cs.ICOV("mle", rank=1, noise="shared").infer(evidence)
    assert_allclose(found.objective[-1], best, rtol=1e-7)
    value = naive.log_likelihood(rounds, names, found.covariance)
    assert_allclose(found.objective[-1], value, rtol=1e-9)


def test_with_noise_of_each_its_own_the_likelihood_has_no_maximum_but_the_floor():
    (updates,), _ = scenario("one round", size=25, bias=2.0)
    names, own = list(updates), np.ones(5)
    likelihoods = []
    for own[2] in (1e-2, 1e-4, 1e-6):
        phi = naive.latent_covariance(np.array([[1.0], [1.0], [0.0], [1.0], [1.0]]), 1.0, own)
        likelihoods.append(naive.log_likelihood([updates], names, phi))
    assert_allclose(np.diff(likelihoods), 25 / 2 * np.log(1e2), rtol=0.1)
    beliefs = cs.ICOV("mle", rank=1, epsilon=1e-4).infer(evidence_of([updates]))
    assert beliefs.latent.own.min() >= 1e-4 * naive.least_noise([updates]) * (1 - 1e-9)


@pytest.mark.parametrize("optimizer", ["quasi-newton", "sgd"])
@KERNELS
def test_the_answer_follows_the_unit(kernel, optimizer):
    rounds, _ = scenario("partial", size=60, parties=6, bias=2.0)
    method = cs.ICOV(
        "mle", rank=1, noise="shared", kernel=kernel, optimizer=optimizer, max_iterations=60
    )
    plain = method.infer(evidence_of(rounds))
    for unit in (1e-4, 1e3):
        scaled = [{party: unit * x for party, x in updates.items()} for updates in rounds]
        found = method.infer(evidence_of(scaled))
        assert_allclose(found.noise, unit * plain.noise, rtol=1e-4)


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("name", ["one round", "partial"])
def test_stochastic_gradient_takes_the_papers_steps(name, shared):
    """One block of rounds at a time, drawn by its size, in V, log σ_u² and log σ²."""
    rounds, _ = scenario(name)
    evidence = evidence_of(rounds)
    names = list(evidence.parties)
    likelihood = icov_mle.Likelihood(evidence, icov_mle.KERNELS["linear"], 2, shared)
    parameters = random_parameters(5, 2)
    if shared:
        parameters = replace(parameters, own=np.full(5, 0.8))
    steps = 12
    vector, objective, _ = icov_mle.stochastic_gradient(
        likelihood,
        likelihood.pack(parameters),
        floor=np.full(5, 1e-9),
        rate=0.05,
        steps=steps,
        seed=7,
    )
    found = likelihood.unpack(vector)

    groups = {}
    for updates in rounds:
        whole = groups.setdefault(frozenset(updates), {party: [] for party in updates})
        for party, update in updates.items():
            whole[party].extend(update)
    sizes = np.array([naive.size_of(whole) for whole in groups.values()])
    drawn = np.random.default_rng(7).choice(len(sizes), size=steps, p=sizes / sizes.sum())
    V, scale, own = parameters.V.copy(), parameters.task_scale, parameters.own.copy()
    for t, b in enumerate(drawn):
        whole = list(groups.values())[b]
        here = [names.index(party) for party in whole]
        to_V, to_scale, to_own = naive.sgd_gradients(whole, V[here], scale, own[here])
        rate = 0.05 / (1 + t / 100)
        V[here] += rate * to_V
        moves = np.zeros(5)
        moves[here] = rate * to_own * own[here]
        own = own * np.exp(moves.sum() if shared else moves)
        scale = scale * np.exp(rate * to_scale * scale)
    assert_allclose(found.V, V, rtol=1e-8)
    assert_allclose(found.own, own, rtol=1e-8)
    assert_allclose(found.task_scale, scale, rtol=1e-8)
    phi = naive.latent_covariance(V, scale, own)
    assert_allclose(objective[-1], naive.log_likelihood(rounds, names, phi), rtol=1e-8)


def test_stochastic_gradient_ends_near_the_maximum():
    rounds, _ = scenario("partial", size=200, parties=6, bias=2.0)
    evidence = evidence_of(rounds)
    method = cs.ICOV("mle", rank=1, noise="shared", optimizer="sgd", rate=0.1, max_iterations=500)
    climbed = method.infer(evidence).objective
    top = replace(method, optimizer="quasi-newton").infer(evidence).objective[-1]
    assert climbed[-1] <= top + 1e-6
    assert top - climbed[-1] < 0.005 * (top - climbed[0])


def test_stochastic_gradient_says_whether_it_has_converged():
    """Where the likelihood of all rounds is flat, and not because the steps are spent."""
    rounds, _ = scenario("one round", size=200, parties=6, bias=2.0)
    evidence = evidence_of(rounds)
    method = cs.ICOV("mle", rank=1, noise="shared", optimizer="sgd", rate=0.3, max_iterations=1)
    once = method.infer(evidence)
    assert not once.converged
    assert once.iterations == 1
    settled = replace(method, max_iterations=5000).infer(evidence)
    assert settled.converged
    assert settled.iterations < 5000
    top = replace(method, optimizer="quasi-newton", max_iterations=300).infer(evidence)
    assert_allclose(settled.objective[-1], top.objective[-1], rtol=1e-6)


def test_with_full_participation_nothing_is_drawn():
    """All rounds are one block: gradient ascent, whatever the seed draws after the start."""
    rounds, _ = scenario("many rounds", size=30)
    likelihood = icov_mle.Likelihood(evidence_of(rounds), icov_mle.KERNELS["linear"], 1, True)
    start = likelihood.pack(random_parameters(5, 1))
    ends = [
        icov_mle.stochastic_gradient(
            likelihood, start, floor=np.full(5, 1e-9), rate=0.05, steps=20, seed=seed
        )[0]
        for seed in (0, 1)
    ]
    assert_allclose(*ends, rtol=1e-12)


def cauchy(V):
    """A Mercer kernel that the package does not know."""
    return 1 / (1 + ((V[:, None] - V[None]) ** 2).sum(axis=2))


def cauchy_backward(V, k, outer):
    pull = 2 * (outer + outer.T) * k**2
    return pull @ V - pull.sum(axis=1)[:, None] * V


@pytest.mark.parametrize("noise", ["shared", "per-party"])
def test_a_kernel_of_the_users_own(noise):
    rounds, _ = scenario("partial", size=60, parties=6, bias=2.0)
    evidence = evidence_of(rounds)
    method = cs.ICOV("mle", rank=1, noise=noise, kernel=cauchy, max_iterations=50)
    with_slopes = replace(method, kernel=cs.Kernel(cauchy, cauchy_backward))
    found, same = method.infer(evidence), with_slopes.infer(evidence)
    assert never_falls(found.objective)
    assert found.objective[-1] > found.objective[0] + 1
    assert_allclose(found.objective[-1], same.objective[-1], rtol=1e-5)
    expected = naive.log_likelihood(rounds, list(evidence.parties), found.covariance)
    assert_allclose(found.objective[-1], expected, rtol=1e-9)


def test_slopes_by_differences_are_the_slopes():
    random = np.random.default_rng(0)
    V, outer = random.standard_normal((5, 2)), random.standard_normal((5, 5))
    outer = outer + outer.T
    for kernel in (*icov_mle.KERNELS.values(), cs.Kernel(cauchy, cauchy_backward)):
        by_differences = cs.Kernel(kernel.value).slope(V, kernel.of(V), outer)
        assert_allclose(by_differences, kernel.slope(V, kernel.of(V), outer), atol=1e-7)


@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        ("cubic", "'cubic'"),
        (3, "found 3"),
        (lambda V: V, "shape"),
        (lambda V: np.full((len(V), len(V)), np.nan), "NaN"),
        (lambda V: -V @ V.T, "Mercer"),
        (lambda V: np.triu(V @ V.T), "Mercer"),
    ],
)
def test_what_is_no_kernel_is_refused(kernel, message):
    with pytest.raises(cs.ConsilienceError, match=message):
        cs.ICOV("mle", kernel=kernel)


def test_the_gradient_vanishes_at_the_maximum():
    rounds, _ = scenario("partial", size=30, parties=6, bias=2.0)
    evidence = evidence_of(rounds)
    beliefs = cs.ICOV("mle", rank=1, noise="shared").infer(evidence)
    assert beliefs.converged
    names = list(evidence.parties)

    def value(theta):
        phi = naive.latent_covariance(theta[:6, None], 1.0, np.full(6, np.exp(theta[6])))
        return naive.log_likelihood(rounds, names, phi) / (30 * len(rounds))

    theta = np.append(beliefs.latent.factors[:, 0], np.log(beliefs.latent.own[0]))
    assert np.abs(approx_fprime(theta, value, 1e-6)).max() < 1e-4


@KERNELS
def test_auto_rank_stops_where_a_direction_does_not_earn_its_parameters(kernel):
    V = np.array([[2, 0], [2, 0], [-2, 1], [0, 2], [0, 2], [1, -2], [0, 0]], float)
    _, X = draw(V, np.ones(7), 1.0, 150, np.random.default_rng(0))
    evidence = cs.Evidence.of(X)
    method = cs.ICOV("mle", noise="shared", kernel=kernel)
    found = [replace(method, rank=rank).infer(evidence).objective[-1] for rank in range(5)]
    free = [7 * rank - rank * (rank - 1) / 2 for rank in range(5)]
    bic = np.array(found) - 0.5 * np.log(150) * np.array(free)
    stop = int(np.flatnonzero(np.diff(bic) <= 0)[0])
    auto = method.infer(evidence)
    assert_allclose(auto.objective[-1], found[stop], rtol=1e-9)
    if kernel == "linear":
        assert auto.latent.factors.shape == (7, 2)
