"""A federation with rules for methods, attacks that ask, and adversaries that send rubbish."""

import gc
import weakref

import numpy as np
import pytest

import consilience as cs
from consilience.lab.attacks import Knowledge, registry
from consilience.lab.attacks.optimised import CALLS
from consilience.lab.federation import Federation, Local, Watched, adam, add, one_cycle, sgd
from consilience.lab.models import linear_regression, torch
from consilience.lab.training import Trainers, shard

HONEST = [f"h{j}" for j in range(5)]
BAD = ["b0", "b1"]
SIZE = 4


def parties(momentum: float = 0.0) -> Trainers:
    rng = np.random.default_rng(0)
    data = {}
    for name in [*HONEST, *BAD]:
        inputs = rng.standard_normal((30, SIZE))
        data[name] = shard(inputs, inputs @ np.arange(1, SIZE + 1) + rng.standard_normal(30))
    return Trainers(linear_regression(SIZE), data, seed=0, batch=10, momentum=momentum)


def trained(method, attack="gaussian", rounds=4, **more) -> list[Watched]:
    seen: list[Watched] = []
    federation = Federation(
        parties(), HONEST, method, sgd(0.1), BAD, attack, watch=seen.append, **more
    )
    federation.run(rounds, lambda p: {"norm": float(p.norm())}, lambda *_: None)
    return seen


def test_a_federation_that_has_run_is_let_go_of_with_all_its_data():
    # The attack knows whom to ask, and so it knows the federation.
    federation = Federation(parties(), HONEST, "mean", sgd(0.1), BAD, "optimised_ipm")
    federation.run(2, lambda p: {}, lambda *_: None)
    gone = weakref.ref(federation)
    gc.disable()  # a cycle would wait for the collector, and data take hundreds of megabytes
    try:
        del federation
        assert gone() is None
    finally:
        gc.enable()


def test_the_same_federation_twice_is_the_same(monkeypatch):
    """Also where the consensus looks at a few coordinates, drawn at random, before it decides."""

    def loud_in_a_few(knowledge):
        def attack(honest, count, rng):
            return np.tile(honest.mean(0) + 30 * (np.arange(SIZE * 1500) % 40 == 0), (count, 1))

        return attack

    def run():
        rng = np.random.default_rng(0)
        data = {}
        for name in names:
            inputs = rng.standard_normal((30, SIZE * 1500))
            data[name] = shard(inputs, inputs[:, 0] + rng.standard_normal(30))
        trainers, seen = Trainers(linear_regression(SIZE * 1500), data, seed=0, batch=10), []
        Federation(
            trainers,
            names[:8],
            "pairwise",
            sgd(1e-4),
            names[8:],
            "loud_in_a_few",
            watch=seen.append,
        ).run(12, lambda p: {}, lambda *_: None)
        return [round.value for round in seen]

    names = [f"p{j}" for j in range(9)]
    monkeypatch.setitem(registry._ATTACKS, "loud_in_a_few", loud_in_a_few)
    np.testing.assert_array_equal(run(), run())


class Remembers:
    """A rule with a state: the mean of all it was ever given."""

    def __init__(self) -> None:
        self.total, self.calls = np.zeros(SIZE, np.float32), 0

    def __call__(self, updates):
        self.total = self.total + updates.mean(0)
        self.calls += 1
        return self.total / self.calls


@pytest.fixture
def asking(monkeypatch: pytest.MonkeyPatch) -> list[np.ndarray]:
    """Register an attack that asks the aggregator twice what it will say, and then sends that."""
    foretold: list[np.ndarray] = []

    def asks(knowledge: Knowledge, scale: float = 1.0):
        def attack(honest, count, rng):
            bad = -scale * np.repeat(honest.mean(0, keepdims=True), count, 0)
            knowledge.aggregate(np.vstack([honest, 7 * bad]))
            foretold.append(knowledge.aggregate(np.vstack([honest, bad])))
            return bad

        return attack

    monkeypatch.setitem(registry._ATTACKS, "asks", asks)
    return foretold


