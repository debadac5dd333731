import re

import numpy as np
import pytest
from scipy import stats

import consilience as cs
from consilience.lab.attacks import (
    AIMED,
    BYZFL,
    MALFORMED,
    NEEDS_AGGREGATOR,
    NEEDS_TRAINING,
    SUITE,
    Knowledge,
    attacks,
    make,
    register,
)
from consilience.lab.attacks.backdoors import TRIGGERS
from consilience.lab.attacks.crafted import moments
from consilience.lab.attacks.optimised import CALLS, maximise

RNG = np.random.default_rng


def honest_updates(seed=0, parties=7, size=12, dtype=np.float64):
    """Parties that agree on something, and differ more in some coordinates than in others."""
    rng = RNG(seed)
    spread = np.linspace(0.2, 2, size)
    return (1 + rng.standard_normal(size) + spread * rng.standard_normal((parties, size))).astype(
        dtype
    )


def everything(size=12):
    """Knowledge enough for any attack."""

    def train(poison, count):
        for j in range(count):
            poison(np.zeros((3, 2), np.float32), np.zeros(3, np.int64), RNG(j))
        return np.ones((count, size), np.float32)

    return Knowledge(train=train, aggregate=lambda updates: updates.mean(0), classes=10)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_moments_are_mean_and_spread(dtype):
    honest = honest_updates(dtype=dtype)
    mu, sd = moments(honest)
    np.testing.assert_allclose(mu, honest.astype(float).mean(0), rtol=1e-14)
    np.testing.assert_allclose(sd, honest.astype(float).std(0), rtol=1e-13)


def test_the_paper_attacks_are_there():
    assert {"gaussian", "random_local"} <= set(attacks())
    with pytest.raises(ValueError, match=r"no attack is called 'nice'; there are: .*gaussian"):
        make("nice")


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_gaussian_is_standard_normal_and_ignores_the_honest(dtype):
    honest = 100 * np.ones((3, 20_000), dtype)
    sent = make("gaussian")(honest, 4, RNG(0))
    assert sent.shape == (4, 20_000)
    assert sent.dtype == dtype
    assert stats.kstest(sent.ravel(), "norm").pvalue > 1e-3
    assert np.abs(np.corrcoef(sent) - np.eye(4)).max() < 0.05  # independent of one another
    assert np.array_equal(sent, make("gaussian")(honest, 4, RNG(0)))
    assert not np.array_equal(sent, make("gaussian")(honest, 4, RNG(1)))
    assert np.allclose(make("gaussian", scale=3.0)(honest, 4, RNG(0)), 3 * sent)


def spy(inputs, targets, seen):
    """A `train` that records the poisoned data it is given."""

    def train(poison, count):
        seen.extend(poison(inputs.copy(), targets.copy(), RNG(j)) for j in range(count))
        return np.full((count, 5), 7.0)

    return train


@pytest.mark.parametrize("replace", ["labels", "inputs", "both"])
def test_random_local_trains_on_random_data(replace):
    inputs = 3 + 2 * RNG(8).standard_normal((2000, 10)).astype(np.float32)
    targets = np.full(2000, 9)
    seen = []
    knowledge = Knowledge(train=spy(inputs, targets, seen), classes=10)
    sent = make("random_local", knowledge, replace=replace)(np.zeros((4, 5)), 2, RNG(0))
    assert np.array_equal(sent, np.full((2, 5), 7.0))
    assert len(seen) == 2
    for new_inputs, new_targets in seen:
        assert (new_inputs.dtype, new_targets.dtype) == (np.float32, targets.dtype)
        if replace == "inputs":
            assert np.array_equal(new_targets, targets)
        else:  # uniform over the classes, though the adversary holds one class only
            assert stats.chisquare(np.bincount(new_targets, minlength=10)).pvalue > 1e-3
        if replace == "labels":
            assert np.array_equal(new_inputs, inputs)
        else:
            assert np.abs(np.corrcoef(new_inputs.ravel(), inputs.ravel())[0, 1]) < 0.05
            assert new_inputs.mean() == pytest.approx(3, abs=0.1)
            assert new_inputs.std() == pytest.approx(2, abs=0.1)
    assert not all(np.array_equal(a, b) for a, b in zip(*seen, strict=True))


