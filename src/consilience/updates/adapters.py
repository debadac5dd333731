"""Adapters: low-rank updates ΔW = s·B·A of a model's matrices, sent as their factors A and B.

The factors mean nothing by themselves: B·R and R⁻¹·A make the same ΔW for any invertible R, and
factors of another rank have another shape. So a pair of factors is read as one tensor, their
product, of which only the requested coordinates are ever formed. Adapters of different ranks then
have the same structure, and are compared like other updates. Whatever else comes with an adapter
(biases, whole layers) is read as plain tensors.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeVar

import numpy as np

from consilience.arrays import Array, Positions
from consilience.errors import ConsilienceError, UpdateError
from consilience.text import shown, told
from consilience.updates.parsing import named, parse
from consilience.updates.tensors import Tensor
from consilience.updates.trees import Leaves, Path, Tree, flatten
from consilience.updates.usable import Updates

T = TypeVar("T")

STACK = "stack"
PREFIX = "base_model.model."  # PEFT's prefix to the names of modules
# x.lora_A.weight, x.lora_embedding_A, x.lora_B.bias; of a named adapter, x.lora_A.NAME.weight.
_FACTOR = re.compile(
    r"(?P<module>.+)\.lora_(?:embedding_)?(?P<side>[AB])"
    r"(?P<adapter>\.(?!weight$|bias$)[^.]+)?(?P<kind>\.weight|\.bias)?",
    re.DOTALL,
)
# Methods whose update is not s·B·A, by parts of PEFT's names for their tensors.
_OTHERS = {
    "lora_magnitude_vector": "DoRA",
    "lora_E": "AdaLoRA",
    "hada_w": "LoHa",
    "lokr_w": "LoKr",
    "ia3_l": "IA3",
    "oft_": "OFT",
    "vera_lambda": "VeRA",
    "randlora_": "RandLoRA",
    "fourierft_": "FourierFT",
    "prompt_embeddings": "prompt tuning",
}
_WRITTEN_OUT = re.compile(r"\^?[\w.\-]+")


@dataclass(frozen=True)
class LoRA:
    """What the factors of adapters mean: ΔW = s·B·A, with s = alpha/r, or alpha/√r with rsLoRA.

    The factors of the consensus mean the same.

    Args:
        alpha: PEFT's ``lora_alpha``; None: s is one.
        rslora: PEFT's ``use_rslora``.
        alpha_pattern: another alpha for some modules, by the end of their names, or with ``^`` in
            front by the whole name.
        rank: of the consensus: a number; "stack" for the exact sum, whose rank is the sum of the
            parties' ranks; None for the centre's rank, or without a centre for the largest rank of
            the parties with more than half of the typical weight.
        parties: what the factors of some parties mean, where it differs.

    >>> LoRA(alpha=16, parties={"bob": LoRA(alpha=32)}).rank is None
    True
    """

    alpha: float | None = None
    rslora: bool = False
    alpha_pattern: Mapping[str, float] = field(default_factory=dict)
    rank: int | str | None = None
    parties: Mapping[str, LoRA] = field(default_factory=dict)

    def __post_init__(self) -> None:
        alphas = (self.alpha, *self.alpha_pattern.values())
        for alpha in (a for a in alphas if a is not None):
            number = isinstance(alpha, int | float) and not isinstance(alpha, bool)
            if not number or not 0 < abs(alpha) <= sys.float_info.max:  # an int may be larger
                raise ConsilienceError(
                    f"alpha is a number, finite and not 0, found {shown(repr(alpha))}"
                )
        whole = isinstance(self.rank, int) and not isinstance(self.rank, bool) and self.rank > 0
        if not (whole or self.rank in (None, STACK)):
            raise ConsilienceError(
                f"a rank is a whole number, 'stack' or None, found {shown(repr(self.rank))}"
            )
        for key in self.alpha_pattern:
            _ending(key)

    def scale(self, module: str, rank: int) -> float:
        """Return s for factors of this rank in a module."""
        alpha = matched(self.alpha_pattern, module, self.alpha)
        if alpha is None:
            return 1.0
        return float(alpha) / (math.sqrt(rank) if self.rslora else rank)

    def of(self, party: str) -> LoRA:
        """Return what a party's factors mean."""
        return self.parties.get(party, self)


