"""The inference on sparse ratings: against plain transcriptions, and on made-up crowds."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import consilience as cs
from consilience.crowd import inference, model, together
from consilience.crowd.model import _State
from consilience.crowd.ratings import Ratings
from consilience.crowd.together import Pairs, groups, starting_levels
from consilience.lab.crowd import crowd

NAMES = {"task": "task", "party": "worker", "value": "score"}


def infer(rows, **options):
    tasks, parties, values = zip(*rows, strict=True)
    table = {"task": tasks, "worker": parties, "score": values}
    return cs.infer(table, **NAMES, **options)


def some_ratings(seed=0, tasks=30, parties=8, observed=0.6):
    rng = np.random.default_rng(seed)
    task, party = np.nonzero(rng.random((tasks, parties)) < observed)
    return Ratings.of(task.tolist(), party.tolist(), rng.normal(size=task.size))


def test_pairs_are_mean_squared_differences_over_common_tasks():
    ratings = some_ratings(observed=0.3)
    pairs = Pairs.of(ratings, ratings.value)
    given = {(t, p): x for t, p, x in zip(ratings.task, ratings.party, ratings.value, strict=True)}
    found = 0
    for a, b, distance, count in zip(
        pairs.first, pairs.second, pairs.distance, pairs.count, strict=True
    ):
        off = [
            (given[t, a] - given[t, b]) ** 2
            for t in range(len(ratings.tasks))
            if (t, a) in given and (t, b) in given
        ]
        assert count == len(off)
        assert distance == pytest.approx(np.mean(off))
        found += 1
    met = {(a, b) for t, a in given for s, b in given if t == s and a < b}
    assert found == len(met)


def dense_posterior(state, task):
    """Return the rows of a task, and mean and covariance of (y, f of each group), all at once."""
    ratings = state.ratings
    rows = np.flatnonzero(ratings.task == task)
    who = ratings.party[rows]
    present = sorted(set(state.group[who]))
    H = np.zeros((rows.size, 1 + len(present)))
    H[:, 0] = state.gain[state.group[who]]
    for column, g in enumerate(present, 1):
        H[:, column] = state.group[who] == g
    prior = np.diag([state.spread, *state.shared[present]])
    noise = np.diag(1 / state.precision[who])
    x = ratings.value[rows] - state.centre - state.bias[who]
    K = prior @ H.T @ np.linalg.inv(H @ prior @ H.T + noise)
    return rows, present, H, K @ x, prior - K @ H @ prior, x


def a_state(bias=True):
    ratings, rng = some_ratings(), np.random.default_rng(1)
    group = np.array([0, 1, 0, 3, 4, 0, 6, 3])
    state = _State(ratings, group, rng.uniform(0.5, 2, 8), rng.normal(size=8) if bias else None)
    state.shared = np.where(state.members > 1, rng.uniform(0.5, 2, 8), 0.0)
    state.gain = rng.normal(1, 0.3, 8) if bias else np.ones(8)
    state.centre, state.spread = 0.3, 1.7
    return state


def test_the_truth_is_that_of_the_joint_gaussian():
    state = a_state()
    state.hear()
    for task in range(state.tasks):
        _, _, _, mean, covariance, _ = dense_posterior(state, task)
        assert state.truth[task] == pytest.approx(mean[0])
        assert state.uncertainty[task] == pytest.approx(covariance[0, 0])


def test_noise_is_judged_by_expected_squares():
    state = a_state(bias=False)
    squares, common, heard = np.zeros(8), np.zeros(8), np.zeros(8)
    for task in range(state.tasks):
        rows, present, H, mean, covariance, x = dense_posterior(state, task)
        expected = (x - H @ mean) ** 2 + np.diag(H @ covariance @ H.T)
        np.add.at(squares, state.ratings.party[rows], expected)
        common[present] += mean[1:] ** 2 + np.diag(covariance)[1:]
        heard[present] += 1
    shape, rate = state.shape, state.rate
    state.hear()
    state.judge()
    np.testing.assert_allclose(state.shared[[0, 3]], common[[0, 3]] / heard[[0, 3]])
    assert not state.shared[[1, 4, 6]].any()
    expected = (shape + state.ratings.per_party / 2) / (rate + squares / 2)
    np.testing.assert_allclose(state.precision, expected)


def test_bias_and_gain_are_found():
    rng = np.random.default_rng(0)
    truth, bias = rng.normal(5, 2, 300), [0, 0, 0, 0, 5.0, -1.0, 0, 0]
    gain = [1, 1, 1, 1, 1, 1, 0.5, 0]
    rows = [
        (t, p, 5 + bias[p] + gain[p] * (y - 5) + 0.5 * rng.normal())
        for t, y in enumerate(truth)
        for p in range(8)
        if rng.random() < 0.6
    ]
    found = infer(rows)
    np.testing.assert_allclose(list(found.bias.values()), bias, atol=0.25)
    np.testing.assert_allclose(list(found.gain.values()), gain, atol=0.1)
    assert "too high: corrected" in found.reasons[4]
    assert "too low" in found.reasons[5]
    assert "hardly follows the tasks" in found.reasons[7]
    assert not {0, 1, 2, 3, 6} & set(found.reasons)


@pytest.mark.parametrize("level", [0.95, 0.8])
def test_intervals_hold_the_truth_as_often_as_they_say(level):
    held = []
    for seed in range(4):
        people = crowd(seed, clique="none", spammers=0, spread=0.5)
        found = cs.infer(people.table, **NAMES, level=level)
        held += [low <= people.truth[task] <= high for task, (low, high) in found.intervals.items()]
    # Four standard errors of 4,000 independent tasks.
    assert np.mean(held) == pytest.approx(level, abs=4 * np.sqrt(level * (1 - level) / 4000))


def test_a_clique_is_found_and_outdone():
    people = crowd(1)
    error = {m: people.error(cs.infer(people.table, **NAMES, method=m).truth)
             for m in ("mean", "median", "ivar")}  # fmt: skip
    found = cs.infer(people.table, **NAMES)
    assert people.error(found.truth) < 0.95 * error["ivar"]
    assert people.error(found.truth) < 0.6 * min(error["mean"], error["median"])
    assert set(map(frozenset, found.groups)) == {people.clique}
    assert all(": one voice" in found.reasons[p] for p in people.clique)
    spammers = {p for p in found.noise if str(p).startswith("s")}
    assert spammers <= set(found.reasons)
    assert not any(str(p).startswith("h") for p in found.reasons)


def test_copies_of_an_honest_worker_count_once():
    people = crowd(1, clique="honest")
    found = cs.infer(people.table, **NAMES)
    assert set(map(frozenset, found.groups)) == {people.clique | {"h0"}}
    alone = cs.infer(people.table, **NAMES, method="affine")
    assert people.error(found.truth) < 0.8 * people.error(alone.truth)


def test_nobody_is_called_a_clique_by_chance():
    accused = 0
    for seed in range(20):
        people = crowd(seed, tasks=100, clique="none")
        accused += len(cs.infer(people.table, **NAMES).groups)
    assert accused <= 3  # one crowd in twenty


def test_a_coarse_scale_makes_no_clique():
    people = crowd(0, clique="none", tasks=300, observed=0.3)
    people.table["score"] = np.clip(np.round(people.table["score"] / 2), 1, 5)
    assert cs.infer(people.table, **NAMES).groups == ()


def test_a_clique_is_found_where_there_is_too_much_to_look_at(monkeypatch):
    people = crowd(0, tasks=400, honest=120, spammers=0)
    column = people.table
    ratings = Ratings.of(column["task"], column["worker"], column["score"])
    monkeypatch.setattr(together, "_MOST_PARTIES", 40)
    monkeypatch.setattr(together, "_MOST_PAIRS", 40_000)
    pairs = Pairs.of(ratings, ratings.value)
    assert 15_000 < np.sum(pairs.count) < 22_000  # of 34,000
    found = groups(pairs, starting_levels(pairs))
    members = np.flatnonzero(np.bincount(found, minlength=130)[found] > 1)
    assert {ratings.parties[j] for j in members} <= people.clique
    assert members.size >= 8


def test_evidence_of_a_cluster_is_that_of_the_joint_gaussian():
    from scipy.stats import multivariate_normal

    ratings, rng = some_ratings(), np.random.default_rng(1)
    pairs, levels = Pairs.of(ratings, ratings.value), rng.uniform(0.5, 2, 8)

    def dense(members):
        """Return how much likelier the differences to the first are if they are a tenth."""
        found = 0.0
        for task in range(len(ratings.tasks)):
            rows = (ratings.task == task) & np.isin(ratings.party, members)
            x, s = ratings.value[rows], levels[ratings.party[rows]]
            if x.size > 1:
                spread = np.diag(s[1:]) + s[0]
                near, far = (
                    multivariate_normal(cov=c * spread).logpdf(x[1:] - x[0]) for c in (0.1, 1.0)
                )
                found += near - far
        return found

    members = np.array([0, 2, 3, 5, 7])
    found, support = together._joint_evidence(pairs.rows[members], levels[members], pairs.least)
    assert found == pytest.approx(dense(members), abs=1e-3)
    without = [dense(np.delete(members, j)) for j in range(5)]
    np.testing.assert_allclose(support, found - np.array(without), atol=1e-3)
    for pair, expected in enumerate(pairs.evidence(levels)):
        two = np.array([pairs.first[pair], pairs.second[pair]])
        found, _ = together._joint_evidence(pairs.rows[two], levels[two], pairs.least)
        assert found == pytest.approx(expected)


def one_rating_each(parties, tasks=40):
    rng = np.random.default_rng(0)
    task, truth = rng.integers(tasks, size=parties), rng.normal(5, 2, tasks)
    return zip(task, range(parties), truth[task] + rng.normal(size=parties), strict=True)


def test_many_with_one_rating_each_are_no_clique_and_soon_inferred():
    found = infer(one_rating_each(2000))
    assert found.groups == ()
    assert found.diagnostics["converged"]
    assert found.diagnostics["rounds"] == 1


def test_the_search_for_groups_is_bounded(monkeypatch):
    rng = np.random.default_rng(0)  # groups that never come again
    monkeypatch.setattr(
        inference, "groups", lambda pairs, _: np.minimum(np.arange(12), rng.integers(12, size=12))
    )
    rows = [(t, p, t + rng.normal()) for t in range(10) for p in range(12)]
    found = infer(rows)
    assert found.diagnostics["rounds"] == inference._MOST_ROUNDS
    assert not found.diagnostics["converged"]


def test_a_cluster_in_which_everybody_is_doubtful_is_soon_given_up(monkeypatch):
    steps = []
    whole = together._joint_evidence

    def one_in_doubt(rows, levels, least):
        steps.append(rows.shape[0])
        _, support = whole(rows, levels, least)
        return 0.0, np.where(np.arange(support.size) > 0, 1e9, 0.0)

    ratings = Ratings.of([p % 50 for p in range(2000)], range(2000), np.zeros(2000))
    pairs = Pairs.of(ratings, ratings.value)
    monkeypatch.setattr(together, "_joint_evidence", one_in_doubt)
    assert not together._believed(pairs, np.arange(2000), np.ones(2000)).size
    assert len(steps) < 300


@pytest.mark.parametrize("shape", [(20, 100, 0.3), (10, 200, 0.5)])
def test_stars_make_no_clique(shape):
    tasks, honest, observed = shape
    for seed in range(3):
        people = crowd(seed, clique="none", tasks=tasks, honest=honest, observed=observed)
        people.table["score"] = np.clip(np.round(people.table["score"] / 2), 1, 5)
        assert cs.infer(people.table, **NAMES).groups == ()


def test_stars_by_many_who_mostly_agree_are_not_taken_for_exact():
    rng = np.random.default_rng(0)
    truth, task = rng.normal(3, 1, 40).clip(1, 5), rng.integers(40, size=4000)
    rated = np.clip(np.round(truth[task] + 0.5 * rng.normal(size=4000)), 1, 5)
    found = infer(zip(task, range(4000), rated, strict=True))
    off = np.array([found.truth[t] - y for t, y in enumerate(truth)])
    assert np.sqrt(np.mean(off**2)) < 0.25
    assert np.median(list(found.noise.values())) > 0.1
    assert not found.groups


def test_truths_that_run_off_are_caught(monkeypatch):
    def run_off(state):
        state.spread *= 100.0
        return 1.0

    judge = _State.judge
    monkeypatch.setattr(
        _State, "judge", lambda state: judge(state) if not state.affine else run_off(state)
    )
    ratings = some_ratings()
    found = model.fit(ratings, np.arange(8), np.ones(8), np.zeros(8))
    assert not found.converged
    assert np.abs(found.truth).max() <= np.abs(ratings.value).max()


def test_who_was_left_out_of_the_comparison_has_still_met_others(monkeypatch):
    monkeypatch.setattr(together, "_MOST_PAIRS", 500)
    found = infer(one_rating_each(200, tasks=4))
    assert np.isfinite(list(found.noise.values())).all()
    assert not any("nobody" in reason or "anybody" in reason for reason in found.reasons.values())


def test_a_clique_is_found_among_stars():
    people = crowd(0, tasks=300, observed=0.3)
    people.table["score"] = np.clip(np.round(people.table["score"] / 2), 1, 5)
    assert set(map(frozenset, cs.infer(people.table, **NAMES).groups)) == {people.clique}


def held_with_gains(draw, seeds=8):
    """Return how often intervals hold the truth, and the truth on the median party's scale."""
    held, scaled = [], []
    for seed in range(seeds):
        rng = np.random.default_rng(seed)
        truth, gain = rng.normal(5, 2, 200), draw(rng)
        task, party = np.nonzero(rng.random((200, gain.size)) < 0.3)
        rated = 5 + gain[party] * (truth[task] - 5) + 0.5 * rng.normal(size=task.size)
        found = infer(zip(task, party, rated, strict=True))
        low, high = np.array(list(found.intervals.values())).T
        y = truth[list(found.truth)]
        held.append(np.mean((low <= y) & (y <= high)))
        y = 5 + np.median(gain) * (y - 5)
        scaled.append(np.mean((low <= y) & (y <= high)))
    return np.mean(held), np.mean(scaled)


