from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from consilience.lab.models import (  # noqa: E402
    char_lstm,
    cnn_mnist,
    linear_regression,
    logistic_regression,
    mlp,
)
from consilience.lab.training import (  # noqa: E402
    Samples,
    Trainers,
    gradients,
    images,
    shard,
    stream,
    windows,
)

MODELS = {
    "linear": linear_regression(12),
    "logistic": logistic_regression(12, 3),
    "mlp": mlp(12, 8, 3),
    "lstm": char_lstm(11, hidden=6),
}


def shards(name, sizes=(40, 40, 40, 40), seed=0):
    rng = np.random.default_rng(seed)
    model, made = MODELS[name], {}
    for index, size in enumerate(sizes):
        if name == "lstm":
            made[f"p{index}"] = windows(rng.integers(11, size=size + 5), length=5)
            continue
        inputs = rng.standard_normal((size, 12))
        targets = inputs @ np.arange(12) / 12 + rng.standard_normal(size)
        made[f"p{index}"] = shard(
            inputs, targets if model.classes is None else targets.astype(int) % 3
        )
    return made


def naive(model, parameters, samples, weight_decay=0.0):
    """One party at a time, in float64."""
    rows = []
    for row, (inputs, targets) in zip(
        parameters.double().expand(len(samples), -1), samples, strict=True
    ):
        leaf = row.detach().clone().requires_grad_()
        inputs = inputs.double() if inputs.is_floating_point() else inputs
        targets = targets.double() if targets.is_floating_point() else targets
        rows.append(torch.autograd.grad(model.loss(leaf, inputs, targets, weight_decay), leaf)[0])
    return torch.stack(rows)


def start(name, rows=None):
    model = MODELS[name]
    shape = (model.size,) if rows is None else (rows, model.size)
    return 0.3 * torch.randn(shape, generator=torch.Generator().manual_seed(5))


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("sizes", [(40, 40, 40), (40, 7, 19)], ids=["equal", "ragged"])
@pytest.mark.parametrize("own", [False, True], ids=["shared", "own"])
def test_batched_gradients_are_those_of_a_loop(name, sizes, own):
    model, samples = MODELS[name], list(shards(name, sizes).values())
    parameters = start(name, 3 if own else None)
    batched = gradients(model, parameters, samples, weight_decay=0.1)
    assert batched.shape == (3, model.size)
    assert batched.dtype == torch.float32
    expected = naive(model, parameters, samples, weight_decay=0.1)
    assert torch.allclose(batched.double(), expected, rtol=1e-6, atol=1e-6)
    assert (batched[0] - batched[1]).abs().max() > 1e-3  # the parties do differ


@pytest.mark.parametrize("name", MODELS)
def test_runs_repeat_bit_for_bit(name):
    def run(seed):
        parties = Trainers(MODELS[name], shards(name), seed, batch=8, momentum=0.9)
        parameters = MODELS[name].initial(seed) + 0.1
        for round in range(10):
            parameters = parameters - 0.1 * parties.gradients(parameters, round).mean(0)
        return parameters

    assert torch.equal(run(1), run(1))
    assert not torch.equal(run(1), run(2))


@pytest.mark.parametrize("name", MODELS)
def test_a_party_draws_the_same_whoever_else_takes_part(name):
    parties = Trainers(MODELS[name], shards(name), seed=3, batch=8)
    parameters = start(name)
    together = parties.gradients(parameters, 7)
    alone = parties.gradients(parameters, 7, ["p2"])
    reordered = parties.gradients(parameters, 7, ["p3", "p2"])
    # Sums over fewer parties may be taken in another order: the draw is the same, the last bit not.
    assert torch.allclose(together[2], alone[0], rtol=1e-5, atol=1e-6)
    assert torch.allclose(together[2], reordered[1], rtol=1e-5, atol=1e-6)
    assert not torch.allclose(together[2], parties.gradients(parameters, 8)[2], atol=1e-3)