def test_random_local_on_text_and_on_numbers():
    codes, seen = np.zeros((300, 8), np.int64), []
    make("random_local", Knowledge(train=spy(codes, codes, seen), classes=5), replace="both")(
        np.zeros((2, 5)), 1, RNG(0)
    )
    assert all(set(np.unique(part)) == set(range(5)) for part in seen[0])
    numbers = np.full(4000, 50.0, np.float32)
    seen.clear()
    make("random_local", Knowledge(train=spy(numbers[:, None], numbers, seen)))(
        np.zeros((2, 5)), 1, RNG(0)
    )
    assert seen[0][1].dtype == np.float32
    assert stats.kstest(seen[0][1], "norm").pvalue > 1e-3


def test_random_local_says_what_it_lacks():
    with pytest.raises(ValueError, match="give Knowledge a `train` function"):
        make("random_local")
    labels = np.zeros(3, int)
    knowledge = Knowledge(train=spy(labels, labels, []))
    with pytest.raises(ValueError, match="give Knowledge their number"):
        make("random_local", knowledge)(np.zeros((2, 5)), 1, RNG(0))
    with pytest.raises(ValueError, match="not 'everything'"):
        make("random_local", knowledge, replace="everything")


def test_an_attack_that_knows_the_aggregator_fits(monkeypatch):
    monkeypatch.setattr("consilience.lab.attacks.registry._ATTACKS", {})

    @register
    def worst(knowledge, factors):
        def attack(honest, count, rng):
            mean = honest.mean(0)

            def harm(factor):
                updates = np.vstack([honest, np.tile(-factor * mean, (count, 1))])
                return np.linalg.norm(knowledge.aggregate(updates) - mean)

            return np.tile(-max(factors, key=harm) * mean, (count, 1))

        return attack

    honest = RNG(0).standard_normal((5, 9)) + 1
    knowledge = Knowledge(aggregate=lambda updates: updates.mean(0))
    sent = make("worst", knowledge, factors=[0.1, 10.0, 1.0])(honest, 2, RNG(1))
    assert np.allclose(sent, -10 * honest.mean(0))


def test_label_flip_turns_the_labels_round():
    inputs, targets, seen = RNG(0).random((5, 2)), np.array([0, 1, 2, 9, 4]), []
    knowledge = Knowledge(train=spy(inputs, targets, seen), classes=10)
    sent = make("label_flip", knowledge)(np.zeros((4, 5)), 2, RNG(0))
    assert np.array_equal(sent, np.full((2, 5), 7.0))
    assert len(seen) == 2
    for new_inputs, new_targets in seen:
        assert np.array_equal(new_inputs, inputs)
        assert new_targets.tolist() == [9, 8, 7, 0, 5]
        assert new_targets.dtype == targets.dtype
    with pytest.raises(ValueError, match="give Knowledge a `train` function"):
        make("label_flip")
    with pytest.raises(ValueError, match="give Knowledge their number"):
        make("label_flip", Knowledge(train=spy(inputs, targets, [])))


def test_random_local_with_real_training():
    torch = pytest.importorskip("torch")
    from consilience.lab.models import logistic_regression
    from consilience.lab.training import Trainers, shard

    rng, model = RNG(0), logistic_regression(6, 3)
    centres = 3 * rng.standard_normal((3, 6))
    data = {}
    for name in ("honest0", "honest1", "bad0", "bad1"):
        labels = rng.integers(3, size=300)
        data[name] = shard(centres[labels] + rng.standard_normal((300, 6)), labels)
    parties = Trainers(model, data, seed=0, weight_decay=0.01)
    bad = ["bad0", "bad1"]

    def train(poison, count):
        return parties.local_parameters(bad[:count], poison).numpy()

    honest = parties.local_parameters(["honest0", "honest1"])
    sent = make("random_local", Knowledge(train=train, classes=3))(honest.numpy(), 2, rng)
    assert sent.shape == (2, model.size)
    test = data["honest1"]
    assert model.accuracy(honest[0], *test) > 0.9
    # Random labels leave next to nothing to learn: the parameters stay close to zero.
    assert np.linalg.norm(sent, axis=1).max() < 0.5 * honest.norm(dim=1).min().item()
    assert not torch.equal(torch.from_numpy(sent[0]), torch.from_numpy(sent[1]))


