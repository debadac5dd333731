"""Trees of tensors: what is read quickly is what would be read at length."""

from collections import OrderedDict

import numpy as np
import pytest
import torch

from consilience.updates.parsing import parse
from consilience.updates.trees import alike, flatten

ODD = {
    "another name": lambda u: {"a": u["a"], "c": u["b"]},
    "another order": lambda u: {"b": u["b"], "a": u["a"]},
    "one more": lambda u: {**u, "c": u["b"]},
    "another shape": lambda u: {**u, "a": u["a"].T},
    "another dtype": lambda u: {**u, "b": u["b"].astype(np.int32)},
    "strided": lambda u: {**u, "b": np.arange(8)[::2]},
    "of the other order of bytes": lambda u: {**u, "b": u["b"].astype(u["b"].dtype.newbyteorder())},
    "a class of its own": lambda u: {**u, "b": np.ma.masked_array(u["b"])},
    "another container": lambda u: OrderedDict(u),
    "deeper": lambda u: {"a": {"b": u["a"]}, "b": u["b"]},
    "numbers": lambda u: {"a": u["a"], "b": 1.0},
}


@pytest.mark.parametrize("odd", ODD)
def test_what_is_not_plainly_alike_is_read_at_length(odd):
    update = {"a": np.zeros((2, 3), np.float32), "b": np.arange(4)}
    leaves, tree = flatten(update)
    assert alike(ODD[odd](update), leaves, tree) is None
    other = {name: x + 1 for name, x in update.items()}
    found = alike(other, leaves, tree)
    for path, leaf in flatten(other)[0].items():
        same = found[path]
        assert same.storage.ndim == 1
        assert np.shares_memory(same.storage, other[path[0]])
        assert (same.dtype, same.shape, same.source is leaf.source) == (
            leaf.dtype,
            leaf.shape,
            True,
        )


@pytest.mark.parametrize("kind", [np.ma.masked_array, torch.from_numpy])
def test_who_comes_after_another_kind_of_tensor_keeps_its_own(kind):
    leaves, tree = flatten({"w": kind(np.zeros(4))})
    assert alike({"w": np.zeros(4)}, leaves, tree) is None


def test_whoever_comes_after_an_odd_one_is_read_as_it_is():
    big = np.arange(4, dtype=">f4")
    updates = {"a": {"w": big}, "b": {"w": big + 1}, "c": {"w": big.astype("<f4")}}
    for leaves, expected in zip(parse(updates).leaves, updates.values(), strict=True):
        np.testing.assert_array_equal(leaves["w",].storage, expected["w"])
        assert leaves["w",].storage.dtype.isnative
