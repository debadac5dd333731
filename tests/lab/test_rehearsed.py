"""Adversaries who rehearse: what they send, and what they choose."""

from dataclasses import asdict

import numpy as np
import pytest

from consilience.lab.attacks import Knowledge
from consilience.lab.studies import rehearsed
from consilience.lab.studies.rehearsed import KNOWN, Plan, search

QUIET = Plan(z=2.0, against=0.0, sign=-1, noise=0.0, steady=True, wait=0, every=1)


def sent(plan: Plan, honest: np.ndarray, rounds: int = 1, count: int = 2) -> list[np.ndarray]:
    attack, rng = rehearsed.rehearsed(Knowledge(), **asdict(plan)), np.random.default_rng(1)
    return [attack(honest, count, rng) for _ in range(rounds)]


@pytest.fixture
def honest() -> np.ndarray:
    return np.random.default_rng(0).standard_normal((5, 40)) + 1


def test_a_plan_along_sd_is_alie(honest: np.ndarray) -> None:
    (rows,) = sent(QUIET, honest)
    expected = honest.mean(0) - 2 * honest.std(0)
    assert np.allclose(rows, [expected, expected])


def test_a_plan_against_the_mean_goes_as_far(honest: np.ndarray) -> None:
    (rows,) = sent(Plan(**asdict(QUIET) | {"against": 1.0}), honest)
    mu, length = honest.mean(0), np.linalg.norm(honest.std(0))
    assert np.allclose(rows[0], mu - 2 * length * mu / np.linalg.norm(mu))


def test_noise_is_everybody_s_own_and_lasts_if_steady(honest: np.ndarray) -> None:
    for steady in (True, False):
        plan = Plan(**asdict(QUIET) | {"z": 0.0, "noise": 1.0, "steady": steady})
        first, second = sent(plan, honest, rounds=2)
        assert not np.allclose(first[0], first[1])
        assert np.array_equal(first, second) == steady


def test_a_mixed_plan_mixes_honest_errors(honest: np.ndarray) -> None:
    (rows,) = sent(Plan(**asdict(QUIET) | {"z": 0.0, "noise": 1.0, "own": "mixed"}), honest)
    errors = honest - honest.mean(0)
    assert np.linalg.matrix_rank(np.vstack([errors, rows - honest.mean(0)])) == 4
    assert not np.allclose(rows[0], rows[1])


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_paired_ones_have_opposite_noise(honest: np.ndarray, count: int) -> None:
    plan = Plan(**asdict(QUIET) | {"noise": 1.0, "own": "paired"})
    (rows,) = sent(plan, honest, count=count)
    noise = rows - honest.mean(0) + 2 * honest.std(0)
    for k in range(1, count, 2):
        assert np.allclose(noise[k], -noise[k - 1])
    assert np.linalg.matrix_rank(noise) == (count + 1) // 2


def test_it_waits_and_attacks_now_and_then(honest: np.ndarray) -> None:
    rounds = sent(Plan(**asdict(QUIET) | {"wait": 3, "every": 2}), honest, rounds=8)
    attacked = [not np.allclose(rows[0], honest.mean(0)) for rows in rounds]
    assert attacked == [False, False, False, True, False, True, False, True]


def test_the_first_plans_have_all_kinds_of_errors_of_their_own() -> None:
    plans = []

    def train(runs):
        plans.extend(plan for plan, _ in runs)
        return [0.9] * len(runs)

    search(train, ("noise", "mixed", "paired"))
    first = plans[: len(KNOWN) + 2 + rehearsed.RANDOM]
    owns = [plan.own for plan in first]
    assert min(owns.count(own) for own in ("noise", "mixed", "paired")) > rehearsed.RANDOM // 3
    assert all(plan.noise for plan in first if plan.own != "noise")


def test_the_search_finds_what_harms_most_and_confirms_it_with_other_seeds() -> None:
    asked = []

    def train(runs):
        asked.extend(runs)
        # The first seed flatters the attack: with the others it does half as much.
        return [0.9 - 0.1 * min(plan.z, 3.0) / (1 + (seed > 0)) for plan, seed in runs]

    top = search(train)
    first = [plan for plan, _ in asked[: len(KNOWN) + rehearsed.RANDOM]]
    assert {*KNOWN} < {*first}
    assert max(plan.z for plan in top) >= min(3.0, max(plan.z for plan in first))
    assert len(asked) <= len(first) + rehearsed.GENERATIONS * rehearsed.KEPT * rehearsed.CHANGES
    assert {seed for _, seed in asked} == {0}
    row = rehearsed.confirmed(train, top, [0.9, 0.9, 0.9])
    assert row["of_seeds"] == pytest.approx([-30, -15, -15])
    assert row["below"] == pytest.approx(-20)
    assert Plan(**row["plan"]) in top
