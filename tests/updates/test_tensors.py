"""One tensor in, one tensor out: the same library, dtype and shape, and the right numbers."""

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import consilience as cs
from consilience.passes import loops
from consilience.updates.tensors import Tensor, is_tensor, tensor, to_bfloat16

NUMPY = ["f2", "f4", "f8", ">f2", ">f4", ">f8", ml_dtypes.bfloat16]
TORCH = [torch.bfloat16, torch.float16, torch.float32, torch.float64]


class Exported:
    """Nothing but ``__dlpack__``."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **how):
        return self.array.__dlpack__(**how)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


class ArrayLike:
    """Nothing but ``__array__``."""

    def __init__(self, array):
        self.array = array

    def __array__(self, dtype=None, copy=None):
        return np.asarray(self.array, dtype)


class Namespaced(ArrayLike):
    """An array of a library that follows the array API standard."""

    def __array_namespace__(self):
        return Namespaced

    asarray = classmethod(lambda cls, array: cls(array))


def read(source) -> np.ndarray:
    leaf = tensor(source)
    return leaf.look(np.arange(leaf.size)).astype(float).reshape(leaf.shape)


def store(leaf, values):
    """Return storage of a tensor's dtype that holds these numbers, as the passes write it."""
    storage, rows = leaf.empty(), [np.asarray(values, float).reshape(-1)]
    loops.current.combine(rows, b"d", np.ones(1), storage, leaf.code, None, True)
    return storage


def round_trip(source):
    """Read a tensor, store what was read, and rebuild it."""
    leaf = tensor(source)
    return leaf.rebuild(store(leaf, read(source)))