def test_intervals_count_in_that_the_median_gain_may_be_off():
    held, _ = held_with_gains(lambda rng: rng.normal(1, 0.3, 20))
    assert held > 0.93


def test_intervals_are_on_the_scale_of_the_median_party():
    held, scaled = held_with_gains(lambda rng: rng.uniform(0.3, 1, 20))
    assert held < 0.7  # the scale of the truth is not in the ratings
    assert scaled > 0.94


rows_of_crowd = st.builds(
    lambda seed: crowd(seed, tasks=20, honest=5, spammers=2, members=3, observed=0.5),
    st.integers(0, 50),
)


@given(rows_of_crowd, st.integers(0, 2**32))
@settings(max_examples=15, deadline=None)
def test_the_order_of_rows_does_not_matter(people, seed):
    # Five ratings of one task by one worker, whose sum depends on their order in the last digit.
    again = {"task": ["new"] * 5, "worker": ["h0"] * 5,
             "score": [427.5, 38.7, 229.3, 443.1, 500.4]}  # fmt: skip
    table = {name: [*column, *again[name]] for name, column in people.table.items()}
    order = np.random.default_rng(seed).permutation(len(table["score"]))
    shuffled = {name: [column[r] for r in order] for name, column in table.items()}
    one, two = (cs.infer(one, **NAMES) for one in (table, shuffled))
    assert one.truth == two.truth
    assert one.intervals == two.intervals
    assert one.noise == two.noise


