"""The models that parties train: pure functions of one flat parameter vector.

A model is a layout (which named tensors lie where in the vector) and a forward function of these
tensors and the inputs. All else follows: initial parameters, loss, predictions, accuracy. The
aggregation needs flat vectors, so nothing is copied on the way in or out.

    model = mlp()
    parameters = model.initial(seed=0)          # (K,) float32
    model.loss(parameters, inputs, targets)     # a scalar tensor, differentiable
    model.tensors(parameters)["hidden.weight"]  # a view, (100, 784)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

try:  # other modules of the lab import torch from here, so its absence is explained once
    import torch as torch
    from torch import Tensor as Tensor
    from torch.nn import functional
except ImportError as error:
    raise ImportError(
        "consilience.lab trains models with torch, which is not installed: "
        "pip install 'consilience[lab]'"
    ) from error

Tensors = dict[str, Tensor]


class Entry(NamedTuple):
    """One named tensor of a model: its shape, and the half-width of its uniform initial values."""

    shape: tuple[int, ...]
    spread: float


@dataclass(frozen=True)
class Model:
    """A model as functions of a parameter vector of length `size`."""

    name: str
    layout: Mapping[str, Entry]
    forward: Callable[[Tensors, Tensor], Tensor]
    classes: int | None  # None: the targets are numbers, and the loss is half the squared error
    vmaps: bool = True  # whether one batched call for all parties works and is faster
    # The gradient of each party's mean loss, if written out: a tenth of autograd's time. From
    # tensors, shared or (J, ...), inputs (J, B, ...) and targets (J, B), into tensors (J, ...).
    differentiate: Callable[[Tensors, Tensor, Tensor, Tensors], None] | None = None
    # The parameters of least loss, if in closed form: from inputs, targets and weight decay.
    solve: Callable[[Tensor, Tensor, float], Tensor] | None = None

    @property
    def sizes(self) -> list[int]:
        """The number of coordinates of each named tensor, in the order of the layout."""
        return [math.prod(entry.shape) for entry in self.layout.values()]

    @property
    def size(self) -> int:
        """K, the number of coordinates of an update."""
        return sum(self.sizes)

    def initial(self, seed: int) -> Tensor:
        """Initial parameters (K,), float32, the same for the same seed."""
        generator = torch.Generator().manual_seed(seed)
        spreads = torch.repeat_interleave(
            torch.tensor([entry.spread for entry in self.layout.values()]),
            torch.tensor(self.sizes),
        )
        return (2 * torch.rand(self.size, generator=generator) - 1) * spreads

    def tensors(self, vector: Tensor) -> Tensors:
        """The named tensors in a vector (..., K), as views; leading axes are kept."""
        if vector.shape[-1] != self.size:
            raise ValueError(
                f"{self.name} has {self.size} parameters, but the vector has "
                f"{vector.shape[-1]}: make it with initial() or vector() of this model"
            )
        parts = torch.split(vector, self.sizes, dim=-1)
        return {
            name: part.view(*vector.shape[:-1], *entry.shape)
            for (name, entry), part in zip(self.layout.items(), parts, strict=True)
        }

    def vector(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """The vector (K,) of named tensors: the inverse of `tensors`."""
        found = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
        expected = {name: entry.shape for name, entry in self.layout.items()}
        if found != expected:
            raise ValueError(f"{self.name} expects tensors {expected}, but found {found}")
        return torch.cat([tensors[name].flatten() for name in self.layout])

    def outputs(self, vector: Tensor, inputs: Tensor) -> Tensor:
        """The model's output for each sample: a number, or a score per class on the last axis."""
        return self.forward(self.tensors(vector), inputs)

    def loss(
        self, vector: Tensor, inputs: Tensor, targets: Tensor, weight_decay: float = 0.0
    ) -> Tensor:
        """The mean loss of the samples plus weight_decay/2 · ‖parameters‖²."""
        outputs = self.outputs(vector, inputs)
        if self.classes is None:
            loss = 0.5 * (outputs - targets).square().mean()
        else:
            loss = functional.cross_entropy(outputs.flatten(0, -2), targets.flatten())
        return loss + 0.5 * weight_decay * vector.square().sum() if weight_decay else loss

    @torch.no_grad()
    def predict(self, vector: Tensor, inputs: Tensor, chunk: int = 2048) -> Tensor:
        """The predicted number or class of each sample, `chunk` samples at a time."""
        outputs = torch.cat([self.outputs(vector, part) for part in torch.split(inputs, chunk)])
        return outputs if self.classes is None else outputs.argmax(-1)

    def accuracy(self, vector: Tensor, inputs: Tensor, targets: Tensor) -> float:
        """The share of predictions that are right."""
        if self.classes is None:
            raise ValueError(f"{self.name} predicts numbers, which are never quite right: use loss")
        return float((self.predict(vector, inputs) == targets).double().mean())