def meaning(said: LoRA | str) -> LoRA:
    """Return what factors mean, also given by name.

    A name stands for alpha = 1: if all parties have the same alpha, its value does not matter.
    """
    if isinstance(said, LoRA):
        return said
    if said in ("lora", "rslora"):
        return LoRA(1.0, rslora=said == "rslora")
    raise ConsilienceError(
        f"adapters are 'lora', 'rslora' or a LoRA(...), found {shown(repr(said))}"
    )


def are_factors(names: Iterable[str]) -> bool:
    """Tell whether any of these names of tensors is that of a LoRA factor."""
    return any(_FACTOR.fullmatch(name) for name in names)


def _ending(key: str) -> tuple[str, bool]:
    """Return the name in a pattern, and whether it is a whole name, not only the end of one.

    PEFT takes any regular expression, but a stranger's may run for ever.
    """
    plain = re.sub(r"\\(\W)", r"\1", key)
    if not _WRITTEN_OUT.fullmatch(plain):
        raise ConsilienceError(
            f"pattern '{shown(key)}': only names of modules are understood, or their ends; write "
            "them out, one entry each"
        )
    return plain.removeprefix("^"), plain.startswith("^")


def matched(pattern: Mapping[str, T], module: str, otherwise: T) -> T:
    """Return a PEFT pattern's value for a module: that of the first entry that matches."""
    for key, value in pattern.items():
        name, whole = _ending(key)
        if module == name or (not whole and module.endswith(f".{name}")):
            return value
    return otherwise


@dataclass(frozen=True, eq=False)
class Product:
    """s·B·A as a flat array, of which only the requested coordinates are formed."""

    module: str  # its name in PEFT's patterns
    left: Tensor  # B, read as (out, r)
    right: Tensor  # A, read as (r, in)
    scale: float
    paths: tuple[Path, Path]  # of B and A in the update

    @property
    def embedding(self) -> bool:
        """Whether the module is an embedding, whose weight is the transpose of the product."""
        return ".lora_embedding_" in self.paths[0][0]

    @property
    def rank(self) -> int:
        """The rank r."""
        return self.right.shape[0]

    @property
    def width(self) -> int:
        """The number of columns."""
        return self.right.size // self.rank

    @property
    def height(self) -> int:
        """The number of rows."""
        return self.left.shape[0]

    @property
    def numbers(self) -> int:
        """How many numbers the factors have."""
        return self.left.size + self.right.size

    def factors(self) -> tuple[Array, Array]:
        """Return B (out, r) and A (r, in) as floats."""
        left, right = (factor.floats(0, factor.size) for factor in (self.left, self.right))
        return left.reshape(self.height, self.rank), right.reshape(self.rank, self.width)

    def read_into(self, left: Array, right: Array) -> None:
        """Fill arrays of these shapes, in any float dtype; A's is contiguous."""
        left[:] = self.left.floats(0, self.left.size).reshape(left.shape)
        storage = self.right.storage
        if hasattr(storage, "read_into") and storage.dtype == right.dtype:
            storage.read_into(0, right.reshape(-1))
        else:
            right[:] = self.right.floats(0, self.right.size).reshape(right.shape)

    def faulty(self) -> tuple[int, float] | None:
        """Return the position in its factor and the value of the first unusable number, or None."""
        return self.left.faulty() or self.right.faulty()

    def __getitem__(self, span: slice | Positions) -> Array:
        if isinstance(span, slice):
            span = np.arange(*span.indices(self.height * self.width))
        left, right = (factor.astype(np.float64, copy=False) for factor in self.factors())
        rows, columns = np.divmod(span, self.width)
        found: Array = self.scale * np.einsum("nr,rn->n", left[rows], right[:, columns])
        return found


class Bias(NamedTuple):
    """A bias of B as it was sent. Like B, it is multiplied by s."""

    module: str  # the name of the product
    sent: Tensor


def check_whole(*patterns: object) -> None:
    """Raise if only some tensors of adapters are asked for."""
    if any(pattern is not None for pattern in patterns):
        raise ConsilienceError(
            "adapters are aggregated and judged whole: leave out tensors and evidence"
        )


def parse_adapters(updates: Any, center: Any, lora: LoRA, around: LoRA | None = None) -> Updates:
    """Read the adapters of a round, with a product for each pair of factors.

    Unusable adapters are rejected, as by `parse`. The trees are those of the factors as sent.
    ``around`` is what the centre's factors mean, if it differs.
    """
    trees: dict[str, Tree] = {}
    found: dict[str, Any] = {}
    for party, update in named(updates).items():
        try:
            leaves, trees[party] = flatten(update)
            found[party] = products(leaves, lora.of(party))
        except UpdateError as error:
            found[party] = error
        except Exception as error:  # a foreign object may raise anything; only its own party pays
            found[party] = UpdateError(f"it cannot be read ({told(error)})")
    base = None if center is None else products(flatten(center)[0], around or lora)
    read = parse(found, base)
    return replace(read, trees=tuple(trees[party] for party in read.parties))