def test_streams_are_apart():
    draws = {
        stream(seed, party, round).integers(2**63)
        for seed in (0, 1)
        for party in ("a", "b", "aa", "a\0")
        for round in (0, 1)
    }
    assert len(draws) == 16
    assert stream(1, "a", 2).integers(2**63) == stream(1, "a", 2).integers(2**63)


def test_full_batch_is_the_whole_shard_and_mini_batches_average_to_it():
    model, data = MODELS["linear"], shards("linear")
    parameters = start("linear")
    whole = Trainers(model, data, seed=0).gradients(parameters, 0)
    assert torch.allclose(whole.double(), naive(model, parameters, list(data.values())), atol=1e-5)
    mini = Trainers(model, data, seed=0, batch=16)
    drawn = torch.stack([mini.gradients(parameters, round) for round in range(500)])
    assert drawn.std(0).mean() > 0.1
    assert (drawn.mean(0) - whole).abs().max() < 5 * drawn.std(0).max() / 500**0.5


def test_momentum_is_kept_by_party_and_waits_for_the_absent():
    data, parameters = shards("mlp"), start("mlp")
    plain = Trainers(MODELS["mlp"], data, seed=0, batch=8)
    heavy = Trainers(MODELS["mlp"], data, seed=0, batch=8, momentum=0.75)
    g = [plain.gradients(parameters, round) for round in range(3)]
    assert torch.equal(heavy.gradients(parameters, 0), g[0])
    heavy.gradients(parameters, 1, ["p0", "p1"])
    sent = heavy.gradients(parameters, 2)
    expected = 0.75 * (0.75 * g[0][0] + 0.25 * g[1][0]) + 0.25 * g[2][0]
    assert torch.allclose(sent[0], expected, atol=1e-6)
    assert torch.allclose(sent[2], 0.75 * g[0][2] + 0.25 * g[2][2], atol=1e-6)


def test_momenta_change_neither_with_what_was_sent_nor_in_place():
    def sent(spoil):
        parties = Trainers(MODELS["mlp"], shards("mlp"), seed=0, batch=8, momentum=0.9)
        parties.gradients(start("mlp"), 0).add_(spoil)
        kept = dict(parties.momenta)  # what a run could go on from
        values = kept["p1"].clone()
        found = parties.gradients(start("mlp"), 1)
        assert torch.equal(kept["p1"], values)
        return found

    assert torch.equal(sent(0.0), sent(7.0))


@pytest.mark.parametrize("weight_decay", [0.0, 0.2])
def test_local_linear_regression_is_exact(weight_decay):
    data = shards("linear", (40, 60))
    fitted = Trainers(MODELS["linear"], data, 0, weight_decay=weight_decay).local_parameters()
    assert fitted.dtype == torch.float32
    for row, (inputs, targets) in zip(fitted, data.values(), strict=True):
        X, y = inputs.double(), targets.double()
        normal = X.T @ X / len(X) + weight_decay * torch.eye(12)
        assert torch.allclose(row.double(), torch.linalg.solve(normal, X.T @ y / len(X)), atol=1e-6)


def test_local_logistic_regression_converges():
    model, data = MODELS["logistic"], shards("logistic", (60, 90))
    parties = Trainers(model, data, 0, batch=8, weight_decay=0.01)  # batch has no say here
    fitted = parties.local_parameters()
    slope = naive(model, fitted, list(data.values()), weight_decay=0.01)
    assert slope.abs().max() < 1e-3
    assert naive(model, model.initial(0), list(data.values()), 0.01).abs().max() > 0.1
    assert torch.equal(fitted, parties.local_parameters())
    assert torch.equal(fitted[1:], parties.local_parameters(["p1"]))


