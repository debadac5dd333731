"""A small language model that knows English, and parties that teach it Python: nothing is fetched.

The model reads bytes. It is built from its configuration and trained for a moment on the pages of
Python's manual that `help()` shows. Each party has the source of some modules of the standard
library, and a LoRA adapter, in PEFT's hands, of a rank of its own.
"""

from __future__ import annotations

import importlib
import inspect
from functools import lru_cache
from pathlib import Path
from pydoc_data.topics import topics

import numpy as np
import torch
from peft import LoraConfig, PeftModel, get_peft_model, get_peft_model_state_dict
from peft import set_peft_model_state_dict as put
from transformers import LlamaConfig, LlamaForCausalLM

import consilience as cs

Adapter = dict[str, np.ndarray]

OF_PARTIES = [
    ("argparse", "optparse", "configparser"),
    ("tarfile", "zipfile", "shutil"),
    ("typing", "dataclasses", "enum"),
    ("smtplib", "ftplib", "imaplib"),
    ("statistics", "fractions", "random"),
    ("doctest", "pdb", "trace"),
]
FOR_TESTS = ("inspect", "socket", "difflib")
ALPHA, RANK = 16, 8
LENGTH, BATCH = 64, 16


def text(modules: tuple[str, ...]) -> torch.Tensor:
    """The source of some modules, as bytes."""
    found = b""
    for name in modules:
        found += Path(inspect.getfile(importlib.import_module(name))).read_bytes()
    return torch.frombuffer(bytearray(found), dtype=torch.uint8).long()


def batches(of: torch.Tensor, count: int, seed: int) -> torch.Tensor:
    """Pieces of a text: (count, BATCH, LENGTH)."""
    torch.manual_seed(seed)
    starts = torch.randint(len(of) - LENGTH, (count, BATCH, 1))
    return of[starts + torch.arange(LENGTH)]


def train(model: torch.nn.Module, pieces: torch.Tensor, rate: float) -> None:
    """Train whatever of the model may be trained."""
    chosen = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(chosen, lr=rate, weight_decay=0.0)
    for batch in pieces:
        optimizer.zero_grad()
        model(batch, labels=batch).loss.backward()
        optimizer.step()


@lru_cache(1)
def pretrained(steps: int) -> dict[str, torch.Tensor]:
    """The weights of the base model, the same for everybody."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = _built()
    manual = torch.frombuffer(
        bytearray("\n".join(topics.values()).encode()), dtype=torch.uint8
    ).long()
    train(model, batches(manual, steps, 0), 3e-3)
    return model.state_dict()


def _built() -> LlamaForCausalLM:
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=256,
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=4,
            max_position_embeddings=LENGTH,
        )
    )


def with_adapter(rank: int, steps: int) -> PeftModel:
    """The base model with an adapter that changes nothing yet."""
    base = _built()
    base.load_state_dict(pretrained(steps))
    torch.manual_seed(1)
    modules = ["q_proj", "k_proj", "v_proj", "o_proj", "up_proj", "down_proj", "lm_head"]
    config = LoraConfig(r=rank, lora_alpha=ALPHA, target_modules=modules, task_type="CAUSAL_LM")
    return get_peft_model(base, config)


def adapter(model: PeftModel) -> Adapter:
    """The adapter's tensors, by PEFT's names."""
    return {name: x.detach().numpy().copy() for name, x in get_peft_model_state_dict(model).items()}


def taught(
    sent: Adapter, party: int, rank: int, round: int, steps: int, base: int
) -> tuple[Adapter, int]:
    """What a party makes of the global adapter, at a rank of its own; and how much it read."""
    model = with_adapter(rank, base)
    mine = cs.aggregate(  # the one adapter there is, cut or padded to the rank of this party's
        {"global": sent}, "mean", center=adapter(model), adapters=cs.LoRA(ALPHA)
    )
    put(model, {name: torch.from_numpy(x) for name, x in mine.value.items()})
    of = text(OF_PARTIES[party])
    train(model, batches(of, steps, 1000 * round + party), 5e-3)
    return adapter(model), len(of)


def lies(honest: Adapter, party: int, round: int) -> Adapter:
    """The opposite of what was learnt, five times as long, in a gauge that hides it."""
    random = np.random.default_rng([party, round])
    found = dict(honest)
    for name in (name for name in honest if "lora_B" in name):
        other = name.replace("lora_B", "lora_A")
        rank = honest[other].shape[0]
        turn = np.linalg.qr(random.standard_normal((rank, rank)))[0].astype(np.float32)
        found[name], found[other] = -5 * honest[name] @ turn, turn.T @ honest[other]
    return found


def loss(sent: Adapter, base: int) -> float:
    """How badly the model foretells source that nobody trained on."""
    model = with_adapter(RANK, base)
    put(model, {name: torch.from_numpy(x.copy()) for name, x in sent.items()})
    model.eval()
    with torch.no_grad():
        pieces = batches(text(FOR_TESTS), 8, 99)
        return float(np.mean([float(model(batch, labels=batch).loss) for batch in pieces]))
