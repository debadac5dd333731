"""Where the numbers are far apart: what to do when a step cannot be computed."""

import numpy as np
import pytest

import consilience as cs
from consilience.beliefs import Given, Latent
from consilience.estimators import icov
from consilience.estimators.acceleration import Step, climb
from consilience.estimators.marginal import Marginal
from consilience.evidence import Evidence


def updates(seed=0, size=400):
    random = np.random.default_rng(seed)
    X = random.standard_normal(size) + random.standard_normal((6, size))
    X[4:] += 3 * random.standard_normal(size)
    return X


def towards(goal, state, rate=0.3):
    state = state + rate * (goal - state)
    return Step(state, -float(((state - goal) ** 2).sum()), state)


GOAL = np.array([1.0, 2.0])
HOW = {
    "pack": lambda state: state,
    "unpack": lambda packed, like: packed,
    "tolerance": 1e-9,
    "max_iterations": 200,
}


def test_an_extrapolation_that_fails_is_undone():
    """Every extrapolation is thrown away, so the climb is as long as without them."""
    plain = [np.zeros(2)]

    def step(state):
        if not any(state is known for known in plain):
            raise np.linalg.LinAlgError
        taken = towards(GOAL, state)
        plain.append(taken.state)
        return taken

    found = climb(step, plain[0], **HOW)
    assert found.converged
    np.testing.assert_allclose(found.last.state, GOAL, atol=1e-7)
    assert (
        found.objective == climb(lambda s: towards(GOAL, s), np.zeros(2), **HOW, depth=0).objective
    )


@pytest.mark.parametrize("failure", [np.linalg.LinAlgError, FloatingPointError])
def test_a_climb_ends_before_a_plain_step_that_fails(failure):
    def step(state):
        if state[0] > 0.9:
            raise failure
        return towards(GOAL, state)

    found = climb(step, np.zeros(2), **HOW, depth=0)
    assert not found.converged
    assert found.last.state[0] <= 0.9  # where a step can still be taken
    assert step(found.last.state).state[0] > 0.9
    assert list(found.objective) == sorted(found.objective)


def test_a_climb_ends_before_a_plain_step_that_falls():
    """In exact arithmetic there is none: what lowers the objective is rounding at large."""

    def step(state):
        taken = towards(GOAL, state)
        fallen = taken.objective - 100 * float(state[0] > 0.9)
        return Step(taken.state, fallen, taken.watched)

    for depth in (0, 6):
        found = climb(step, np.zeros(2), **HOW, depth=depth)
        assert not found.converged
        assert list(found.objective) == sorted(found.objective)
        assert found.last.state[0] <= 0.9


def test_a_fall_within_rounding_does_not_end_a_climb():
    """Near the top all differences are rounding."""
    count = iter(range(1000))

    def step(state):
        taken = towards(GOAL, state)
        jitter = 1e-9 * (-1) ** next(count)
        return Step(taken.state, 1e3 + jitter + 1e-12 * taken.objective, taken.watched)

    assert climb(step, np.zeros(2), **HOW, depth=0).converged


def test_overflow_is_a_failed_step():
    def step(state):
        if state[0] > 0.9:
            np.exp(np.array([1e6]))
        return towards(GOAL, state)

    assert not climb(step, np.zeros(2), **HOW, depth=0).converged


def test_a_climb_that_cannot_start():
    def step(state):
        raise np.linalg.LinAlgError

    with pytest.raises(np.linalg.LinAlgError, match="too far apart"):
        climb(step, np.zeros(2), **HOW)


def test_a_rank_that_cannot_be_fitted_is_no_improvement(monkeypatch):
    evidence = Evidence.of(updates())
    assert cs.ICOV().infer(evidence).latent.factors.shape[1] > 0

    def fail(*args):
        raise np.linalg.LinAlgError

    monkeypatch.setattr(icov.icov_vb, "infer_vb", fail)
    assert cs.ICOV().infer(evidence).latent.factors.shape == (6, 0)


@pytest.mark.parametrize("rank", [0, 1, 2])
@pytest.mark.parametrize("shift", [0.0, 3.0])
def test_whitening_equals_a_naive_one(rank, shift):
    """The sample covariance about the centre has, in units of the fitted one, the eigenvalues of
    Σ⁻¹S; and the inverse root is one."""
    X = updates() + shift
    (block,) = Evidence.of(X).blocks
    random = np.random.default_rng(1)
    latent = Latent(random.standard_normal((6, rank)), random.uniform(1, 2, 6), prior_variance=1.7)
    marginal = Marginal.of(latent.factors, latent.own, latent.prior_variance)
    found = marginal.whitened(block)
    sigma = latent.covariance + latent.prior_variance
    expected = np.linalg.eigvals(np.linalg.solve(sigma, X @ X.T / X.shape[1]))
    np.testing.assert_allclose(np.linalg.eigvalsh(found), np.sort(expected.real), rtol=1e-9)


@pytest.mark.parametrize("noise", ["per-party", "shared"])
def test_likelihood_does_not_fall_from_a_start_below_the_floor(noise):
    """What was learned with a lower floor was likelier than anything above this one."""
    evidence = Evidence.of(updates())
    start = cs.ICOV("mle", rank=2, noise=noise, epsilon=1e-9).infer(evidence).known
    method = cs.ICOV("mle", rank=2, noise=noise, epsilon=0.1)
    objective = np.array(method.infer(evidence, Given(known=start)).objective)
    assert (np.diff(objective) >= -1e-9 * np.abs(objective[1:])).all()


@pytest.mark.parametrize("method", [cs.ICOV("mle", 2, "per-party"), "icov-mle"], ids=str)
@pytest.mark.parametrize("unit", [1e-12, 1e12])
def test_maximum_likelihood_has_no_unit(method, unit):
    X = updates()
    expected, found = cs.aggregate(X, method), cs.aggregate(unit * X, method)
    assert found.weights == pytest.approx(expected.weights, abs=1e-3)


@pytest.mark.parametrize("inference", ["vb", "mle"])
def test_a_rank_the_numbers_do_not_allow_gives_way_to_a_lower_one(inference, monkeypatch):
    method = cs.ICOV(inference, rank=3)
    name = "_variational" if inference == "vb" else "_maximum_likelihood"
    fit = getattr(cs.ICOV, name)

    def stubborn(self, evidence, rank, start):
        if rank > 1:
            raise np.linalg.LinAlgError("singular")
        return fit(self, evidence, rank, start)

    monkeypatch.setattr(cs.ICOV, name, stubborn)
    beliefs = method.infer(Evidence.of(updates()))
    assert beliefs.latent.factors.shape[1] == 1
