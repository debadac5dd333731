"""How objects present themselves: a line, a short table, a few notes; as text or in a notebook."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

MOST_ROWS = 12
_GAP = "  "


class Shown(ABC):
    """An object that presents a summary of itself in a terminal and in a notebook."""

    @property
    @abstractmethod
    def summary(self) -> Summary:
        """Return what is worth seeing first."""

    def __repr__(self) -> str:
        return str(self.summary)

    def _repr_html_(self) -> str:
        return self.summary.html()


@dataclass(frozen=True)
class Summary:
    """The cells are safe to print: foreign text has gone through `text.shown`."""

    title: str
    header: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()  # those worth seeing first; the rest are counted
    notes: Sequence[str] = ()

    def __str__(self) -> str:
        shown = [self.header, *self.rows[:MOST_ROWS]] if self.rows else []
        widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
        lines = [
            _GAP.join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in shown
        ]
        return "\n".join([self.title, *lines, *self._after])

    def html(self) -> str:
        """Return the same as an HTML table for a notebook."""
        parts = [f"<p>{escape(self.title)}</p>"]
        if self.rows:
            head = "".join(f"<th>{escape(cell)}</th>" for cell in self.header)
            body = "".join(
                "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>"
                for row in self.rows[:MOST_ROWS]
            )
            parts.append(f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>")
        return "".join([*parts, *(f"<p>{escape(note)}</p>" for note in self._after)])

    @property
    def _after(self) -> list[str]:
        more = len(self.rows) - MOST_ROWS
        return [*([f"and {more} more"] if more > 0 else []), *self.notes]
