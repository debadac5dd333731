"""Builds the page: the record's lines, the script and the style in one file."""

from __future__ import annotations

import base64
import hashlib
import json
import os
from importlib.resources import files
from pathlib import Path
from typing import Any

from consilience.errors import RecordFileError
from consilience.record import lines
from consilience.storage.whole import whole

_ORDER = ("run", "findings", "tables", "charts", "views", "plots", "page")
SCRIPTS = ("vendor/echarts.js", *(f"{name}.js" for name in _ORDER))
# Correlations are thinned to as many rounds as fit: all, up to a few hundred rounds of 50 parties.
_CORRELATIONS = 1 << 20  # characters


def write(record: str | os.PathLike[str], out: str | os.PathLike[str]) -> int:
    """Write the page of a record, whole or not at all; return the number of rounds in it."""
    found, _ = lines(record)
    if os.path.realpath(record) == os.path.realpath(out):
        raise RecordFileError(f"{out}: holds the record, choose another name")
    with whole(out) as file:
        file.write(fill(Path(record).name, found).encode())
    return len({line["round"] for line in found})


def fill(title: str, found: list[dict[str, Any]], live: int | None = None) -> str:
    """Return the page; ``live`` is the place in the record from which on to ask for more."""
    here = files("consilience.report")
    style = here.joinpath("page.css").read_text("utf-8")
    scripts = [here.joinpath(name).read_text("utf-8") for name in SCRIPTS]
    rounds, texts = compact(found)
    data = {"title": title, "live": live, "texts": texts, "rounds": rounds}
    content = {
        "policy": policy(style, scripts, live is not None),
        "style": f"<style>{style}</style>",
        # No party's name can end the script element: no < is left.
        "data": json.dumps(data, separators=(",", ":")).replace("<", "\\u003c"),
        "scripts": "\n".join(f"<script>{script}</script>" for script in scripts),
    }
    page = here.joinpath("page.html").read_text("utf-8")
    for name, text in content.items():
        before, after = page.split(f"<!--{name}-->")
        page = before + text + after
    return page


def policy(style: str, scripts: list[str], live: bool) -> str:
    """Return a content security policy that allows these scripts and this style, nothing else."""
    allowed = " ".join(_hash(script) for script in scripts)
    asks = "connect-src 'self'; " if live else ""
    return (
        f"default-src 'none'; script-src {allowed}; style-src {_hash(style)}; {asks}"
        "base-uri 'none'; form-action 'none'"
    )


def compact(found: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the lines without repeated or excessive parts, and the texts they refer to."""
    spent = sum(len(line.get("correlation", "")) for line in found)
    every = max(1, -(-spent // _CORRELATIONS))
    texts: dict[str, int] = {}
    kept, before = [], None
    for age, line in zip(range(len(found))[::-1], found, strict=True):
        short = dict(line)
        if age % every:
            short.pop("correlation", None)
        for key in ("reasons", "rejected"):
            if key in line:
                short[key] = {p: texts.setdefault(t, len(texts)) for p, t in line[key].items()}
        if "parties" in line:
            if line["parties"] == before:
                short["parties"] = "same"
            before = line["parties"]
        kept.append(short)
    return kept, list(texts)


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