@given(rows_of_crowd, st.floats(-1e3, 1e3), st.floats(1e-3, 1e3), st.booleans())
@settings(max_examples=15, deadline=None)
def test_shift_and_scale_do_not_matter(people, shift, scale, flip):
    factor = -scale if flip else scale
    moved = {**people.table, "score": shift + factor * people.table["score"]}
    one, two = (cs.infer(table, **NAMES) for table in (people.table, moved))
    expected = shift + factor * np.array(list(one.truth.values()))
    np.testing.assert_allclose(list(two.truth.values()), expected, rtol=1e-6, atol=1e-5 * scale)
    noise = scale * np.array(list(one.noise.values()))
    np.testing.assert_allclose(list(two.noise.values()), noise, rtol=1e-5)
    assert one.groups == two.groups


METHODS = ["pairwise", "affine", "ivar", "median", "mean"]


@pytest.mark.parametrize("method", METHODS)
def test_a_single_rating_is_the_truth_and_nothing_is_known_of_its_noise(method):
    found = infer([("a", "x", 3.0)], method=method)
    assert found.truth == {"a": 3.0}
    assert np.isnan([*found.intervals["a"], found.noise["x"]]).all()
    assert "no task in common" in found.reasons["x"]


@pytest.mark.parametrize("method", METHODS)
def test_parties_that_always_agree_have_no_noise(method):
    found = infer([(t, p, float(t)) for t in range(9) for p in "xyz"], method=method)
    assert list(found.truth.values()) == pytest.approx(range(9), abs=1e-5)
    assert max(found.noise.values()) < 1e-4
    assert found.groups == ()