def linear_regression(features: int) -> Model:
    """Least squares, no intercept. Convex, so it starts at zero with any seed."""
    return Model(
        "linear regression",
        {"weight": Entry((features,), 0.0)},
        lambda tensors, inputs: torch.matmul(inputs, tensors["weight"]),
        classes=None,
        solve=_least_squares,
    )


def _least_squares(inputs: Tensor, targets: Tensor, weight_decay: float) -> Tensor:
    # Weight decay equals one more sample per feature, of size √(n·decay) and target zero.
    samples, features = inputs.shape
    pull = math.sqrt(samples * weight_decay) * torch.eye(features, dtype=torch.float64)
    rows = torch.cat([inputs.double(), pull])
    values = torch.cat([targets.double(), torch.zeros(features, dtype=torch.float64)])
    solution: Tensor = torch.linalg.lstsq(rows, values[:, None], driver="gelsd").solution
    return solution[:, 0]


def logistic_regression(features: int = 784, classes: int = 10) -> Model:
    """Softmax regression. Convex, so it starts at zero with any seed."""
    return Model(
        "logistic regression",
        {"weight": Entry((classes, features), 0.0), "bias": Entry((classes,), 0.0)},
        lambda tensors, inputs: functional.linear(inputs, tensors["weight"], tensors["bias"]),
        classes=classes,
    )


def mlp(features: int = 784, hidden: int = 100, classes: int = 10) -> Model:
    """One hidden layer of ReLU units: the 784-100-10 network of Baruch et al."""

    def forward(tensors: Tensors, inputs: Tensor) -> Tensor:
        hidden = functional.linear(inputs, tensors["hidden.weight"], tensors["hidden.bias"]).relu()
        return functional.linear(hidden, tensors["output.weight"], tensors["output.bias"])

    into_hidden, into_output = features**-0.5, hidden**-0.5
    layout = {
        "hidden.weight": Entry((hidden, features), into_hidden),
        "hidden.bias": Entry((hidden,), into_hidden),
        "output.weight": Entry((classes, hidden), into_output),
        "output.bias": Entry((classes,), into_output),
    }
    return Model("mlp", layout, forward, classes, differentiate=_differentiate_mlp)


def _differentiate_mlp(tensors: Tensors, inputs: Tensor, targets: Tensor, out: Tensors) -> None:
    weight, bias = tensors["hidden.weight"], tensors["hidden.bias"]
    hidden = (inputs @ weight.mT + bias.unsqueeze(-2)).relu_()  # (J, B, hidden)
    weight, bias = tensors["output.weight"], tensors["output.bias"]
    error = (hidden @ weight.mT + bias.unsqueeze(-2)).softmax(-1)  # (J, B, classes)
    error -= functional.one_hot(targets, error.shape[-1])
    error /= targets.shape[-1]
    torch.bmm(error.mT, hidden, out=out["output.weight"])
    torch.sum(error, -2, out=out["output.bias"])
    error = (error @ weight) * (hidden > 0)
    torch.bmm(error.mT, inputs, out=out["hidden.weight"])
    torch.sum(error, -2, out=out["hidden.bias"])