@pytest.mark.parametrize("name", ["mlp", "lstm"])
def test_local_steps_are_sgd_from_the_global_parameters(name):
    model, data, parameters = MODELS[name], shards(name), start(name)
    before = parameters.clone()
    parties = Trainers(model, data, seed=2)  # full batch: nothing is drawn
    found = parties.local_steps(parameters, 0, steps=3, rate=0.5)
    expected = parameters.double().repeat(4, 1)
    for _ in range(3):
        expected = expected - 0.5 * naive(model, expected, list(data.values()))
    assert torch.allclose(found.double(), expected, atol=1e-5)
    assert torch.equal(parameters, before)
    mini = Trainers(model, data, seed=2, batch=8)
    many = mini.local_steps(parameters, 4, 3, 0.5)
    assert torch.allclose(many[1], mini.local_steps(parameters, 4, 3, 0.5, ["p1"])[0], atol=1e-5)


def test_poison_sees_the_batch_and_leaves_the_shard_alone():
    data, parameters = shards("logistic"), start("logistic")
    before = {name: Samples(*(part.clone() for part in held)) for name, held in data.items()}
    parties = Trainers(MODELS["logistic"], data, seed=0)

    def flip(inputs, targets, rng):
        targets[:] = 2 - targets  # in place, to provoke
        return inputs, targets

    poisoned = parties.gradients(parameters, 0, poison=flip)
    flipped = [Samples(held.inputs, 2 - held.targets) for held in before.values()]
    expected = naive(MODELS["logistic"], parameters, flipped)
    assert torch.allclose(poisoned.double(), expected, atol=1e-6)
    for name, held in data.items():
        assert torch.equal(held.targets, before[name].targets)


def test_convolutions_of_all_parties_in_one_call():
    model, rng = cnn_mnist(), np.random.default_rng(0)
    data = [shard(rng.random((2, 784)), rng.integers(10, size=2)) for _ in range(3)]
    parameters = model.initial(0)
    together, alone = (
        gradients(replace(model, vmaps=vmaps), parameters, data) for vmaps in (True, False)
    )
    assert together.shape == (3, model.size)
    assert torch.allclose(together, alone, atol=1e-6)


def test_windows_are_all_places_of_the_text():
    inputs, targets = windows(np.arange(10, 20), length=4)
    assert inputs.shape == targets.shape == (6, 4)
    assert inputs[0].tolist() == [10, 11, 12, 13]
    assert torch.equal(targets, inputs + 1)
    assert targets.max() == 19
    with pytest.raises(ValueError, match=r"a text of 4 characters has no window of 4"):
        windows(np.arange(4), length=4)


def test_images_are_scaled_and_flattened():
    pixels = np.array([[[0, 255], [51, 102]]], np.uint8)
    inputs, targets = images(pixels, np.array([7], np.uint8))
    assert torch.allclose(inputs, torch.tensor([[0.0, 1.0, 0.2, 0.4]]))
    assert (inputs.dtype, targets.dtype) == (torch.float32, torch.int64)


def test_shards_are_copies_even_of_read_only_arrays():
    inputs, targets = np.ones((3, 2), np.float32), np.array([0, 1, 2])
    made = shard(inputs, targets)
    inputs[:] = 5
    assert made.inputs.max() == 1
    for array in (inputs, targets):
        array.flags.writeable = False
    shard(inputs, targets), windows(targets, 1)  # torch would warn of memory it must not write


def test_unknown_parties_are_named():
    parties = Trainers(MODELS["mlp"], shards("mlp"), seed=0)
    with pytest.raises(ValueError, match=r"among p0, p1, p2, p3, found \['nobody'\]"):
        parties.gradients(start("mlp"), 0, ["p0", "nobody"])
    with pytest.raises(ValueError, match="none at all"):
        parties.gradients(start("mlp"), 0, [])


def test_training_learns():
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((3, 12))
    labels = rng.integers(3, size=(5, 200))
    data = {
        f"p{j}": shard(centres[y] + 0.5 * rng.standard_normal((200, 12)), y)
        for j, y in enumerate(labels)
    }
    model = MODELS["mlp"]
    parties, parameters = Trainers(model, data, seed=0, batch=32), model.initial(0)
    for round in range(100):
        parameters = parameters - 0.2 * parties.gradients(parameters, round).mean(0)
    assert model.accuracy(parameters, *data["p0"]) > 0.95
