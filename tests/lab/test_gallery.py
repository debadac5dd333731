"""The gallery's scripts run, and what is committed is what they make."""

import logging
import re
import runpy
from pathlib import Path
from xml.etree import ElementTree

import pytest

from consilience.lab import demo, softmax

DOCS = Path(__file__).parents[2] / "docs"
NAMES = ["backdoor", "believed", "breakdown", "clique", "merge", "ratings"]
ON_MNIST = {"backdoor", "believed", "clique", "merge"}  # where the test has other pictures
LIGHT, DARK = "#ffffff", "#131416"  # the site's backgrounds


@pytest.fixture
def made(tiny_mnist, tmp_path, monkeypatch):
    softmax.digits.cache_clear()
    softmax.shard.cache_clear()
    monkeypatch.setattr(demo, "ROUNDS", 3)
    monkeypatch.setattr("sys.argv", ["gallery", str(tmp_path / "new")])
    logger = logging.getLogger("consilience")  # which the scripts make quiet
    level = logger.level
    runpy.run_path(str(DOCS / "gallery"), run_name="__main__")
    logger.setLevel(level)
    yield tmp_path / "new"
    softmax.digits.cache_clear()
    softmax.shard.cache_clear()


def texts(picture):
    return [node.text for node in ElementTree.parse(picture).iter() if node.tag.endswith("}text")]


def places(picture):
    drawn = re.findall(r' (?:d|x|y)="([^"]*)"', picture.read_text(encoding="utf-8"))
    return [float(number) for number in re.findall(r"-?\d+\.?\d*", " ".join(drawn))]


def test_the_scripts_make_the_pictures(made):
    assert sorted(picture.stem for picture in made.glob("*.svg")) == NAMES
    for name in NAMES:
        new, committed = made / f"{name}.svg", DOCS / "gallery" / f"{name}.svg"
        assert texts(new)
        if name not in ON_MNIST:  # else: make gallery
            assert texts(new) == texts(committed)
            assert places(new) == pytest.approx(places(committed), abs=0.1)  # of 360 across


@pytest.mark.parametrize("name", NAMES)
def test_a_picture_is_small_shown_and_readable_on_light_and_dark(name):
    picture = DOCS / "gallery" / f"{name}.svg"
    assert picture.stat().st_size <= 100_000
    page = (DOCS / "gallery.md").read_text(encoding="utf-8")
    assert f"](gallery/{name}.svg)" in page
    assert f"{{literalinclude}} gallery/{name}.py" in page
    colours = set(re.findall(r"#[0-9a-f]{6}", picture.read_text(encoding="utf-8")))
    assert colours
    assert all(contrast(colour, paper) > 3 for colour in colours for paper in (LIGHT, DARK))


def contrast(one, other):
    """Return the ratio of luminances, as WCAG 2 defines it; it asks for 3 of graphics."""
    lower, higher = sorted(map(luminance, (one, other)))
    return (higher + 0.05) / (lower + 0.05)


def luminance(colour):
    shares = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [s / 12.92 if s <= 0.04045 else ((s + 0.055) / 1.055) ** 2.4 for s in shares]
    return sum(share * part for share, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
