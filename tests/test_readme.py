"""What the README shows first is what comes out."""

import re
from pathlib import Path

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


def test_the_first_example_prints_what_it_says(capsys):
    first = re.search(r"```python\n(.*?)```", README, re.DOTALL)
    assert first is not None
    exec(first[1], {})
    said = [line[2:] for line in first[1].splitlines() if line.startswith("# ")]
    assert capsys.readouterr().out.splitlines() == said
