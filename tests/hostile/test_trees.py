"""Objects that are not what they seem: each costs the party that sent it, and nobody else."""

import itertools
import re
import time
from collections import UserDict
from collections.abc import Mapping, Sequence

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import consilience as cs

pytestmark = pytest.mark.filterwarnings("ignore:.*nested tensors.*", "ignore:.*MaskedTensor.*")


def deep(depth):
    tree = np.ones(4)
    for _ in range(depth):
        tree = [tree]
    return tree


def itself():
    tree = [np.ones(4)]
    tree.append(tree)
    return tree


def bushy():
    tree = []
    tree.extend([tree] * 8)
    return tree


class Endless(Sequence):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return 1.0

    def __iter__(self):
        return itertools.repeat(1.0)


class Refusing(UserDict):
    def items(self):
        raise RuntimeError("no")


class Odd(Mapping):
    """Other items each time it is asked."""

    times = 0

    def __len__(self):
        return 1

    def __iter__(self):
        return iter(["w"])

    def __getitem__(self, key):
        self.times += 1
        return np.ones(4) if self.times == 1 else {"w": None}


class Raises:
    def __array__(self, dtype=None, copy=None):
        raise KeyError("no array today")


class MuteError(Exception):
    def __str__(self):
        raise RuntimeError("I do not say")


class Speechless:
    def __array__(self, dtype=None, copy=None):
        raise MuteError


class NoArray:
    def __array__(self, dtype=None, copy=None):
        return [1, 2]


class Secretive:
    def __getattr__(self, name):
        raise RuntimeError(name)


class Key:
    """Equal to the name everybody uses, and then not."""

    def __hash__(self):
        return hash("w")

    def __eq__(self, other):
        raise RuntimeError("not comparable")


class Liar(np.ndarray):
    shape = property(lambda self: (10**9,))
    dtype = property(lambda self: np.dtype("M8[D]"))

    def __array_function__(self, *args, **kwargs):
        raise RuntimeError("no function")

    def __array_ufunc__(self, *args, **kwargs):
        raise RuntimeError("no ufunc")

    def reshape(self, *shape):
        raise RuntimeError("no reshape")


class TorchLiar(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return torch.zeros(1).as_subclass(TorchLiar)


def fake():
    with FakeTensorMode():
        return torch.zeros(4)


def freed():
    tensor = torch.ones(4)
    tensor.untyped_storage().resize_(0)
    return tensor


def ragged(**how):
    return torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)], **how)


REJECTED = {
    "deep": (lambda: deep(5000), "nested more than 64 deep"),
    "itself": (itself, "nested more than 64 deep"),
    "bushy": (bushy, "deep|more than"),
    "endless": (Endless, "more than 131072"),
    "many": (lambda: [np.ones(1)] * 10**6, "has 1000000 parts: send an array"),
    "numbers": (lambda: [1.0] * 10**6, r"has shape \(1000000,\), expected \(4,\)"),
    "huge integers": (lambda: [1, 2, 3, 10**400], "it cannot be read"),
    "range": (lambda: range(10**15), "parts: send an array"),
    "refusing": (lambda: Refusing(w=1), "RuntimeError: no"),
    "raises": (Raises, "KeyError: 'no array today'"),
    "speechless": (Speechless, "MuteError"),
    "no array": (NoArray, "cannot be read"),
    "secretive": (Secretive, "RuntimeError"),
    "generator": (lambda: itertools.count(), "found count"),
    "key": (lambda: {Key(): np.ones(4)}, "names that are text or numbers, found Key"),
    "long number": (lambda: {10**5000: np.ones(4)}, "names that are text or numbers"),
    "object": (lambda: np.array([1, 2, 3, None]), "expected a tensor of numbers"),
    "record": (lambda: np.zeros(4, "f8,f8"), "found void"),
    "huge": (lambda: np.broadcast_to(1.0, (10**9, 10**6)), "numbers repeated"),
    "huge row": (lambda: np.broadcast_to(1.0, 10**15), "numbers repeated"),
    "huge torch": (lambda: torch.ones(1, 1).expand(10**9, 10**6), "numbers repeated"),
    "large": (lambda: np.broadcast_to(1.0, (2**10, 2**16)), "shape"),
    "matrix": (lambda: np.ones((1, 4)).view(np.matrix), r"shape \(1, 4\)"),
    "huge integer": (lambda: 10**400, "found int"),
    "class": (lambda: np.ndarray, "expected a tensor of numbers"),
    "nested": (ragged, "Tensor"),
    "jagged": (lambda: ragged(layout=torch.jagged), "NotImplementedError|NestedTensor"),
    "fake": (fake, "found FakeTensor"),
    "meta": (lambda: torch.zeros(4, device="meta"), "meta"),
    "sparse": (lambda: torch.ones(4).to_sparse(), "sparse"),
    "freed": (freed, "storage was freed"),
    "masked": (
        lambda: np.ma.masked_array(np.ones(4), [0, 1, 1, 0]),
        "2 of 4 numbers are masked",
    ),
}


