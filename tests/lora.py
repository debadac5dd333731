"""Made-up LoRA adapters, and the updates they stand for, formed in full."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

SHAPES = {"layers.0.q_proj": (24, 16), "layers.1.q_proj": (24, 16), "layers.1.up": (40, 16)}
Adapter = dict[str, Any]


def name(module: str, part: str) -> str:
    return f"base_model.model.{module}.lora_{part}"


def update(seed: int, shapes: Mapping[str, tuple[int, int]] = SHAPES, rank: int = 4):
    """Return a low-rank update of each module, in full."""
    random = np.random.default_rng(seed)
    return {
        module: random.standard_normal((out, rank)) @ random.standard_normal((rank, into))
        for module, (out, into) in shapes.items()
    }


def adapter(updates: Mapping[str, Any], rank: int, scale: float, seed: int = 0) -> Adapter:
    """Return factors of a rank that make these updates, in a gauge of their own."""
    random = np.random.default_rng(seed)
    found = {}
    for module, full in updates.items():
        u, values, v = np.linalg.svd(full, full_matrices=False)
        left, right = u[:, :rank] * values[:rank], v[:rank]
        turn = random.standard_normal((rank, rank)) + 3 * np.eye(rank)
        found[name(module, "B.weight")] = (left @ turn / scale).astype(np.float32)
        found[name(module, "A.weight")] = np.linalg.solve(turn, right).astype(np.float32)
    return found


def in_gauge(adapter: Adapter, turn: Any) -> Adapter:
    """Return the same adapter in another gauge."""
    found = dict(adapter)
    for key, left in adapter.items():
        if ".lora_B.weight" in key:
            other = key.replace("lora_B", "lora_A")
            found[key] = (left.astype(float) @ turn).astype(np.float32)
            found[other] = np.linalg.solve(turn, adapter[other].astype(float)).astype(np.float32)
    return found


def formed(adapter: Adapter, alpha: float | Mapping[str, float], rslora: bool = False):
    """Return every ΔW in float64; of what is no factor, the tensor."""
    found = {}
    for key, tensor in adapter.items():
        if "lora_A" in key or "lora_embedding_A" in key:
            continue
        if ".lora_B.bias" in key:
            module = key.removesuffix(".lora_B.bias")
            rank = adapter[f"{module}.lora_A.weight"].shape[0]
            by = _scale(alpha, module, rank, rslora)
            found[key] = by * np.asarray(tensor, float)
        elif "lora_B" in key or "lora_embedding_B" in key:
            right = np.asarray(adapter[key.replace("_B", "_A")], float)
            left = np.asarray(tensor, float).reshape(len(tensor), -1)
            rank = right.shape[0]
            full = np.einsum("or,r...->o...", left, right)
            found[key] = _scale(alpha, key, rank, rslora) * full
        else:
            found[key] = np.asarray(tensor, float)
    return found


def _scale(alpha: float | Mapping[str, float], key: str, rank: int, rslora: bool) -> float:
    if isinstance(alpha, Mapping):
        alpha = next(a for part, a in alpha.items() if part in key)
    return alpha / (rank**0.5 if rslora else rank)


def flat(updates: Mapping[str, Any]):
    return np.concatenate([np.ravel(updates[key]) for key in sorted(updates)])