def test_the_suite_is_complete_and_its_sets_are_of_it():
    foreign = {name for name, _ in BYZFL.values()}
    assert {name for name, _ in SUITE.values()} == set(attacks()) - set(TRIGGERS) - foreign
    assert len({(name, str(settings)) for name, settings in SUITE.values()}) == len(SUITE) == 34
    assert set(SUITE) > NEEDS_TRAINING | NEEDS_AGGREGATOR | MALFORMED
    assert len({*SUITE, *AIMED, *BYZFL}) == len(SUITE) + len(AIMED) + len(BYZFL)
    knowledge = everything()
    for label, (name, settings) in SUITE.items():
        known = Knowledge(
            train=knowledge.train if label in NEEDS_TRAINING else None,
            aggregate=knowledge.aggregate if label in NEEDS_AGGREGATOR else None,
            classes=10,
        )
        assert len(make(name, known, **settings)(honest_updates(), 3, RNG(0))) == 3
        if label in NEEDS_TRAINING | NEEDS_AGGREGATOR:
            with pytest.raises(ValueError, match="give Knowledge a"):
                make(name, Knowledge(classes=10), **settings)


@pytest.mark.parametrize("label", [*SUITE, *AIMED, *BYZFL])
@pytest.mark.parametrize("parties", [0, 1, 2, 7])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_any_honest_parties_and_no_adversaries(label, parties, dtype):
    name, settings = {**SUITE, **AIMED, **BYZFL}[label]
    honest = honest_updates(parties=parties, dtype=dtype)
    before = honest.copy()
    attack = make(name, everything(), **settings)
    for count in (1, 3, 9):  # also more adversaries than honest parties
        sent = attack(honest, count, RNG(1))
        assert len(sent) == count
        if label not in NEEDS_TRAINING | {"missing-tensor"}:
            assert all(row.dtype == dtype for row in sent)
        if label not in MALFORMED:
            assert sent.shape == (count, 12)
            assert np.isfinite(sent).all()
            again = make(name, everything(), **settings)(honest, count, RNG(1))
            assert np.array_equal(sent, again)
    none = attack(honest, 0, RNG(1))
    assert (none.shape, none.dtype) == ((0, 12), dtype)
    assert np.array_equal(honest, before)


def test_no_honest_update_is_shared_with_an_adversary():
    honest = honest_updates()
    for name in ("mimic", "sign_flip"):
        sent = make(name)(honest, 2, RNG(0))
        sent[:] = 99  # neither a view of the honest update nor read-only
        assert not (honest == 99).any()


def test_those_made_from_the_mean_and_the_spread():
    honest = honest_updates()
    mu = [sum(column) / len(column) for column in honest.T]
    sd = [(sum((x - m) ** 2 for x in c) / len(c)) ** 0.5 for m, c in zip(mu, honest.T, strict=True)]
    mu, sd = np.array(mu), np.array(sd)

    def same(name, expected, **settings):
        sent = make(name, **settings)(honest, 3, RNG(0))
        assert np.allclose(sent, np.tile(expected, (3, 1)), rtol=1e-12, atol=1e-12)

    same("sign_flip", -mu)
    same("ipm", -0.1 * mu, tau=0.1)
    same("ipm", -100 * mu, tau=100)
    same("alie", mu - 1.5 * sd, z=1.5)
    same("alie", mu + 1.5 * sd, z=-1.5)
    same("alie", mu + 0.3 * sd, z=0.3, sign=-1)
    # n = 10, f = 3: s = 3 honest supporters are needed, so z = quantile(7/10).
    same("alie", mu - stats.norm.ppf(0.7) * sd)
    same("alie", mu + stats.norm.ppf(0.7) * sd, sign=-1)
    same("mimic", honest[0])
    same("mimic", honest[4], target=4)
    with pytest.raises(ValueError, match="sign is 1 or -1"):
        make("alie", sign=0)


@pytest.mark.parametrize(
    ("parties", "count", "quantile"),
    [
        (8, 3, 8 / 11),  # n = 11, s = 5 + 1 - 3
        (5, 1, 3 / 6),  # n = 6, s = 3: one of an even number cannot move at all
        (7, 7, 13 / 14),  # s = 1
        (5, 5, 9 / 10),
        (5, 10, 14 / 15),  # s = -2: the formula gives a quantile beyond 1
    ],
)
def test_alie_z_by_the_formula(parties, count, quantile):
    honest = honest_updates(parties=parties)
    sent = make("alie")(honest, count, RNG(0))
    z = (honest.mean(0) - sent) / honest.std(0)
    assert np.allclose(z, stats.norm.ppf(quantile), atol=1e-12)


