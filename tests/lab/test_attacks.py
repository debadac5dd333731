import numpy as np
import pytest
from scipy import stats

from consilience.lab.attacks import Knowledge, attacks, make, register

RNG = np.random.default_rng


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
    monkeypatch.setattr("consilience.lab.attacks._ATTACKS", {})

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


def test_random_local_with_real_training():
    torch = pytest.importorskip("torch")
    from consilience.lab.models import logistic_regression
    from consilience.lab.training import Parties, shard

    rng, model = RNG(0), logistic_regression(6, 3)
    centres = 3 * rng.standard_normal((3, 6))
    data = {}
    for name in ("honest0", "honest1", "bad0", "bad1"):
        labels = rng.integers(3, size=300)
        data[name] = shard(centres[labels] + rng.standard_normal((300, 6)), labels)
    parties = Parties(model, data, seed=0, weight_decay=0.01)
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