@pytest.mark.parametrize("method", ["mean", "ivar-vb", "icov-vb", "trimmed-mean", Remembers()])
def test_an_attack_is_told_what_the_server_will_say_and_leaves_no_trace(method, asking) -> None:
    seen = trained(method, "asks", settings={"scale": 0.5})
    assert len(seen) == len(asking) == 4
    for round, foretold in zip(seen, asking, strict=True):
        assert np.array_equal(round.value, foretold)
    if isinstance(method, Remembers):
        assert method.calls == 4


def test_a_memory_is_not_changed_by_questions(asking) -> None:
    memory = cs.Memory()
    trained("ivar-vb", "asks", memory=memory)
    assert memory.rounds == 4


def test_settings_reach_the_attack(asking) -> None:
    mean = trained("mean", "asks", rounds=1, settings={"scale": 2.5})[0]
    assert np.allclose(mean.value, 0, atol=1e-6)  # 5 honest cancel 2 adversaries at 2.5 times
    assert mean.miss == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize(
    ("attack", "most"), [("optimised_ipm", CALLS), ("optimised_alie", CALLS), ("adaptive", 40)]
)
def test_an_attack_may_search_in_some_rounds_only(attack, most) -> None:
    calls = []

    def rule(updates):
        calls.append(updates)
        return updates.mean(0)

    trained(rule, attack, rounds=5, settings={"every": 3})
    assert 5 + 1.5 * most < len(calls) <= 5 + 2 * most


def test_local_steps_send_how_far_they_went(monkeypatch: pytest.MonkeyPatch) -> None:
    def negated(inputs, targets, rng):
        return inputs, -targets

    def negates(knowledge: Knowledge):
        return lambda honest, count, rng: knowledge.train(negated, count)

    monkeypatch.setitem(registry._ATTACKS, "negates", negates)
    (round,) = trained("mean", "negates", rounds=1, local=Local(3, 0.2))
    everybody = parties()
    start = everybody.model.initial(0)
    honest = everybody.local_steps(start, 0, 3, 0.2, HONEST) - start
    bad = everybody.local_steps(start, 0, 3, 0.2, BAD, negated) - start
    assert np.allclose(round.oracle, honest.mean(0), atol=1e-6)
    assert np.allclose(round.value, torch.cat([honest, bad]).mean(0), atol=1e-6)
    assert not np.allclose(bad, everybody.local_steps(start, 0, 3, 0.2, BAD) - start, atol=0.1)
    assert add(torch.ones(2), torch.tensor([0.5, -2.0])).tolist() == [1.5, -1.0]


def test_a_rule_takes_the_place_of_a_method() -> None:
    ours, rule = trained("mean"), trained(lambda updates: updates.mean(0))
    for one, other in zip(ours, rule, strict=True):
        assert np.allclose(one.value, other.value, atol=1e-5)
        assert other.consensus is None
        assert one.consensus is not None
        assert set(one.consensus.weights) == {*HONEST, *BAD}
    honest_only = trained(lambda updates: updates[: len(HONEST)].mean(0))
    assert [round.miss for round in honest_only] == pytest.approx([0] * 4, abs=1e-6)
    twice = trained(lambda updates: 2 * updates[: len(HONEST)].mean(0), rounds=1)
    assert twice[0].miss == pytest.approx(1)


@pytest.fixture
def _rubbish(monkeypatch: pytest.MonkeyPatch) -> None:
    def rubbish(knowledge: Knowledge):
        return lambda honest, count, rng: [None, honest[0][:2]]

    monkeypatch.setitem(registry._ATTACKS, "rubbish", rubbish)


@pytest.mark.usefixtures("_rubbish")
def test_malformed_updates_are_rejected_by_methods_and_nan_to_rules() -> None:
    ours = trained("mean", "rubbish")
    assert set(ours[-1].consensus.rejected) == set(BAD)
    assert max(round.miss for round in ours) < 1e-6
    given = []
    trained(lambda updates: given.append(updates) or updates[0], "rubbish", rounds=1)
    assert given[0].shape == (7, SIZE)
    assert np.isnan(given[0]).all(1).tolist() == [False] * 5 + [True] * 2


def raises(updates):
    raise RuntimeError("no")


