import doctest

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consilience import text
from consilience.text import LONGEST, measured, shown


def test_the_examples_in_the_docstring():
    found = doctest.testmod(text)
    assert found.attempted >= 6
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


@pytest.mark.parametrize(
    ("value", "interval", "said"),
    [
        (120.3, (110.2, 131.4), "120 (110–131)"),
        (0.10021, (0.10001, 0.10041), "0.1002 (0.1000–0.1004)"),
        (1.2, (0.03, 48.3), "1.2 (0.03–48.3)"),
        (1.234e-5, (1.117e-5, 1.311e-5), "1.23e-05 (1.12e-05–1.31e-05)"),
        (5.0, (5.0, 5.0), "5.00000 (5.00000–5.00000)"),
    ],
)
def test_a_number_has_the_digits_its_interval_is_worth(value, interval, said):
    assert measured(value, interval) == said


def test_what_prints_is_left_as_it_is():
    assert shown("модель/слой.0.weight 北京") == "модель/слой.0.weight 北京"
