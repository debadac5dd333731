"""What the README, the pages of docs/ and the docstrings show is what comes out.

The Python blocks of a page are run in order, in one folder, and so are its ``sh`` blocks that call
`consilience`. A ``text`` block right after a Python block is what that prints; numbers may differ
by a few per cent. A block that cannot run here says why: ```` ```python not-run: ... ````.
"""

import doctest
import inspect
import re
import shlex
from contextlib import redirect_stdout
from importlib import import_module
from io import StringIO
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

import pytest
from typer.testing import CliRunner

import consilience as cs
from consilience.cli.commands import app

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"
# Blocks of these are parts of an app that has a server, or of a page that has none of its own data.
# Those of docs/flower.md are run by integrations/test_documented.py.
NOT_RUN = {"docs/flower.md", "docs/adapters.md"}
FENCE = re.compile(r"^```(\w+)([^\n]*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
NUMBER = re.compile(r"\d+(?:\.\d+)?(?:e[-+]?\d+)?")


class Fence(NamedTuple):
    language: str
    info: str
    text: str
    line: int
    printed: str | None  # the text block right after it


def fences(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    found = list(FENCE.finditer(text))
    for this, after in zip_longest(found, found[1:]):
        follows = after is not None and not text[this.end() : after.start()].strip()
        printed = after[3] if after is not None and follows and after[1] == "text" else None
        yield Fence(
            this[1], this[2].strip(), this[3], text[: this.start()].count("\n") + 2, printed
        )


def runs(fence):
    return fence.language == "python" and not fence.info


def pages():
    found = sorted(ROOT.glob("docs/**/*.md"))
    names = ["README.md", *(page.relative_to(ROOT).as_posix() for page in found)]
    return [name for name in names if name not in NOT_RUN and any(map(runs, fences(name)))]


def assert_alike(found, said):
    """Compare word for word, numbers to 5 %, spaces not at all."""
    found, said = found.split(), said.split()
    assert [NUMBER.sub("#", word) for word in found] == [NUMBER.sub("#", word) for word in said]
    for one, other in zip(found, said, strict=True):
        mine, theirs = ([float(n) for n in NUMBER.findall(word)] for word in (one, other))
        assert mine == pytest.approx(theirs, rel=0.05, abs=2e-5), f"{one}, said: {other}"


@pytest.mark.parametrize("page", pages())
def test_the_examples_of_a_page_run_and_print_what_it_says(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {}
    for fence in fences(page):
        if runs(fence):
            # As many empty lines before it as in the page: an error then names the page's line.
            code = compile("\n" * (fence.line - 1) + fence.text, page, "exec")
            with redirect_stdout(StringIO()) as out:
                exec(code, names)
            if fence.printed is not None:
                assert_alike(out.getvalue(), fence.printed)
        elif fence.language == "sh":
            for line in fence.text.splitlines():
                if line.startswith("consilience "):
                    done = CliRunner().invoke(app, shlex.split(line, comments=True)[1:])
                    assert done.exit_code in (0, 1), f"{line}\n{done.output}"


@pytest.mark.parametrize("page", sorted(ROOT.glob("docs/**/*.md")), ids=lambda page: page.name)
def test_a_block_that_is_not_run_says_why(page):
    for fence in fences(page.relative_to(ROOT)):
        if fence.language == "python" and fence.info:
            assert re.fullmatch(r"not-run: \w.*", fence.info), fence


def test_what_is_compared():
    assert_alike("a  1.00\n", "a 1.02")
    with pytest.raises(AssertionError):
        assert_alike("a 1.0", "a 1.1")
    with pytest.raises(AssertionError):
        assert_alike("a 1.0", "b 1.0")


def modules():
    found = (path for path in sorted(SOURCE.rglob("*.py")) if ">>> " in path.read_text("utf-8"))
    return [".".join(path.relative_to(SOURCE).with_suffix("").parts) for path in found]


@pytest.mark.parametrize("module", modules())
def test_the_examples_of_docstrings_run(module):
    failed, tried = doctest.testmod(import_module(module), report=True)
    assert tried
    assert not failed


@pytest.mark.parametrize("name", [name for name in cs.__all__ if not name.endswith("Error")])
def test_every_public_name_has_an_example(name):
    assert ">>> " in (inspect.getdoc(getattr(cs, name)) or "")