@pytest.mark.parametrize(
    "rule", [lambda updates: updates.mean(0) * np.inf, raises, lambda u: None, lambda u: u[0][:2]]
)
def test_a_rule_that_fails_breaks_the_training_and_is_not_asked_again(rule) -> None:
    seen: list[Watched] = []
    federation = Federation(parties(), HONEST, rule, sgd(0.1), BAD, watch=seen.append)

    def evaluate(parameters):
        return {"finite": bool(torch.isfinite(parameters).all())}

    records = federation.run(3, evaluate, lambda *_: None)
    assert [record["finite"] for record in records] == [True, False, False, False]
    assert len(seen) == 1


def test_an_unknown_method_is_no_failure_of_the_method() -> None:
    with pytest.raises(cs.ConsilienceError, match="unknown method"):
        trained("no such method")


def test_weight_decay_pulls_towards_zero() -> None:
    parameters, update = torch.tensor([2.0, -4.0]), torch.tensor([1.0, 1.0])
    assert sgd(0.1, weight_decay=0.5)(parameters, update).tolist() == pytest.approx([1.8, -3.9])


def test_steps_of_the_server_add_up_and_leave_what_they_are_given_alone() -> None:
    step = sgd(0.1, momentum=0.5, weight_decay=0.2)
    parameters, velocity = torch.tensor([2.0, -4.0]), np.zeros(2)
    expected = parameters.double().numpy()
    for round in range(4):
        update = torch.tensor([1.0, -2.0]) * round
        given = parameters.clone(), update.clone()
        found = step(parameters, update)
        velocity = 0.5 * velocity + given[1].numpy() + 0.2 * expected
        expected = expected - 0.1 * velocity
        assert found.tolist() == pytest.approx(expected.tolist(), rel=1e-6)
        assert torch.equal(parameters, given[0])
        assert torch.equal(update, given[1])
        parameters = found


def test_every_round_is_recorded(tmp_path):
    record = cs.Record(tmp_path / "run.jsonl")
    federation = Federation(parties(), HONEST, "pairwise", sgd(0.1), BAD, record=record)
    federation.run(4, lambda p: {"accuracy": float(p.norm())}, lambda *_: None, every=2)
    rounds = cs.Record.read(record.path)
    assert [r.round for r in rounds] == [1, 2, 3, 4]
    assert [r.accuracy is None for r in rounds] == [True, False, True, False]
    assert set(rounds[0].parties) == {*HONEST, *BAD}
    assert rounds[0].note is None


def test_a_round_without_a_consensus_is_recorded_too(tmp_path):
    record = cs.Record(tmp_path / "run.jsonl")
    federation = Federation(parties(), HONEST, lambda rows: rows.mean(0), sgd(0.1), record=record)
    federation.run(2, lambda p: {}, lambda *_: None)
    assert [(r.round, r.parties, r.note) for r in cs.Record.read(record.path)] == [
        (1, (), "no consensus"),
        (2, (), "no consensus"),
    ]


def test_adam_steps_by_the_rate_of_its_round_whatever_the_length() -> None:
    rates = [one_cycle(0.4, 10)(round) for round in range(10)]
    assert max(rates) == pytest.approx(0.4, rel=0.05)
    assert rates.index(max(rates)) == 2
    assert rates[0] < 0.1
    assert rates[-1] < 0.01
    assert sorted(rates[2:], reverse=True) == rates[2:]

    # The first step of Adam is the rate in every coordinate; the second shows what was cut.
    start, first, second = torch.zeros(2), torch.tensor([3.0, 4.0]), torch.tensor([3e9, 4e9])
    for longest in (np.inf, 5.0):
        step = adam(lambda round: [0.1, 1.0][round], 0.0, 0.5, longest)
        moved = step(start, first)
        assert moved.tolist() == pytest.approx([-0.1, -0.1])
        length = (step(moved, second) - moved).abs()
        expected = 1.0 if longest == 5.0 else np.sqrt(1.5)
        assert length.tolist() == pytest.approx([expected] * 2, rel=1e-3)
    assert adam(one_cycle(0.4, 10), longest=1.0)(start, torch.zeros(2)).tolist() == [0, 0]
