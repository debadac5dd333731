"""PEFT folders for `aggregate_files`: sound adapters beside some that lie about themselves.

The second opinion on a folder is json's and safetensors' own, and every ΔW is formed in full.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.random import Generator

import consilience as cs
from fuzz import safetensors_files
from fuzz.damage import NASTY, damaged, lied, written
from fuzz.oracle import check_error, check_reasons, expect, listening

CONFIG, TENSORS = "adapter_config.json", "adapter_model.safetensors"
_BEFORE = "base_model.model."
_METHODS = ("pairwise", "pairwise", "mean", "ivar-vb", "krum")
_NEAR = {"float16": 2e-2, "float32": 1e-5, "float64": 1e-5}
Adapter = dict[str, Any]


def case(random: Generator, folder: Path) -> None:
    """Merge sound folders with hostile ones."""
    shapes = {
        f"layers.{k}.proj": (int(random.integers(3, 12)), int(random.integers(3, 12)))
        for k in range(int(random.integers(1, 4)))
    }
    dtype = str(random.choice(list(_NEAR)))
    truth = (
        {m: random.standard_normal((s[0], 2)) for m, s in shapes.items()},
        {m: random.standard_normal((2, s[1])) for m, s in shapes.items()},
    )
    hostile = int(random.integers(1, 3))
    paths = {f"p{j}": folder / f"p{j}" for j in range(int(random.integers(hostile + 2, 6)))}
    for path in paths.values():
        _write(random, path, *_adapter(random, truth, dtype))
    unusable = {}
    for j in range(hostile):
        paths[f"e{j}"] = path = folder / f"e{j}"
        config, tensors = _adapter(random, truth, dtype)
        _write(random, path, config, tensors)
        way = _WAYS[int(random.integers(len(_WAYS)))]
        unusable[f"e{j}"] = way(random, path, config, tensors)
    _judge(random, folder, paths, unusable, dtype)


def _adapter(random: Generator, truth: Any, dtype: str) -> tuple[dict[str, Any], Adapter]:
    """Return an adapter near the truth, of a rank and in a gauge of its own."""
    rank, alpha = int(random.integers(2, 6)), float(random.choice([1, 8, 16]))
    rslora = bool(random.random() < 0.2)
    scale = alpha / (rank**0.5 if rslora else rank)
    tensors = {}
    for module, left in truth[0].items():
        turn = np.linalg.qr(random.standard_normal((rank, rank)))[0][:2]
        noise = 0.05 * random.standard_normal((len(left), rank))
        tensors[f"{_BEFORE}{module}.lora_B.weight"] = ((left @ turn + noise) / scale).astype(dtype)
        right = turn.T @ truth[1][module]
        tensors[f"{_BEFORE}{module}.lora_A.weight"] = right.astype(dtype)
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": alpha, "use_rslora": rslora}
    more = {"base_model_name_or_path": "a/b", "task_type": "CAUSAL_LM", "target_modules": ["proj"]}
    return {**config, **more, "alpha_pattern": {}, "rank_pattern": {}}, tensors


def _write(random: Generator, path: Path, config: Any, tensors: Adapter) -> None:
    path.mkdir(exist_ok=True)
    (path / CONFIG).write_bytes(written(config))
    values = {(name,): tensor for name, tensor in tensors.items()}
    safetensors_files.FORMAT.write(random, path / TENSORS, values)


# What is done to a folder. True: nobody can use it now. False: somebody may.


def _lies(random: Generator, path: Path, config: Any, tensors: Adapter) -> bool:
    (path / CONFIG).write_bytes(written(lied(random, config)))
    return False


def _wounds(random: Generator, path: Path, config: Any, tensors: Adapter) -> bool:
    (path / CONFIG).write_bytes(damaged(random, written(config)))
    return False


def _no_object(random: Generator, path: Path, config: Any, tensors: Adapter) -> bool:
    text = ["", "[]", "{", "null", '"LORA"', '{"a":' * 9999, "[" * 9999, '{"r": 1, "r": 1}', "\0"]
    (path / CONFIG).write_text(text[int(random.integers(len(text)))])
    return True


def _bad_setting(random: Generator, path: Path, config: Any, tensors: Adapter) -> bool:
    bad = [
        *({"lora_alpha": a} for a in (float("nan"), 0, "16", [], True, None, 10**400)),
        *({"r": r} for r in (0, -1, 10**9, 2.5, "8", None, [])),
        *({"use_dora": True}, {"peft_type": "LOHA"}, {"init_lora_weights": "pissa"}),
        *({"alpha_pattern": {"(a+)+$": 1}}, {"alpha_pattern": {"proj": float("nan")}}),
        *({"rank_pattern": {"proj": 99}}, {"rank_pattern": {".*": 1}}, {"rank_pattern": [1]}),
        {"base_model_name_or_path": NASTY[int(random.integers(4))] + "c"},
    ]
    (path / CONFIG).write_bytes(written({**config, **bad[int(random.integers(len(bad)))]}))
    return True


def _broken_tensors(random: Generator, path: Path, config: Any, tensors: Adapter) -> bool:
    sound = (path / TENSORS).read_bytes()
    safetensors_files.FORMAT.damage(random, path / TENSORS, sound, sound)
    return False


def _cut_short(random: Generator, path: Path, config: Any, tensors: Adapter) -> bool:
    sound = (path / TENSORS).read_bytes()
    (path / TENSORS).write_bytes(sound[: int(random.integers(len(sound)))])
    return True


def _bad_factors(random: Generator, path: Path, config: Any, tensors: Adapter) -> bool:
    names = list(tensors)
    name = names[int(random.integers(len(names)))]
    found = dict(tensors)
    way = int(random.integers(7))
    if way == 0:
        del found[name]
    elif way == 1:
        found[name] = np.full_like(found[name], [np.nan, np.inf][int(random.integers(2))])
    elif way == 2:  # one row or column of another rank than all the others
        found[name] = found[name][:, :-1] if "lora_B" in name else found[name][:-1]
    elif way == 3:
        found[name] = np.zeros_like(found[name], np.int32)
    elif way == 4:
        found[f"{name.rsplit('.lora_', 1)[0]}.lora_magnitude_vector"] = np.ones(3, np.float32)
    elif way == 5:
        found[f"{_BEFORE}{NASTY[int(random.integers(2))]}.lora_A.weight"] = found[name]
    else:
        found[name] = found[name].reshape(-1)
    _write(random, path, config, found)
    return True


def _strange(random: Generator, path: Path, config: Any, tensors: Adapter) -> bool:
    name = (CONFIG, TENSORS)[int(random.integers(2))]
    (path / name).unlink()
    way = int(random.integers(6))
    if way == 0:
        (path / name).mkdir()
    elif way == 1:
        os.mkfifo(path / name)
    elif way < 5:
        to = ("/dev/zero", "nowhere", name)[way - 2]  # the last is a link to itself
        (path / name).symlink_to(to)
    return True


_WAYS: list[Callable[[Generator, Path, Any, Adapter], bool]] = [
    *(_lies, _lies, _wounds, _no_object, _bad_setting, _bad_setting),
    *(_broken_tensors, _cut_short, _bad_factors, _bad_factors, _strange),
]


def _judge(
    random: Generator, folder: Path, paths: dict[str, Path], unusable: dict[str, bool], dtype: str
) -> None:
    rank = (None, "stack", int(random.integers(1, 9)))[int(random.integers(3))]
    center = paths["e0"] if random.random() < 0.1 else None
    out = None if random.random() < 0.2 else folder / "out"
    before = _content(folder)
    try:
        with listening():
            method = str(random.choice(_METHODS))
            found = cs.aggregate_files(paths, out, method, rank=rank, center=center)
    except cs.ConsilienceError as error:
        expect(center is not None, "nobody's fault, and yet:", repr(error))
        check_error(error)
        expect(_content(folder) == before, "something was left or changed:", os.listdir(folder))
        return
    left = {p: c for p, c in _content(folder).items() if "out" not in p}
    expect(left == before, "something was left or changed:", os.listdir(folder))
    check_reasons(found.reasons.values())
    for party in paths:
        if party.startswith("p"):
            why = found.rejected.get(party)
            expect(why is None or center is not None, party, "is sound and was rejected:", why)
    for party, never in unusable.items():
        good = center is not None or not never  # what others must be like is the centre's to say
        expect(good or party in found.rejected, party, "is unusable and was used")
    if out is not None:
        _check_value(found, paths, out, dtype)


def _check_value(found: cs.Consensus, paths: dict[str, Path], out: Path, dtype: str) -> None:
    """The value is the sum of what was used, but for what its rank cut off."""
    expect(sorted(os.listdir(out)) == [CONFIG, TENSORS], "written:", os.listdir(out))
    value = _formed(out)
    assert value is not None
    parts = {party: _formed(paths[party]) for party in found.parties}
    if found.center_weight or any(part is None for part in parts.values()):
        return  # somebody else cannot tell what one of them is
    total = sum(found.weights[p] * part for p, part in parts.items() if part is not None)
    terms = sum(abs(found.weights[p]) * np.linalg.norm(part) for p, part in parts.items())
    expect(bool(np.isfinite(value).all()), "the value is not finite")
    if terms > np.sqrt(float(np.finfo(dtype).max)):
        return  # factors beyond the range of their dtype are at its end
    apart = float(np.linalg.norm(value - total))
    allowed = float(np.sqrt(found.diagnostics["cut"]) * np.linalg.norm(total))
    expect(apart <= 1.001 * allowed + _NEAR[dtype] * terms, "the value is", apart, "off")


def _formed(path: Path) -> Any:
    """Return every ΔW of a folder in one vector; None where this reader cannot tell."""
    config = json.loads((path / CONFIG).read_bytes())
    tensors = safetensors_files.FORMAT.read(path / TENSORS)
    known = {"peft_type", "r", "lora_alpha", "use_rslora", "alpha_pattern", "rank_pattern"}
    own = path.name != "out" and (config.get("alpha_pattern") or not known <= set(config))
    if tensors is None or own:
        return None
    pieces = []
    for name in sorted(name for name in tensors if ".lora_B." in name):
        left = tensors[name].astype(np.float64)
        right = tensors[name.replace("lora_B", "lora_A")].astype(np.float64)
        alpha = len(right) if path.name == "out" else config["lora_alpha"]
        root = config["use_rslora"] and path.name != "out"
        pieces.append(alpha / (len(right) ** 0.5 if root else len(right)) * (left @ right).ravel())
    return np.concatenate(pieces)


def _content(folder: Path) -> dict[str, Any]:
    """Return all there is below a folder."""
    found: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        plain = path.is_file() and not path.is_symlink()
        found[str(path)] = path.read_bytes() if plain else path.lstat().st_mode
    return found
