"""What the documentation shows: its blocks of code, by their kind."""

import re
from pathlib import Path


def blocks(page: Path, kind: str) -> list[str]:
    """The fenced blocks of a kind: ``sh`` and ``python`` are run, ``bash`` are not."""
    fence = re.compile(rf"^```{kind}\n(.*?)^```$", re.DOTALL | re.MULTILINE)
    return fence.findall(page.read_text(encoding="utf-8"))


def indented(page: Path) -> list[str]:
    """The lines of indented blocks, without what they are said to write."""
    text = re.sub(
        r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE
    )
    found = re.findall(r"^    (\S.*)$", text, re.MULTILINE)
    return [line.split("#")[0].strip() for line in found]
