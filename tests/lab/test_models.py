import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

from consilience.lab.models import (  # noqa: E402
    char_lstm,
    cnn_mnist,
    linear_regression,
    logistic_regression,
    mlp,
)

SMALL = {
    "linear": linear_regression(6),
    "logistic": logistic_regression(6, 4),
    "mlp": mlp(6, 5, 4),
    "lstm": char_lstm(7, hidden=5, embedding=3),
}


def data(name, samples=9, seed=1):
    """Random inputs, targets and parameters, in float64."""
    draw = torch.Generator().manual_seed(seed)
    model = SMALL[name]
    if name == "lstm":
        inputs = torch.randint(7, (samples, 4), generator=draw)
        targets = torch.randint(7, (samples, 4), generator=draw)
    else:
        inputs = torch.randn(samples, 6, generator=draw, dtype=torch.float64)
        targets = torch.randint(4, (samples,), generator=draw)
        targets = targets.double() if model.classes is None else targets
    vector = torch.randn(model.size, generator=draw, dtype=torch.float64)
    return model, vector, inputs, targets


@pytest.mark.parametrize(
    ("model", "size"),
    [
        (linear_regression(100), 100),
        (logistic_regression(), 7850),
        (mlp(), 79510),
        (cnn_mnist(), 20 * 26 + 50 * 501 + 500 * 801 + 10 * 501),
        # embedding, two layers of four gates with one bias, softmax
        (char_lstm(90), 90 * 8 + 1024 * (8 + 256 + 1) + 1024 * (512 + 1) + 90 * 257),
    ],
)
def test_sizes(model, size):
    assert model.size == size
    assert model.initial(0).shape == (size,)
    assert model.initial(0).dtype == torch.float32


@pytest.mark.parametrize("name", ["mlp", "lstm"])
def test_initial_parameters_depend_on_the_seed_alone(name):
    model = SMALL[name]
    first = model.initial(3)
    torch.rand(5)  # the global generator has no say
    assert torch.equal(first, model.initial(3))
    assert not torch.equal(first, model.initial(4))
    for tensor_name, tensor in model.tensors(first).items():
        spread = model.layout[tensor_name].spread
        assert tensor.abs().max() <= spread
        assert tensor.abs().max() > spread / 4


def test_forget_opens_the_forget_gates_of_an_lstm():
    plain, open_ = char_lstm(7, 5, 3, layers=1), char_lstm(7, 5, 3, layers=1, forget=1.5)
    vector, inputs = plain.initial(0), torch.tensor([[0, 3, 2, 6]])
    shifted = vector.clone()
    plain.tensors(shifted)["lstm.0.bias"][5:10] += 1.5  # input, forget, cell, output
    assert torch.allclose(open_.outputs(vector, inputs), plain.outputs(shifted, inputs))
    assert not torch.allclose(open_.outputs(vector, inputs), plain.outputs(vector, inputs))


