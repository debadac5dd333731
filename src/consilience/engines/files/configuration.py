"""What a folder needs beside its tensors to be loaded: configuration and tokenizer, no code."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from consilience.engines.files import safetensors
from consilience.engines.files.stored import File
from consilience.errors import ConsilienceError, UpdateError
from consilience.text import shown

# Only these are copied: data that Transformers reads, never a program, never a pickle.
OF_A_MODEL = ("config.json", "generation_config.json")
NAMES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "tokenizer.model",
    "spiece.model",
    "sentencepiece.bpe.model",
    "chat_template.jinja",
    "chat_template.json",
    "preprocessor_config.json",
    "processor_config.json",
)
_LARGEST = 1 << 28  # bytes of one file


class Copied(NamedTuple):
    """Files by name, and notes about them."""

    files: Mapping[str, bytes]
    notes: tuple[str, ...]


def copied(folder: Path, whole: bool) -> Copied:
    """Read the tokenizer of a folder, and the configuration if it is for a ``whole`` model: an
    adapter has one of its own."""
    if not os.path.isdir(folder):
        raise ConsilienceError(f"{shown(folder)}: expected a folder with a configuration in it")
    wanted = (*(OF_A_MODEL if whole else ()), *NAMES)
    found = {name: _content(folder / name) for name in wanted if os.path.lexists(folder / name)}
    if not found or (whole and OF_A_MODEL[0] not in found):
        missing = OF_A_MODEL[0] if whole else "file of a tokenizer"
        raise ConsilienceError(f"{shown(folder)}: no {missing} in it; name a folder that has one")
    notes = []
    if b'"auto_map"' in found.get(OF_A_MODEL[0], b""):
        notes.append("config.json names a program of its own (auto_map), which was not copied")
    return Copied(found, tuple(notes))


def read_object(path: Path, what: str) -> dict[str, object]:
    """Return the JSON object in a small file."""
    with closing(File(path)) as file:
        if file.size > safetensors.LONGEST_HEADER:
            raise UpdateError(f"{file.name}: has {file.size} bytes, more than {what} should")
        return safetensors.read_json(file, 0, file.size, what, 2)


def _content(path: Path) -> bytes:
    with closing(File(path)) as file:
        if file.size > _LARGEST:
            raise UpdateError(f"{file.name}: has {file.size} bytes, at most {_LARGEST} are copied")
        return file.read(0, file.size)