DISGUISES = ((True, 1), (True, 2), (False, 1), (False, 2))  # steady, round


def test_a_steady_disguise_is_the_same_in_every_round():
    honest = np.random.default_rng(0).standard_normal((10, 500))
    sent = [make("alie", z=1.0, noise=1.0, steady=s)(honest, 3, RNG(r)) for s, r in DISGUISES]
    assert (sent[0] == sent[1]).all()
    assert (sent[2] != sent[3]).mean() > 0.99
    assert abs(np.corrcoef(sent[0])[0, 1] - np.corrcoef(sent[2])[0, 1]) < 0.2


def test_noise_is_each_adversarys_own_and_in_proportion_to_the_spread():
    honest = honest_updates(size=20_000)
    sd = honest.std(0)
    plain = make("alie", z=0.7)(honest, 4, RNG(0))
    drawn = (make("alie", z=0.7, noise=0.5)(honest, 4, RNG(0)) - plain) / sd
    assert stats.kstest(drawn.ravel() / 0.5, "norm").pvalue > 1e-3
    assert np.abs(np.corrcoef(drawn) - np.eye(4)).max() < 0.05
    copies = make("sybil")(honest, 4, RNG(0))
    drawn = (make("sybil", noise=0.1)(honest, 4, RNG(0)) - copies) / sd
    assert stats.kstest(drawn.ravel() / 0.1, "norm").pvalue > 1e-3
    assert np.abs(np.corrcoef(drawn) - np.eye(4)).max() < 0.05


def test_sybils_are_one_vector_an_honest_distance_away():
    honest = honest_updates()
    mu = honest.mean(0)
    distance = np.sqrt(np.mean([np.sum((update - mu) ** 2) for update in honest]))
    sent = make("sybil")(honest, 4, RNG(0))
    assert (sent == sent[0]).all()
    assert np.linalg.norm(sent[0] - mu) == pytest.approx(distance)
    far = make("sybil", length=10.0)(honest, 4, RNG(0))
    assert np.allclose(far - mu, 10 * (sent - mu))
    assert not np.allclose(sent, make("sybil")(honest, 4, RNG(1)))
    directions = [make("sybil")(honest, 1, RNG(seed))[0] - mu for seed in range(400)]
    assert np.linalg.norm(np.mean(directions, 0)) < 0.1 * distance  # no direction is preferred
    alone = make("sybil")(honest[:1], 2, RNG(0))
    assert np.linalg.norm(alone[0] - honest[0]) == pytest.approx(np.linalg.norm(honest[0]))


def worst_distance(point, honest):
    return max(np.linalg.norm(point - update) for update in honest)


def sum_of_squares(point, honest):
    return sum(np.linalg.norm(point - update) ** 2 for update in honest)


@pytest.mark.parametrize("name", ["min_max", "min_sum"])
@pytest.mark.parametrize("direction", ["sd", "unit", "sign"])
@pytest.mark.parametrize("seed", range(5))
def test_min_max_and_min_sum_go_just_as_far_as_they_may(name, direction, seed):
    honest = honest_updates(seed, parties=3 + seed)
    mu = honest.mean(0)
    d = {"sd": honest.std(0), "unit": mu / np.linalg.norm(mu), "sign": np.sign(mu)}[direction]
    measure = worst_distance if name == "min_max" else sum_of_squares
    allowed = max(measure(update, honest) for update in honest)
    sent = make(name, direction=direction)(honest, 2, RNG(0))
    assert np.array_equal(sent[0], sent[1])
    gamma = (mu - sent[0]) @ d / (d @ d)
    assert gamma > 0
    assert np.allclose(mu - gamma * d, sent[0])
    assert measure(sent[0], honest) == pytest.approx(allowed, rel=1e-9)
    assert measure(mu - 1.01 * gamma * d, honest) > allowed * (1 + 1e-4)
    low, high = 0.0, 1e3  # the original's search, by halving
    for _ in range(60):
        middle = (low + high) / 2
        fits = measure(mu - middle * d, honest) <= allowed
        low, high = (middle, high) if fits else (low, middle)
    assert gamma == pytest.approx(low, rel=1e-9)