def products(leaves: Leaves, lora: LoRA) -> dict[str, Tensor]:
    """Return the tensors of an adapter by name, with a product for each pair of factors."""
    found: dict[str, Tensor] = {}
    sides: dict[str, dict[str, tuple[Path, Tensor]]] = {}
    modules: dict[str, str] = {}
    biases: dict[str, tuple[str, Tensor]] = {}
    for path, leaf in leaves.items():
        name = _name(path)
        _check_linear(name)
        part = _FACTOR.fullmatch(name)
        if part is None:
            found[name] = _on_this_machine(leaf)
            continue
        key = part["module"] + (part["adapter"] or "")
        modules[key] = part["module"].removeprefix(PREFIX)
        if part["kind"] == ".bias":
            biases[name] = key, leaf
        else:
            sides.setdefault(key, {})[part["side"]] = path, leaf
    if not sides:
        raise UpdateError("no LoRA factors in it: expected tensors such as 'x.lora_A.weight'")
    for key, pair in sides.items():
        if key in found:
            raise UpdateError(f"'{shown(key)}' is a tensor and a module with factors")
        found[key] = _product(modules[key], pair, lora)
    for name, (key, leaf) in biases.items():  # multiplied by s, like B
        if key not in sides:
            raise UpdateError(f"tensor '{shown(name)}' belongs to no factors")
        values = found[key].storage.scale * leaf.flat().floats(0, leaf.size).astype(np.float64)
        found[name] = Tensor(values, "float64", leaf.shape, Bias(key, leaf))
    return found


def _product(module: str, pair: Mapping[str, tuple[Path, Tensor]], lora: LoRA) -> Tensor:
    for side, other in ("AB", "BA"):
        if side not in pair:
            raise UpdateError(f"'{shown(module)}' has lora_{other} and no lora_{side}")
    (left_at, left), (right_at, right) = pair["B"], pair["A"]
    for side, factor in ("B", left), ("A", right):
        if factor.kind != "float" or len(factor.shape) < 2:
            raise UpdateError(
                f"'{shown(module)}': lora_{side} is {factor.dtype} of shape {factor.shape}, "
                "expected floats with two dimensions at least"
            )
    rank = right.shape[0]
    if left.shape[1:] != (rank,) + (1,) * (len(left.shape) - 2) or not rank:
        raise UpdateError(
            f"'{shown(module)}': lora_B has shape {left.shape} and lora_A {right.shape}: expected "
            "the same rank, one at least (and no groups in convolutions)"
        )
    scale = lora.scale(module, rank)
    product = Product(module, left.flat(), right.flat(), scale, (left_at, right_at))
    return Tensor(product, "float64", (left.shape[0], *right.shape[1:]), product)


def _on_this_machine(leaf: Tensor) -> Tensor:
    if getattr(getattr(leaf.storage, "device", None), "type", "cpu") == "cpu":
        return leaf
    return Tensor(leaf.flat().read(0, leaf.size), leaf.dtype, leaf.shape, leaf.source)


def _name(path: Path) -> str:
    if len(path) == 1 and isinstance(path[0], str):
        return path[0]
    raise UpdateError("expected the state dict of an adapter: tensors by name")


def _check_linear(name: str) -> None:
    for part, method in _OTHERS.items():
        if f".{part}" in name or name.startswith(part):
            raise UpdateError(
                f"tensor '{shown(name)}' is of {method}, which is not linear in its factors: merge "
                "it into its model first"
            )


def factored(updates: Updates) -> Updates:
    """Return the same adapters with the tensors as they were sent, of whatever rank."""

    def sent(leaves: Leaves) -> Leaves:
        found: Leaves = {}
        for path, leaf in leaves.items():
            if isinstance(leaf.storage, Product):
                pair = leaf.storage.left, leaf.storage.right
                found |= zip(leaf.storage.paths, pair, strict=True)
            else:
                found[path] = leaf.source.sent if isinstance(leaf.source, Bias) else leaf
        return found

    return replace(updates, leaves=tuple(map(sent, updates.leaves)), center=None)
