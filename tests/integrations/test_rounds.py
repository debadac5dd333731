"""A federation's model: the next one is like the present one."""

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from consilience.integrations.rounds import Rounds

DTYPES = ["float16", "float32", "float64", ml_dtypes.bfloat16]


def sent(dtype: Any, size: int = 40) -> dict[str, dict[str, Any]]:
    random = np.random.default_rng(0)
    return {f"p{j}": {"w": (random.standard_normal(size) + 3).astype(dtype)} for j in range(5)}


@pytest.mark.parametrize("own", DTYPES)
@pytest.mark.parametrize("theirs", DTYPES)
@pytest.mark.parametrize("step", [None, 0.5])
def test_the_model_keeps_its_dtype(own: Any, theirs: Any, step: float | None):
    model = {"w": np.full(40, 2, own), "kept": np.ones(3, own), "count": np.array(7)}
    updates = {p: {**u, "kept": np.zeros(3), "count": 9} for p, u in sent(theirs).items()}
    ended = Rounds("mean", step=step, tensors=["w", "count"]).close(1, updates, model)
    mean = np.mean([update["w"].astype(float) for update in updates.values()], axis=0)
    expected = mean if step is None else 2 + step * mean
    assert ended.model is not None
    assert {name: x.dtype for name, x in ended.model.items()} == {
        name: x.dtype for name, x in model.items()
    }
    exact = max(float(ml_dtypes.finfo(dtype).eps) for dtype in (own, theirs))
    np.testing.assert_allclose(ended.model["w"].astype(float), expected, rtol=2 * exact)
    assert ended.model["kept"].tolist() == [1, 1, 1]


@pytest.mark.parametrize("step", [None, 1.0])
def test_a_model_of_bfloat16_is_rounded_to_the_nearest_and_never_infinite(step: float | None):
    values = np.array([1 + 2**-8, 1 + 3 * 2**-8, 1.001, 3.4e38, -3.4e38, 1e45])
    updates = {f"p{j}": {"w": values} for j in range(4)}
    model = {"w": np.zeros(6, ml_dtypes.bfloat16)}
    found = Rounds("mean", step=step).close(1, updates, model).model
    assert found is not None
    largest = float(ml_dtypes.finfo(ml_dtypes.bfloat16).max)
    expected = [1, 1 + 2**-6, 1, largest, -largest, largest]
    assert found["w"].astype(float).tolist() == expected


def test_a_run_of_bfloat16_goes_on_from_its_checkpoint(tmp_path: Path):
    model = {"w": np.ones(40, ml_dtypes.bfloat16), "kept": np.ones(2, ml_dtypes.bfloat16)}
    rounds = Rounds(checkpoint=tmp_path, tensors="w")
    updates = {p: {**u, "kept": np.zeros(2)} for p, u in sent(ml_dtypes.bfloat16).items()}
    ended = rounds.close(1, updates, model)
    found = Rounds(checkpoint=tmp_path).resume(model)
    assert found is not None
    assert ended.model is not None
    for name, tensor in ended.model.items():
        assert found.model[name].dtype == ml_dtypes.bfloat16
        np.testing.assert_array_equal(found.model[name], tensor)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("step", [None, 1.0])
def test_a_model_of_torch_is_read(dtype: str, step: float | None):
    torch = pytest.importorskip("torch")
    model = {"w": torch.ones(40, dtype=getattr(torch, dtype)), "count": torch.tensor(7)}
    updates = {p: {**u, "count": 7} for p, u in sent("float32").items()}
    ended = Rounds("mean", step=step).close(1, updates, model)
    assert ended.note is None
    assert ended.model is not None
    expected = np.mean([u["w"] for u in updates.values()], axis=0) + (1 if step else 0)
    np.testing.assert_allclose(ended.model["w"], expected, rtol=2**-7)
    assert ended.model["count"] == 7