def test_min_max_and_min_sum_take_the_spread_unless_told():
    honest = honest_updates()
    for name in ("min_max", "min_sum"):
        default, sd, sign = (
            make(name, **settings)(honest, 1, RNG(0))
            for settings in ({}, {"direction": "sd"}, {"direction": "sign"})
        )
        assert np.array_equal(default, sd)
        assert not np.allclose(default, sign)
        with pytest.raises(ValueError, match="not 'down'"):
            make(name, direction="down")


def within_reach(updates):
    """The mean of those within 1.6 typical distances of the median: notices who goes too far."""
    distances = np.linalg.norm(updates - np.median(updates, 0), axis=1)
    return updates[distances <= 1.6 * np.median(distances)].mean(0)


AGGREGATORS = {
    "mean": lambda updates: updates.mean(0),
    "within reach": within_reach,
    **{
        method: lambda updates, method=method: cs.aggregate(updates, method).value
        for method in ("geometric-median", "ivar-vb")
    },
}


@pytest.mark.parametrize("aggregator", AGGREGATORS)
@pytest.mark.parametrize("name", ["optimised_ipm", "optimised_alie"])
@pytest.mark.parametrize("seed", range(2))
def test_optimised_attacks_do_more_than_plain_ones(name, aggregator, seed):
    honest = honest_updates(seed, parties=10, size=30)
    mu, sd = honest.mean(0), honest.std(0)
    asked = []

    def aggregate(updates):
        asked.append(updates)
        return AGGREGATORS[aggregator](updates)

    def displacement(size):
        row = -size * mu if name == "optimised_ipm" else mu - size * sd
        updates = np.vstack([honest, np.tile(row, (4, 1))])
        return np.linalg.norm(AGGREGATORS[aggregator](updates) - mu)

    sent = make(name, Knowledge(aggregate=aggregate))(honest, 4, RNG(0))
    assert len(asked) <= CALLS == 20
    assert all(np.array_equal(updates[:10], honest) for updates in asked)
    assert all(updates.shape == (14, 30) for updates in asked)
    assert (sent == sent[0]).all()
    if name == "optimised_ipm":
        size, few = -(sent[0] @ mu) / (mu @ mu), [0.1, 0.5, 1, 2, 10]
        many = np.geomspace(0.1, 100, 50)
        assert np.allclose(sent[0], -size * mu)
    else:
        size, few = (mu - sent[0]) @ sd / (sd @ sd), [-1.5, -0.5, 0.5, 1, 1.5]
        many = np.linspace(-10, 10, 50)
        assert np.allclose(sent[0], mu - size * sd)
    found = np.linalg.norm(AGGREGATORS[aggregator](np.vstack([honest, sent])) - mu)
    assert found > max(map(displacement, few))
    assert found > 0.9 * max(map(displacement, many))


@pytest.mark.parametrize("method", ["mean", "coordinate-median", "krum", "icov-vb"])
def test_optimised_attacks_never_do_less_than_those_of_the_suite(method):
    honest = honest_updates(3, parties=8, size=30)

    def aggregate(updates):
        return cs.aggregate(updates, method).value

    def displacement(name, settings):
        sent = make(name, Knowledge(aggregate=aggregate), **settings)(honest, 3, RNG(0))
        return np.linalg.norm(aggregate(np.vstack([honest, sent])) - honest.mean(0))

    for plain in ("ipm", "alie"):
        fixed = [
            displacement(name, settings)
            for name, settings in SUITE.values()
            if name == plain and ("tau" in settings or "z" in settings) and "noise" not in settings
        ]
        assert len(fixed) >= 5
        assert displacement(f"optimised_{plain}", {}) >= max(fixed) * (1 - 1e-12)


def test_optimised_alie_finds_the_sign():
    honest = honest_updates()
    mu, sd = honest.mean(0), honest.std(0)
    for sign in (1, -1):

        def one_sided(updates, sign=sign):  # moved only by those on one side
            return mu + np.minimum(sign * (updates[-1] - mu), 0)

        sent = make("optimised_alie", Knowledge(aggregate=one_sided))(honest, 1, RNG(0))
        assert (sign * (mu - sent[0]) / sd).min() == pytest.approx(10)


def test_an_aggregator_that_breaks_is_broken():
    honest = honest_updates()

    def brittle(updates):
        return np.full(12, np.nan) if np.abs(updates).max() > 15 else updates.mean(0)

    for name in ("optimised_ipm", "optimised_alie"):
        sent = make(name, Knowledge(aggregate=brittle))(honest, 2, RNG(0))
        assert np.isnan(brittle(np.vstack([honest, sent]))).all()