def test_the_exact_are_believed_where_they_are_the_majority():
    rng = np.random.default_rng(0)
    rows = [(t, p, t + (rng.normal() if p in "yz" else 0.0)) for t in range(20) for p in "uvwxyz"]
    found = infer(rows)
    np.testing.assert_allclose(list(found.truth.values()), list(found.truth), atol=1e-4)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("unit", [1e-200, 1.0, 1e200])
def test_units_may_be_extreme(method, unit):
    rng = np.random.default_rng(0)
    rows = [(t, p, unit * (t + rng.normal())) for t in range(20) for p in "xyz"]
    truth = np.array(list(infer(rows, method=method).truth.values())) / unit
    assert np.sqrt(np.mean((truth - sorted(range(20), key=str)) ** 2)) < 1


@pytest.mark.parametrize("wild", [1e4, 1e9, 1e60])
def test_a_wild_rating_costs_its_party_alone(wild):
    rng = np.random.default_rng(0)
    rows = [(t, p, t + rng.normal()) for t in range(30) for p in "uvwxyz"]
    rows[0] = (0, "u", wild)
    found = infer(rows)
    truth = np.array([found.truth[t] for t in range(30)])
    assert np.sqrt(np.mean((truth - np.arange(30)) ** 2)) < 0.7
    assert "the typical" in found.reasons["u"]
    assert set(found.reasons) == {"u"}


