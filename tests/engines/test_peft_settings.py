"""What the configurations of PEFT folders say, and who is heard about it."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import consilience as cs
from consilience.engines.files import peft


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def small(folder: str, seed: int, bad: float = 0.0, **said) -> str:
    """Write an adapter of one square matrix by hand; the parties' factors are nearly the same."""
    common, own = np.random.default_rng(99), np.random.default_rng(seed)
    tensors = {
        f"base_model.model.l.lora_{name}.weight": (
            common.standard_normal(shape) + 0.01 * own.standard_normal(shape) + bad
        ).astype(np.float32)
        for name, shape in {"A": (2, 8), "B": (8, 2)}.items()
    }
    Path(folder).mkdir()
    save_file(tensors, f"{folder}/adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": 2, "lora_alpha": 2, "target_modules": ["l"], **said}
    Path(folder, "adapter_config.json").write_text(json.dumps(config))
    return folder


def added(folders, center=None) -> np.ndarray:
    """Return what is added to a base of zeros."""
    save_file({"l.weight": np.zeros((8, 8), np.float32)}, "zeros.safetensors")
    out = f"{len(list(Path().iterdir()))}.safetensors"
    cs.aggregate_files({f: f for f in folders}, out, into="zeros.safetensors", center=center)
    return load_file(out)["l.weight"]


def test_who_is_rejected_for_its_numbers_does_not_turn_a_matrix():
    honest = [small(f"p{j}", j) for j in range(2)]
    garbage = [small(f"q{j}", j, bad=np.nan, fan_in_fan_out=True) for j in range(3)]
    np.testing.assert_allclose(added([*honest, *garbage]), added(honest), atol=1e-6)


def test_a_centre_that_does_not_say_how_a_matrix_lies_leaves_it_to_the_parties():
    turned = [small(f"p{j}", j, fan_in_fan_out=True) for j in range(3)]
    silent, said = small("silent", 9), small("said", 9, fan_in_fan_out=True)
    other = small("other", 9, fan_in_fan_out=False)
    expected = added(turned, said)
    np.testing.assert_array_equal(added(turned, silent), expected)
    assert added([small(f"r{j}", j) for j in range(3)], other).shape == (8, 8)
    np.testing.assert_allclose(added(["r0", "r1", "r2"], silent), expected.T, atol=1e-6)


def configured(key: str, *values, weights=None):
    """Return a setting of the merged adapter, given the parties'; None is unsaid."""
    configs = [{} if value is None else {key: value} for value in values]
    weights = weights or [1 / len(values)] * len(values)
    return json.loads(peft.configuration(configs, weights, {"l": 2})).get(key)


def test_settings_are_those_of_most_of_the_weight():
    base = "base_model_name_or_path"
    assert configured(base, "a/llama", "b/llama", "c/llama", None, None) == "llama"
    assert configured(base, "a/llama", "a/llama", "b/llama") == "a/llama"
    assert configured(base, "a/llama", "b/llama", "evil/llama", weights=[0.3, 0.3, 0.4]) == "llama"
    assert configured(base, "llama", "", "") == "llama"
    assert configured(base, "x/llama", "y/bert") is None
    assert configured("lora_dropout", 0.1, 0.2, 0.3, weights=[0.3, 0.3, 0.4]) is None
    assert configured("lora_dropout", 0.1, None, None) is None
    assert configured("lora_dropout", 0.1, 0.1, None) == 0.1
    assert configured("target_modules", ["a"], ["b"], ["b"], ["c"]) == ["b"]
    assert configured("target_modules", ["a"], None, None) == ["a"]