@pytest.mark.parametrize("case", REJECTED)
@pytest.mark.parametrize("wrap", [lambda x: x, lambda x: {"w": x}], ids=["bare", "tree"])
def test_what_cannot_be_read_costs_its_party_alone(case, wrap):
    make, reason = REJECTED[case]
    honest = {p: wrap(np.arange(4.0) + j) for j, p in enumerate("bcd")}
    started = time.process_time()
    found = cs.aggregate({"a-eve": wrap(make()), **honest}, "mean")
    assert time.process_time() - started < 20  # endless it would be
    assert list(found.rejected) == ["a-eve"]
    assert re.search(reason, found.rejected["a-eve"]), found.rejected
    assert len(found.rejected["a-eve"]) < 300
    value = found.value if wrap(0) == 0 else found.value["w"]
    np.testing.assert_allclose(value, np.arange(4.0) + 1)


@pytest.mark.parametrize(
    "odd",
    [
        lambda: {"w": np.ones(4).view(Liar)},
        lambda: Odd(),
        lambda: {np.str_("w"): np.ma.masked_array(np.ones(4))},
        lambda: {"w": np.broadcast_to(1.0, 4)},
        lambda: {"w": torch.ones(4).as_subclass(TorchLiar)},
        lambda: {"w": torch.ones(1, dtype=torch.float64).expand(4)},
    ],
    ids=["liar", "odd", "no mask", "broadcast", "torch liar", "expanded"],
)
def test_what_can_be_read_is_read_once(odd):
    """Sound numbers count, and the consensus is made of what most others sent."""
    honest = {p: {"w": np.full(4, 2.0 + j)} for j, p in enumerate("bc")}
    found = cs.aggregate({"a": odd(), **honest}, "mean")
    assert not found.rejected
    assert type(found.value) is dict
    assert type(found.value["w"]) is np.ndarray
    np.testing.assert_array_equal(found.value["w"], np.full(4, 2.0))


def test_a_structure_of_ones_own_does_not_fill_the_memory():
    """With two parties nobody knows whose structure is the right one."""
    found = cs.aggregate({"a": {"w": np.broadcast_to(1.0, (10**9, 10**6))}, "b": {"w": np.ones(2)}})
    assert list(found.rejected) == ["a"]


def test_masked_rows_of_an_array():
    X = np.ma.masked_array(np.arange(12.0).reshape(3, 4))
    X[1, 2] = np.ma.masked
    found = cs.aggregate(X, "mean")
    assert found.rejected == {"1": "the update: 1 of 4 numbers are masked: fill them in"}
    np.testing.assert_array_equal(found.value, [4, 5, 6, 7])


def test_names_are_fit_for_a_line(caplog):
    honest = {p: {"w": np.ones(2)} for p in "bcd"}
    bad = {"eve\nann rejected": {"\x1b[2Jw" + "w" * 10**6: np.ones(2)}}
    reasons = cs.aggregate({**honest, **bad}, "mean").rejected
    assert all(len(reason) < 300 and reason.isprintable() for reason in reasons.values())
    assert all(record.getMessage().isprintable() for record in caplog.records)