def test_a_rating_beyond_arithmetic_is_named():
    with pytest.raises(cs.TableError, match="party 'x' rates task 'b' 1e\\+300"):
        infer([("a", "x", 1.0), ("a", "y", 2.0), ("b", "x", 1e300), ("b", "y", 3.0)])


def test_repeated_ratings_count_once_by_their_mean():
    once = [("a", "x", 2.0), ("a", "y", 2.5), ("b", "x", 4.5), ("b", "y", 4.0)]
    twice = [("a", "x", 1.0), ("a", "x", 3.0), *once[1:]]
    found = infer(twice)
    assert found.truth == infer(once).truth
    assert found.diagnostics["repeated"] == 1


def test_a_party_in_doubt_does_not_keep_it_going():
    people = crowd(0, tasks=200, observed=0.06)  # the groups of its rounds come and go
    assert cs.infer(people.table, **NAMES).diagnostics["rounds"] < 10


def test_tasks_and_parties_seen_once_are_inferred_too():
    rng = np.random.default_rng(0)
    rows = [(t, p, t + rng.normal()) for t in range(20) for p in "xyz"]
    found = infer([*rows, (0, "once", 0.5), ("single", "x", 7.0), ("apart", "stranger", 3.0)])
    width = {t: high - low for t, (low, high) in found.intervals.items()}
    assert found.truth["single"] == pytest.approx(7.0, abs=1.0)
    assert width["single"] > 1.3 * width[1]
    assert 0 < found.noise["once"] < 3
    assert set(found.reasons) == {"stranger"}


@pytest.mark.parametrize(
    ("options", "expected"),
    [({"method": "mode"}, "choose from pairwise"), ({"level": 1.0}, "between 0 and 1")],
)
def test_bad_options_are_named(options, expected):
    with pytest.raises(cs.ConsilienceError, match=expected):
        infer([("a", "x", 1.0)], **options)
