"""Progress that fits the terminal."""

from io import StringIO

from rich.console import Console

from consilience.lab.runner import bars


def test_a_long_name_does_not_push_the_numbers_off_the_screen():
    told = Console(file=StringIO(), width=80, force_terminal=True, color_system=None)
    with bars(told) as progress:
        progress.add_task("breakdown " + "method-pairwise_seed-2_" * 9, total=300, completed=17)
        shown = told.render_lines(progress.get_renderable(), told.options)
    lines = ["".join(part.text for part in line) for line in shown]
    assert len(lines) == 1
    assert "17/300" in lines[0]
    assert lines[0].rstrip().endswith("0:00:00")
    assert "…" in lines[0]