def test_the_search_finds_a_peak_and_the_edge_of_a_cliff():
    grid = [0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0]
    calls = []

    def counted(function):
        calls.clear()
        return lambda x: calls.append(x) or function(x)

    assert maximise(counted(lambda x: -((x - 3.3) ** 2)), grid) == pytest.approx(3.3, abs=0.01)
    assert len(calls) == CALLS
    assert maximise(counted(lambda x: x if x < 3.3 else 0), grid) == pytest.approx(3.3, rel=0.02)
    assert maximise(counted(lambda x: x), grid) == 10.0
    assert maximise(counted(lambda x: -x), grid) == 0.1
    assert min(calls) >= 0.1


@pytest.mark.parametrize("label", sorted(MALFORMED))
def test_the_malformed_are_rejected_by_name_and_the_round_goes_on(label):
    honest = honest_updates()
    name, settings = SUITE[label]
    reason = {
        "inf": "the update holds inf",
        "nan": "the update holds nan",
        "wrong-shape": r"the update has shape \(13,\), expected \(12,\)",
        "missing-tensor": "expected one tensor, found an empty container",
    }[label]
    sent = make(name, **settings)(honest, 3, RNG(0))
    updates = {f"good{j}": update for j, update in enumerate(honest)}
    updates |= {f"bad{j}": update for j, update in enumerate(sent)}
    consensus = cs.aggregate(updates, method="mean")
    assert set(consensus.rejected) == {"bad0", "bad1", "bad2"}
    assert all(re.match(reason, found) for found in consensus.rejected.values())
    assert np.allclose(consensus.value, honest.mean(0))


def test_those_who_know_nothing():
    honest = honest_updates(dtype=np.float32)
    assert np.array_equal(make("zero")(honest, 3, RNG(0)), np.zeros((3, 12)))
    assert np.isposinf(make("inf")(honest, 3, RNG(0))).all()
    assert np.isnan(make("nan")(honest, 3, RNG(0))).all()
    drawn = make("huge")(honest, 3, RNG(0)) / np.float32(1e30)
    assert 0.5 < drawn.std() < 2
    assert np.abs(make("huge")(honest.astype(np.float16), 3, RNG(0))).min() == 65504
    assert [len(row) for row in make("wrong_shape", extra=-2)(honest, 3, RNG(0))] == [10, 10, 10]
    assert make("missing_tensor")(honest, 3, RNG(0)) == [{}, {}, {}]
    with pytest.raises(ValueError, match="not 0"):
        make("wrong_shape", extra=0)


@pytest.mark.parametrize("label", ["wrong-shape", "missing-tensor"])
def test_a_malformed_majority_is_rejected_where_the_server_gives_its_model(label):
    honest = honest_updates(parties=3)
    updates = [*honest, *make(SUITE[label][0])(honest, 5, RNG(0))]
    consensus = cs.aggregate(updates, method="mean", center=np.zeros(12))
    assert sorted(consensus.rejected) == ["3", "4", "5", "6", "7"]
    assert np.allclose(consensus.value, honest.mean(0))


@pytest.mark.parametrize(("name", "sign"), [("byzfl_ipm", -1), ("byzfl_alie", 1)])
def test_the_search_of_byzfl_doubles_its_steps_then_shortens_them(name, sign):
    """Against an aggregator that stops listening beyond 25, where it has come from 10 to 30."""
    honest = honest_updates(parties=6).astype(float)
    mu, sd = honest.mean(0), honest.std(0, ddof=1)
    step = mu if name == "byzfl_ipm" else sd
    start = 0 * mu if name == "byzfl_ipm" else mu

    def deaf(rows: np.ndarray) -> np.ndarray:
        size = float((rows[-1] - start) @ step / (step @ step)) * sign
        return mu + (size if size <= 25 else 0.0) * step

    sent = make(name, Knowledge(aggregate=deaf))(honest, 2, RNG(0))
    size = 10.0  # 10 + 20 is too far; then steps of 20 · 0.8^k, as long as they do not lead too far
    for k in range(1, 18):
        longer = size + 20 * 0.8**k
        size = longer if longer <= 25 else size
    assert np.allclose(sent, np.tile(start + sign * size * step, (2, 1)))
    with pytest.raises(ValueError, match="give Knowledge an `aggregate`"):
        make(name)
