"""Torch tensors that stay on their device. The engine is forced here on tensors of the CPU, which
torch treats like any other device."""

from dataclasses import replace

import numpy as np
import pytest

import consilience as cs
from consilience.deliberation import deliberate
from consilience.engines.device import Device, devices, on_this_machine
from consilience.estimators.catalogue import resolve
from consilience.passes.sampling import SMALL
from consilience.updates.parsing import parse
from consilience.updates.tensors import Tensor

torch = pytest.importorskip("torch")


def kept_there(updates, center=None):
    """Return updates whose storage is torch's, as that of an accelerator's tensors is."""

    def there(leaves):
        return {
            path: Tensor(leaf.source.detach().reshape(-1), leaf.dtype, leaf.shape, leaf.source)
            for path, leaf in leaves.items()
        }

    found = parse(updates, center)
    around = None if found.center is None else there(found.center)
    return replace(found, leaves=tuple(map(there, found.leaves)), center=around)


def drawn(parties=7, size=1000, dtype=torch.float32, seed=0):
    random = np.random.default_rng(seed)
    truth = random.standard_normal(size)
    X = truth + random.uniform(0.5, 2, (parties, 1)) * random.standard_normal((parties, size))
    return {
        f"p{j}": {
            "w": torch.tensor(x[: size // 4].reshape(2, -1), dtype=dtype),
            "b": [torch.tensor(x[size // 4 :], dtype=dtype)],
            "count": torch.tensor([j % 2, 3]),
        }
        for j, x in enumerate(X)
    }


def on_device(updates, method="pairwise", center=None, **options):
    engine = Device(kept_there(updates, center))
    return deliberate(engine, resolve(method), **options)


@pytest.mark.parametrize("method", cs.methods())
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_the_same_consensus_as_in_memory(method, dtype):
    updates = drawn(dtype=dtype)
    center = dict(updates["p3"])
    for around in (None, center):
        found, expected = (
            on_device(updates, method, around),
            cs.aggregate(updates, method, None, around),
        )
        assert found.weights == pytest.approx(expected.weights, rel=1e-4, abs=1e-6)
        for one, other in (("w", None), ("b", 0), ("count", None)):
            ours = found.value[one] if other is None else found.value[one][other]
            theirs = expected.value[one] if other is None else expected.value[one][other]
            assert type(ours) is torch.Tensor
            assert ours.dtype == theirs.dtype
            assert ours.shape == theirs.shape
            close = torch.finfo(dtype).eps if ours.dtype.is_floating_point else 0
            torch.testing.assert_close(ours, theirs, rtol=4 * close, atol=1e-4 + 4 * close)


def test_who_sends_nan_is_rejected_there_too():
    updates = drawn()
    updates["p2"]["b"][0][17] = torch.nan
    updates["p4"]["w"][1, 3] = torch.inf
    found = on_device(updates)
    assert found.rejected == {
        "p2": "tensor 'b.0' holds nan at position 17",
        "p4": "tensor 'w' holds inf at position 128",
    }
    assert torch.isfinite(found.value["b"][0]).all()


def test_coordinate_by_coordinate_without_the_faulty():
    updates = drawn()
    updates["p2"]["b"][0][17] = torch.nan
    found = on_device(updates, "coordinate-median")
    assert set(found.rejected) == {"p2"}
    assert torch.isfinite(found.value["b"][0]).all()


def test_large_numbers_are_formed_in_double():
    updates = [torch.full((500,), 3e38), torch.full((500,), 3e38), torch.full((500,), -1e38)]
    value = on_device(updates, "mean").value
    torch.testing.assert_close(value, torch.full((500,), 5e38 / 3))


@pytest.mark.parametrize("method", ["pairwise", "trimmed-mean"])
@pytest.mark.parametrize("scale", [1e-25, 1e25])
def test_squares_that_single_precision_cannot_hold(method, scale):
    X = np.random.default_rng(0).standard_normal((9, SMALL + 1)).astype(np.float32)
    X[8] *= 30
    expected = on_device(list(torch.from_numpy(X)), method)
    found = on_device(list(torch.from_numpy(X * np.float32(scale))), method)
    assert found.weights == pytest.approx(expected.weights, rel=1e-4)
    noise = {p: noise / scale for p, noise in found.noise.items()}
    assert noise == pytest.approx(expected.noise, rel=1e-4)
    assert found.uncorroborated == pytest.approx(expected.uncorroborated, rel=1e-4)


def test_with_a_memory_and_a_sample():
    random = np.random.default_rng(1)
    memory = cs.Memory(seed=0)
    for _ in range(2):
        truth = random.standard_normal(1_500_000, np.float32)
        X = truth + random.standard_normal((6, truth.size), np.float32)
        found = on_device(list(torch.from_numpy(X)), memory=memory, seed=3)
        assert found.diagnostics["coordinates_seen"] < truth.size
        np.testing.assert_allclose(found.value, X.mean(axis=0), atol=0.1)
    assert np.shape(memory.trails.means) == (6, 8192)


def test_where_updates_lie_decides_the_engine():
    updates = drawn(3)
    assert devices(parse(updates)) == {None}
    back = on_this_machine(kept_there(updates))
    assert all(isinstance(leaf.storage, np.ndarray) for leaf in back.leaves[0].values())
    meta = torch.device("meta")
    moved = kept_there(updates)
    for leaves in moved.leaves:
        for path in moved.floats:
            leaves[path].storage = leaves[path].storage.to(meta)
    assert devices(moved) == {meta}