def numbers(shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


@pytest.mark.parametrize("dtype", NUMPY, ids=str)
@pytest.mark.parametrize("shape", [(), (1,), (7,), (3, 4), (2, 0), (2, 3, 4)])
def test_numpy_round_trip(dtype, shape):
    array = np.asarray(numbers(shape)).astype(dtype)
    back = round_trip(array)
    assert type(back) is np.ndarray
    assert back.dtype == array.dtype
    assert back.shape == shape
    assert back.tobytes() == array.tobytes()
    np.testing.assert_array_equal(read(array), array.astype(float))
    assert tensor(array).kind == "float"


@pytest.mark.parametrize("dtype", TORCH, ids=str)
@pytest.mark.parametrize("shape", [(), (7,), (3, 4), (2, 0)])
def test_torch_round_trip(dtype, shape):
    array = torch.tensor(numbers(shape)).to(dtype)
    back = round_trip(array)
    assert isinstance(back, torch.Tensor)
    assert back.dtype == dtype
    assert back.shape == shape
    assert torch.equal(back, array)
    np.testing.assert_array_equal(read(array), array.double().numpy())


def test_only_part_is_read():
    class Watched:
        """A storage that tells what was asked of it."""

        dtype, size, asked = np.dtype("f4"), 10, []

        def __getitem__(self, places):
            self.asked.append(places.tolist())
            return np.arange(10, dtype=np.float32)[places]

    leaf = Tensor(Watched(), "float32", (10,), None).flat()
    np.testing.assert_array_equal(leaf.look(np.array([4, 5, 8])), [4, 5, 8])
    assert Watched.asked == [[4, 5, 8]]


@pytest.mark.parametrize("view", [lambda a: a.T, lambda a: a[::2], lambda a: a[:, ::-1]])
def test_strided_numpy(view):
    array = view(numbers((4, 6)))
    assert not array.flags.c_contiguous or array.shape[0] < 4
    np.testing.assert_array_equal(read(array), array)
    np.testing.assert_array_equal(round_trip(array), array)


@pytest.mark.parametrize("dtype", TORCH, ids=str)
def test_strided_torch(dtype):
    array = torch.tensor(numbers((4, 6))).to(dtype).T[::2]
    assert not array.is_contiguous()
    assert torch.equal(round_trip(array), array)
    np.testing.assert_array_equal(read(array), array.double().numpy())


def test_torch_with_a_gradient():
    array = torch.tensor(numbers(5), requires_grad=True)
    back = round_trip(torch.nn.Parameter(array))
    assert torch.equal(back, array.detach())
    assert not back.requires_grad


def test_torch_lazily_negated_view():
    array = torch.complex(torch.arange(3.0), torch.arange(3.0)).conj().imag
    assert array.is_neg()
    np.testing.assert_array_equal(read(array), [0, -1, -2])


def test_numbers_are_tensors_of_one():
    for number in [1.5, np.float32(1.5), np.float64(1.5)]:
        back = round_trip(number)
        assert back == 1.5
        assert np.ndim(back) == 0
        assert isinstance(back, np.generic)
    assert isinstance(round_trip(1.5), float)
    assert tensor(3).kind == "integer"
    assert tensor(True).kind == "bool"


@pytest.mark.parametrize("wrap", [Exported, ArrayLike])
@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
def test_anything_exported_comes_back_as_numpy(wrap, dtype):
    array = numbers((3, 2)).astype(dtype)
    assert is_tensor(wrap(array))
    back = round_trip(wrap(array))
    assert type(back) is np.ndarray
    assert back.dtype == array.dtype
    np.testing.assert_array_equal(back, array)


def test_dlpack_of_torch():
    array = torch.tensor(numbers((3, 2)), dtype=torch.float32)
    np.testing.assert_array_equal(round_trip(Exported(array)), array.numpy())


def test_array_api_libraries_get_their_own_back():
    back = round_trip(Namespaced(numbers(3)))
    assert isinstance(back, Namespaced)
    np.testing.assert_array_equal(back.array, numbers(3))


@pytest.mark.parametrize(
    ("source", "named"),
    [
        (torch.zeros(2, dtype=torch.float8_e4m3fn), "float8_e4m3fn"),
        (np.zeros(2, ml_dtypes.float8_e5m2), "float8_e5m2"),
        (np.array(["a", "b"]), "str"),
        (np.array(["2026-01-01"], "M8[D]"), "datetime64"),
        (np.array([None, 1.0]), "ndarray"),
        (torch.zeros(2).to_sparse(), "sparse"),
        (torch.zeros(2, device="meta"), "meta"),
        (Exported(torch.zeros(2, dtype=torch.bfloat16)), "Exported"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_no_tensor_of_numbers_is_rejected_by_name(source, named):
    with pytest.raises(cs.UpdateError, match=named):
        tensor(source)


def test_complex_has_a_kind_of_its_own():
    assert tensor(np.zeros(2, complex)).kind == "complex128"
    assert tensor(torch.zeros(2, dtype=torch.complex64)).kind == "complex64"


def test_long_double_is_read_as_double_and_comes_back():
    array = numbers(5).astype(np.longdouble)
    assert tensor(array).code == b"d"
    back = round_trip(array)
    assert back.dtype == np.longdouble
    np.testing.assert_array_equal(back, array)
    sent = [np.ones(2, np.longdouble), np.zeros(2), np.full(2, "1e400", np.longdouble)]
    found = cs.aggregate(sent)
    assert found.rejected == {"2": "the update holds inf at position 0"}
    np.testing.assert_array_equal(found.value, [0.5, 0.5])


def test_wide_means_more_than_float32():
    wide = {dtype: tensor(np.zeros(1, dtype)).wide for dtype in ["f2", "f4", "f8"]}
    assert wide == {"f2": False, "f4": False, "f8": True}
    assert not tensor(torch.zeros(1, dtype=torch.bfloat16)).wide


FLOATS = st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=20)


@given(FLOATS)
def test_bfloat16_rounds_as_torch_does(values):
    exact = np.array(values, np.float32)
    expected = torch.tensor(exact).to(torch.bfloat16)
    leaf = tensor(torch.zeros(exact.size, dtype=torch.bfloat16))
    assert torch.equal(leaf.rebuild(to_bfloat16(exact)), expected)
    # What is formed is finite: rounding makes no number infinite.
    largest = torch.finfo(torch.bfloat16).max
    assert torch.equal(leaf.rebuild(store(leaf, exact)), expected.clamp(-largest, largest))
    np.testing.assert_array_equal(read(expected), expected.double().numpy())


def test_bfloat16_ties_go_to_even():
    leaf = tensor(np.zeros(4, ml_dtypes.bfloat16))
    step = 2.0**-7  # the spacing of bfloat16 above one
    storage = store(leaf, [1 + step / 2, 1 + 3 * step / 2, 1 + 0.51 * step, -1 - step / 2])
    np.testing.assert_array_equal(
        leaf.rebuild(storage).astype(float), [1, 1 + 2 * step, 1 + step, -1]
    )
