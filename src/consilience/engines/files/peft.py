"""PEFT's folders: a LoRA adapter as adapter_config.json and adapter_model.safetensors.

The configuration says what the factors mean: PEFT adds s·B·A to a matrix, with s from alpha, the
rank and their patterns. Anything else is refused by name, and so are adapters that start from a
changed base model (PiSSA and its like).
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from consilience.engines.files.configuration import read_object
from consilience.engines.files.model import StoredModel, open_model
from consilience.errors import ConsilienceError, UpdateError
from consilience.text import shown
from consilience.updates.adapters import LoRA, matched

CONFIG = "adapter_config.json"
TENSORS = "adapter_model.safetensors"
_PICKLE = "adapter_model.bin"

# Settings under which ΔW is not s·B·A, and their names.
_OTHERS = {
    "use_dora": "DoRA",
    "use_qalora": "QALoRA",
    "use_bdlora": "BD-LoRA",
    "kasa_config": "KaSA",
    "monteclora_config": "MonteCLoRA",
    "arrow_config": "Arrow",
    "target_parameters": "LoRA of bare parameters (target_parameters)",
}
_BEGINNINGS = (None, True, False, "gaussian", "eva", "orthogonal")  # that do not change the base
_MODEL = "base_model_name_or_path"
_NEEDED = (_MODEL, "task_type", "target_modules")  # to load an adapter
# Settings on which merged adapters must agree; a missing one agrees with all.
_AGREED = {
    _MODEL: "base model",
    "task_type": "task",
    "fan_in_fan_out": "fan_in_fan_out",
    "layer_replication": "layer_replication",
    "alora_invocation_tokens": "alora_invocation_tokens",
}
# Settings of the majority that are written: no more of a foreign configuration than PEFT needs.
_KEPT = (
    *_AGREED,
    "auto_mapping",
    "bias",
    "ensure_weight_tying",
    "exclude_modules",
    "layers_pattern",
    "layers_to_transform",
    "lora_bias",
    "lora_dropout",
    "modules_to_save",
    "revision",
    "target_modules",
    "trainable_token_indices",
)


@dataclass(frozen=True, eq=False)
class StoredAdapter:
    """An adapter whose tensors stay in their file, its configuration, and what that means."""

    model: StoredModel
    config: Mapping[str, Any]
    lora: LoRA


def is_adapter(path: Path) -> bool:
    """Tell a PEFT folder from a model."""
    return os.path.isdir(path) and os.path.lexists(path / CONFIG)


def open_adapter(path: Path, files: ExitStack, kept: int = 0) -> StoredAdapter:
    """Open a PEFT folder and check it; ``files`` closes it."""
    if not is_adapter(path):
        raise UpdateError(f"{shown(path)}: expected a PEFT folder, with {CONFIG} in it")
    config = read_object(path / CONFIG, "its configuration")
    lora = _meaning(path / CONFIG, config)
    pickled = not os.path.lexists(path / TENSORS) and os.path.lexists(path / _PICKLE)
    model = open_model(path / (_PICKLE if pickled else TENSORS), files, kept)
    return StoredAdapter(model, config, lora)


def _meaning(path: Path, config: Mapping[str, Any]) -> LoRA:
    kind = config.get("peft_type")
    if kind != "LORA":
        raise UpdateError(
            f"{shown(path)}: is of {shown(kind)}, expected LORA: what is not linear in its "
            "factors cannot be summed; merge it into its model first"
        )
    for key, name in _OTHERS.items():
        if config.get(key):
            raise UpdateError(
                f"{shown(path)}: is {name}, which is not linear in its factors: merge it into its "
                "model first"
            )
    begun = config.get("init_lora_weights")
    if not any(begun is known or begun == known for known in _BEGINNINGS):
        raise UpdateError(
            f"{shown(path)}: init_lora_weights is {shown(repr(begun))}, which changes the base "
            "model: save it as a plain LoRA (PEFT: path_initial_model_for_weight_conversion)"
        )
    pattern = config.get("alpha_pattern") or {}
    if not isinstance(pattern, dict):
        raise UpdateError(f"{shown(path)}: alpha_pattern is no mapping")
    alpha = config.get("lora_alpha", 8)
    if alpha is None or None in pattern.values():
        raise UpdateError(f"{shown(path)}: alpha is a number, found null")
    try:
        return LoRA(alpha, bool(config.get("use_rslora")), pattern)
    except ConsilienceError as error:
        raise UpdateError(f"{shown(path)}: {error}") from None


def check_ranks(adapter: StoredAdapter, ranks: Mapping[str, int]) -> None:
    """Raise unless the factors have the configured ranks: s depends on them."""
    pattern, rank = adapter.config.get("rank_pattern") or {}, adapter.config.get("r", 8)
    for module, found in ranks.items():
        try:
            expected = matched(pattern, module, rank)
        except (ConsilienceError, AttributeError) as error:
            raise UpdateError(f"{CONFIG}: rank_pattern: {shown(error, 200)}") from None
        if found != expected:
            raise UpdateError(
                f"'{shown(module)}' has rank {found}, {CONFIG} says {shown(repr(expected))}"
            )


def disagreements(
    adapters: Mapping[str, StoredAdapter], center: StoredAdapter | None
) -> dict[str, str]:
    """Return the parties whose adapter is for another model or task than the centre's, or than
    most, with reasons."""
    found: dict[str, str] = {}
    for key, what in _AGREED.items():
        said = {
            party: _comparable(key, adapter.config.get(key)) for party, adapter in adapters.items()
        }
        known = [value for value in said.values() if value is not None]
        expected = None if center is None else _comparable(key, center.config.get(key))
        if expected is None and known:
            expected = Counter(known).most_common(1)[0][0]
        for party, value in said.items():
            if value is not None and value != expected:
                found.setdefault(party, f"its {what} is {shown(value)}, expected {shown(expected)}")
    return found


def _comparable(key: str, value: Any) -> str | None:
    """Return a setting as text for comparison. Of a model's path only the last part counts: parties
    keep it in different places."""
    if value is None or value == "":
        return None
    if key == _MODEL:
        return str(value).replace("\\", "/").rstrip("/").rsplit("/", 1)[-1]
    return _text(value)


def configuration(
    configs: Sequence[Mapping[str, Any]], weights: Sequence[float], ranks: Mapping[str, int]
) -> bytes:
    """Return the configuration of an adapter with s = 1 and these ranks by module, and the settings
    on which most of the weight agrees."""
    (rank, _), *_ = Counter(ranks.values()).most_common(1)
    odd = {f"^{re.escape(module)}": found for module, found in ranks.items() if found != rank}
    found: dict[str, Any] = {
        "peft_type": "LORA",
        "r": rank,
        "lora_alpha": rank,
        "rank_pattern": odd,
        "alpha_pattern": odd,
        "use_rslora": False,
        "use_dora": False,
        "init_lora_weights": True,
        "inference_mode": True,
    }
    for key in _KEPT:
        chosen = _elected(key, [config.get(key) for config in configs], weights)
        if chosen is not None:
            found[key] = chosen
    return (json.dumps(found, indent=2, sort_keys=True) + "\n").encode()


def _elected(key: str, values: Sequence[Any], weights: Sequence[float]) -> Any:
    """Return the value of a setting that has more than half of the weight; None if none has.

    Who leaves it out votes for that, but not where PEFT needs a value. Names of modules are needed
    so much that the most frequent ones do. Of different paths to one model its name is left.
    """
    said: dict[str | None, float] = {}
    exact: dict[str | None, dict[str, float]] = {}  # as written, by what is compared
    for value, weight in zip(values, weights, strict=True):
        short = _comparable(key, value)
        if short is not None or key not in _NEEDED:
            said[short] = said.get(short, 0.0) + weight
            alike = exact.setdefault(short, {})
            alike[_text(value)] = alike.get(_text(value), 0.0) + weight
    best = max(said, key=lambda short: said[short], default=None)
    if best is None or (2 * said[best] <= sum(said.values()) and key != "target_modules"):
        return None
    written = max(exact[best], key=lambda text: exact[best][text])
    if key == _MODEL and 2 * exact[best][written] <= said[best]:
        return best
    return json.loads(written)


def _text(value: Any) -> str:
    """Return a setting as text. Names of modules come from a set, so they are sorted."""
    names = isinstance(value, list) and all(isinstance(name, str) for name in value)
    return json.dumps(sorted(value) if names else value, sort_keys=True)
