import doctest

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consilience import text
from consilience.text import LONGEST, shown


def test_the_examples_in_the_docstring():
    found = doctest.testmod(text)
    assert found.attempted >= 3
    assert found.failed == 0


@given(st.text(st.characters(), max_size=200))  # surrogates included
def test_any_text_becomes_one_printable_line_of_bounded_length(foreign):
    line = shown(foreign)
    assert line.isprintable()
    assert len(line) <= LONGEST
    line.encode()


@pytest.mark.parametrize("end", ["a", "\x1b", "é"])
def test_long_names_that_differ_somewhere_still_look_different(end):
    long = "n" * 10_000
    assert shown(long + end + long) != shown(long + "b" + long)


def test_what_prints_is_left_as_it_is():
    assert shown("модель/слой.0.weight 北京") == "модель/слой.0.weight 北京"