@pytest.mark.parametrize("name", SMALL)
def test_named_tensors_and_back(name):
    model, vector, _, _ = data(name)
    tensors = model.tensors(vector)
    assert {n: tuple(t.shape) for n, t in tensors.items()} == {
        n: e.shape for n, e in model.layout.items()
    }
    assert torch.equal(model.vector(tensors), vector)
    many = model.tensors(torch.stack([vector, 2 * vector]))
    assert all(torch.equal(many[n][1], 2 * tensors[n]) for n in tensors)


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("weight_decay", [0.0, 0.3])
def test_gradient_agrees_with_finite_differences(name, weight_decay):
    model, vector, inputs, targets = data(name)
    leaf = vector.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(model.loss(leaf, inputs, targets, weight_decay), leaf)
    step = 1e-6 * torch.eye(model.size, dtype=torch.float64)
    differences = [
        (
            model.loss(vector + e, inputs, targets, weight_decay)
            - model.loss(vector - e, inputs, targets, weight_decay)
        )
        / 2e-6
        for e in step
    ]
    assert torch.allclose(torch.stack(differences), gradient, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("name", SMALL)
def test_float32_gradient_is_that_of_float64(name):
    # The fused LSTM of float32 is other code than that of float64.
    model, vector, inputs, targets = data(name)

    def gradient(dtype):
        leaf = vector.to(dtype).requires_grad_()
        cast = [t.to(dtype) if t.is_floating_point() else t for t in (inputs, targets)]
        return torch.autograd.grad(model.loss(leaf, *cast), leaf)[0].double()

    assert torch.allclose(gradient(torch.float32), gradient(torch.float64), atol=2e-6)


def test_weight_decay_adds_half_the_squared_length():
    model, vector, inputs, targets = data("mlp")
    added = model.loss(vector, inputs, targets, 0.3) - model.loss(vector, inputs, targets)
    assert added.item() == pytest.approx(0.15 * vector.square().sum().item())


def test_lstm_is_that_of_torch():
    model, vector, inputs, _ = data("lstm")
    tensors = model.tensors(vector)
    reference = torch.nn.LSTM(3, 5, num_layers=2, batch_first=True).double()
    for layer in range(2):
        for ours, theirs in [
            ("input", "weight_ih"),
            ("recurrent", "weight_hh"),
            ("bias", "bias_ih"),
        ]:
            getattr(reference, f"{theirs}_l{layer}").data = tensors[f"lstm.{layer}.{ours}"]
        getattr(reference, f"bias_hh_l{layer}").data.zero_()
    states, _ = reference(tensors["embedding"][inputs])
    expected = states @ tensors["output.weight"].T + tensors["output.bias"]
    assert torch.allclose(model.outputs(vector, inputs), expected)


def test_lstm_does_not_look_ahead():
    model, vector, inputs, _ = data("lstm")
    changed = inputs.clone()
    changed[:, 2] = (changed[:, 2] + 1) % 7
    before, after = model.outputs(vector, inputs), model.outputs(vector, changed)
    assert torch.equal(before[:, :2], after[:, :2])
    assert not torch.allclose(before[:, 2:], after[:, 2:])


@pytest.mark.parametrize("name", ["logistic", "mlp", "lstm"])
def test_accuracy_counts_right_predictions(name):
    model, vector, inputs, _ = data(name)
    predicted = model.predict(vector, inputs, chunk=4)  # 9 samples: the last chunk is short
    assert torch.equal(predicted, model.outputs(vector, inputs).argmax(-1))
    wrong = predicted.clone()
    wrong[0] = (wrong[0] + 1) % model.classes
    assert model.accuracy(vector, inputs, predicted) == 1
    assert model.accuracy(vector, inputs, wrong) == pytest.approx(8 / 9)


def test_regression_predicts_numbers_and_has_no_accuracy():
    model, vector, inputs, _ = data("linear")
    assert torch.allclose(model.predict(vector, inputs), inputs @ vector)
    with pytest.raises(ValueError, match="use loss"):
        model.accuracy(vector, inputs, inputs @ vector)


def test_errors_say_what_was_found():
    model = SMALL["mlp"]
    with pytest.raises(ValueError, match=r"has 59 parameters, but the vector has 7"):
        model.tensors(torch.zeros(7))
    with pytest.raises(ValueError, match=r"expects tensors .*output\.bias.* found"):
        model.vector({"hidden.bias": torch.zeros(5)})


@pytest.mark.parametrize("module", ["models", "training"])
def test_without_torch_the_error_names_the_extra(module):
    code = f"import sys; sys.modules['torch'] = None; import consilience.lab.{module}"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 1
    assert "pip install 'consilience[lab]'" in run.stderr


def test_the_convolutional_network_is_that_of_torchs_layers():
    nn = torch.nn
    layers = nn.Sequential(
        *(nn.Unflatten(1, (1, 28, 28)), nn.Conv2d(1, 20, 5), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(20, 50, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
        *(nn.Linear(800, 500), nn.ReLU(), nn.Linear(500, 10)),
    )
    model = cnn_mnist()
    vector = torch.cat([part.detach().flatten() for part in layers.parameters()])
    inputs = torch.rand(3, 784, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(model.outputs(vector, inputs), layers(inputs), atol=1e-5)
    # Initial values are as wide as torch's own: uniform, up to a bound that is the layer's.
    bounds = [
        part.weight[0].numel() ** -0.5
        for part in layers
        if isinstance(part, nn.Conv2d | nn.Linear)
        for _ in part.parameters()
    ]
    own, torchs = model.tensors(model.initial(0)), model.tensors(vector)
    for name, bound in zip(own, bounds, strict=True):
        assert torchs[name].abs().max() <= bound, name
        if torchs[name].numel() >= 500:  # torch draws by chance: of so many some are near it
            assert torchs[name].abs().max() > 0.95 * bound, name
        assert 0.7 * bound < own[name].abs().max() <= bound, name
