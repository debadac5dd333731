"""PEFT folders of strangers, without PEFT: what they say is checked, what they break is theirs."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import consilience as cs
from consilience.engines.files import adapters as engine
from lora import SHAPES, adapter, flat, formed, name, update

CONFIG, TENSORS = "adapter_config.json", "adapter_model.safetensors"


def party(seed: int, rank: int = 8):
    near = {module: full + 0.1 * update(seed)[module] for module, full in update(0).items()}
    return adapter(near, rank, 16 / rank, seed)


def save(folder: str, tensors, rank: int = 8, **settings) -> None:
    Path(folder).mkdir()
    save_file(tensors, Path(folder, TENSORS))
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": 16, **settings}
    Path(folder, CONFIG).write_text(json.dumps(config))


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    for j in range(1, 5):
        save(f"p{j}", party(j))


def folders(*more: str) -> list[str]:
    return ["p1", "p2", "p3", "p4", *more]


def merged(folder: str = "out"):
    config = json.loads(Path(folder, CONFIG).read_text())
    assert config["lora_alpha"] == config["r"]
    return flat(formed(load_file(Path(folder, TENSORS)), config["r"]))


def expected():
    return np.mean([flat(formed(party(j), 16)) for j in range(1, 5)], axis=0)


def off(found, truth) -> float:
    return float(np.linalg.norm(found - truth) / np.linalg.norm(truth))


def test_files_and_memory_give_the_same():
    found = cs.aggregate_files(folders(), "out", seed=0)
    assert found.reasons == {}
    parties = {p: party(int(p[1])) for p in folders()}
    within = cs.aggregate(parties, adapters=cs.LoRA(16, rank=8), seed=0)
    assert found.weights == within.weights
    assert off(merged(), flat(formed(within.value, 16))) < 1e-6
    assert sorted(os.listdir("out")) == [CONFIG, TENSORS]


def break_config(kind: str) -> None:
    path = Path("odd", CONFIG)
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "dangling":
        path.symlink_to("nowhere")
    else:
        text = {
            "rubbish": "{",
            "list": "[]",
            "twice": '{"peft_type": "LORA", "peft_type": "LORA"}',
            "deep": '{"a":' * 100_000,
            "huge": json.dumps({"a": "x" * (1 << 24)}),
            "nan": '{"peft_type": "LORA", "r": 8, "lora_alpha": NaN}',
            "vast": '{"peft_type": "LORA", "r": 8, "lora_alpha": 1' + 400 * "0" + "}",
            "null": '{"peft_type": "LORA", "r": 8, "lora_alpha": null}',
            "nulls": '{"peft_type": "LORA", "r": 8, "alpha_pattern": {"up": null}}',
            "zero": '{"peft_type": "LORA", "r": 8, "lora_alpha": 0}',
            "text": '{"peft_type": "LORA", "r": "8", "lora_alpha": 16}',
            "type": '{"peft_type": {"a": "\\u001b[2J"}}',
            "begun": '{"peft_type": "LORA", "r": 8, "init_lora_weights": ["pissa"]}',
        }
        path.write_text(text[kind])


KINDS = ["pipe", "folder", "dangling", "rubbish", "list", "twice", "deep", "huge", "nan", "zero"]


@pytest.mark.parametrize("kind", [*KINDS, "vast", "null", "nulls", "text", "type", "begun"])
def test_a_broken_configuration_costs_its_party_alone(kind: str):
    save("odd", party(9))
    break_config(kind)
    found = cs.aggregate_files(folders("odd"), "out")
    assert list(found.rejected) == ["odd"]
    assert CONFIG in found.rejected["odd"]
    assert found.rejected["odd"].isprintable()
    assert off(merged(), expected()) < 0.05


def test_a_base_that_says_too_much_is_an_error_that_names_it():
    save("odd", party(9))
    break_config("vast")
    with pytest.raises(cs.ConsilienceError, match=r"odd/adapter_config\.json: alpha is a number"):
        cs.aggregate_files(folders(), "out", center="odd")
    assert not Path("out").exists()


def test_a_name_of_two_lines_is_the_name_of_a_factor():
    tensors = party(9)
    tensors[name("a\nparty p1 rejected: b", "A.weight")] = tensors[name("layers.1.up", "A.weight")]
    save("odd", tensors)
    found = cs.aggregate_files(folders("odd"), "out")
    assert found.rejected == {"odd": "'a\\nparty p1 rejected: b' has lora_A and no lora_B"}


@pytest.mark.parametrize("kind", ["missing", "cut", "nan", "link"])
def test_broken_tensors_cost_their_party_alone(kind: str):
    save("odd", party(9))
    path = Path("odd", TENSORS)
    if kind == "missing":
        path.unlink()
    elif kind == "cut":
        path.write_bytes(path.read_bytes()[:-1])
    elif kind == "link":
        path.unlink()
        path.symlink_to("/dev/zero")
    else:
        tensors = party(9)
        tensors[name("layers.1.up", "B.weight")][3, 1] = np.nan
        save_file(tensors, path)
    found = cs.aggregate_files(folders("odd"), "out")
    assert list(found.rejected) == ["odd"]
    assert off(merged(), expected()) < 0.05


def test_a_file_that_changes_between_the_passes_costs_its_party_alone(monkeypatch):
    monkeypatch.setattr("consilience.engines.files.aggregate._KEPT", 0)
    save("odd", party(9))
    begin = engine.FolderOfFactors.begin

    def meddle(self, ranks):
        begin(self, ranks)
        with open("odd/adapter_model.safetensors", "r+b") as file:
            file.seek(-4, 2)
            file.write(b"\0\0\0\0")

    monkeypatch.setattr(engine.FolderOfFactors, "begin", meddle)
    found = cs.aggregate_files(folders("odd"), "out")
    assert "was changed while it was read" in found.rejected["odd"]
    assert off(merged(), expected()) < 0.05
    assert [path for path in os.listdir() if path.endswith(".partial")] == []


def test_a_dry_run_writes_nothing():
    found = cs.aggregate_files(folders(), None, rank=3)
    assert found.value is None
    assert found.diagnostics["cut"] > 0
    assert sorted(os.listdir()) == folders()


def test_a_folder_with_something_in_it_is_left_alone():
    with pytest.raises(cs.ConsilienceError, match="one of the inputs"):
        cs.aggregate_files(folders(), "p1")
    Path("full").mkdir()
    Path("full", "mine").touch()
    with pytest.raises(cs.ConsilienceError, match="with something in it"):
        cs.aggregate_files(folders(), "full")


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_adapters_go_into_a_model_in_one_file(dtype: str):
    random = np.random.default_rng(0)
    base = {f"{m}.weight": random.standard_normal(s).astype(dtype) for m, s in SHAPES.items()}
    base["else"] = np.arange(5)
    save_file(base, "base.safetensors")
    found = cs.aggregate_files(folders(), "out.safetensors", into="base.safetensors")
    assert found.diagnostics["cut"] == 0
    whole = load_file("out.safetensors")
    assert {k: v.dtype for k, v in whole.items()} == {k: v.dtype for k, v in base.items()}
    assert (whole["else"] == base["else"]).all()
    parts = {p: formed(party(int(p[1])), 16) for p in folders()}
    for module in SHAPES:
        key = name(module, "B.weight")
        added = sum(w * parts[p][key] for p, w in found.weights.items())
        apart = whole[f"{module}.weight"] - (base[f"{module}.weight"].astype(float) + added)
        assert np.abs(apart).max() < (1e-5 if dtype == "float32" else 0.02)


def test_progress_is_told_and_ends_the_merge():
    told = []
    cs.aggregate_files(folders(), "out", progress=lambda *step: told.append(step))
    assert {step for step, _, _ in told} == {"evidence", "combination"}
    assert all(done <= total for _, done, total in told)

    def end(*_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cs.aggregate_files(folders(), "other", progress=end)
    assert "other" not in os.listdir()