def cnn_mnist(classes: int = 10) -> Model:
    """The network ByzFL calls cnn_mnist: two convolutions of 5 × 5, each pooled, two dense layers.

    Inputs are flat pictures (B, 784), as for the other models.
    """

    def forward(tensors: Tensors, inputs: Tensor) -> Tensor:
        maps = inputs.reshape(-1, 1, 28, 28)  # (B, 1, 28, 28)
        for layer in ("first", "second"):
            weight, bias = tensors[f"{layer}.weight"], tensors[f"{layer}.bias"]
            maps = functional.max_pool2d(functional.conv2d(maps, weight, bias).relu(), 2)
        hidden = functional.linear(
            maps.flatten(-3), tensors["hidden.weight"], tensors["hidden.bias"]
        ).relu()
        return functional.linear(hidden, tensors["output.weight"], tensors["output.bias"])

    layout: dict[str, Entry] = {}
    shapes = {
        "first": (20, 1, 5, 5),
        "second": (50, 20, 5, 5),
        "hidden": (500, 800),
        "output": (classes, 500),
    }
    for name, shape in shapes.items():
        spread = math.prod(shape[1:]) ** -0.5
        layout |= {
            f"{name}.weight": Entry(shape, spread),
            f"{name}.bias": Entry((shape[0],), spread),
        }
    return Model("cnn mnist", layout, forward, classes)


def char_lstm(
    vocabulary: int, hidden: int = 256, embedding: int = 8, layers: int = 2, forget: float = 0.0
) -> Model:
    """The next-character model of McMahan et al.: an embedding, stacked LSTM layers, a softmax.

    Inputs are character codes (B, T); the targets are the codes one place on, (B, T): the model
    predicts the next character at every place. There is one bias per gate, not the sum of two as in
    torch, so that no coordinate of an update merely repeats another. `forget` is added to
    the bias of the forget gates: with 1 they start open, and training is faster.
    """
    fixed = torch.zeros(4, hidden)
    fixed[1] = forget  # torch's order of gates: input, forget, cell, output

    def forward(tensors: Tensors, inputs: Tensor) -> Tensor:
        embedded = functional.embedding(inputs, tensors["embedding"])  # (B, T, embedding)
        weights = [
            weight
            for layer in range(layers)
            for weight in (
                tensors[f"lstm.{layer}.input"],
                tensors[f"lstm.{layer}.recurrent"],
                tensors[f"lstm.{layer}.bias"],
                fixed.flatten().to(embedded.dtype),
            )
        ]
        start = embedded.new_zeros(layers, inputs.shape[0], hidden)
        states, _, _ = torch.lstm(
            embedded, (start, start), weights, True, layers, 0.0, True, False, True
        )  # (B, T, hidden)
        return functional.linear(states, tensors["output.weight"], tensors["output.bias"])

    # The fused LSTM has no batching rule. A loop over the parties with it still takes only half to
    # three quarters of the time of an unfused LSTM with all parties in one call, and two thirds of
    # that of a gradient written out in torch's operations: these are 80 steps of small ones.
    layout = _lstm_layout(vocabulary, hidden, embedding, layers)
    return Model("character lstm", layout, forward, vocabulary, vmaps=False)


def _lstm_layout(vocabulary: int, hidden: int, embedding: int, layers: int) -> dict[str, Entry]:
    spread = hidden**-0.5
    layout = {"embedding": Entry((vocabulary, embedding), math.sqrt(3))}  # unit variance
    for layer in range(layers):
        width = embedding if layer == 0 else hidden
        layout |= {
            f"lstm.{layer}.input": Entry((4 * hidden, width), spread),
            f"lstm.{layer}.recurrent": Entry((4 * hidden, hidden), spread),
            f"lstm.{layer}.bias": Entry((4 * hidden,), spread),
        }
    return layout | {
        "output.weight": Entry((vocabulary, hidden), spread),
        "output.bias": Entry((vocabulary,), spread),
    }
