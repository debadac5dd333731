"""The directive ``commands``: what ``--help`` says of every command, as sections of a page."""

from collections.abc import Iterator
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective
from typer.main import get_command
from typer.testing import CliRunner

from consilience.cli.commands import app as cli


class Commands(SphinxDirective):
    """A section for each command."""

    def run(self) -> list[nodes.Node]:
        """Return the sections."""
        text = "\n".join(map(_section, _words((), get_command(cli))))
        return self.parse_text_to_nodes(text, allow_section_headings=True)


def _words(before: tuple[str, ...], command: Any) -> Iterator[tuple[str, ...]]:
    """Yield what is typed for each command that does something."""
    parts = getattr(command, "commands", None)
    if parts is None:
        yield before
        return
    for part in parts:
        yield from _words((*before, part), parts[part])


def _section(words: tuple[str, ...]) -> str:
    help = [*words, "--help"]
    asked = CliRunner().invoke(cli, help, env={"COLUMNS": "90"}, prog_name="consilience")
    if asked.exit_code:
        raise RuntimeError(f"consilience {' '.join(words)} --help: {asked.output}")
    return f"## {' '.join(words)}\n\n```text\n{asked.output.strip()}\n```\n"


def setup(app: Sphinx) -> dict[str, bool]:
    """Add the directive."""
    app.add_directive("commands", Commands)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
