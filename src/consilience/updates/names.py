"""Selects tensors by name, with the wildcards of a shell."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from itertools import islice

from consilience.errors import ConsilienceError
from consilience.text import shown
from consilience.updates.trees import Path

# A pattern or several. Those that begin with "!" exclude. If all of them do, the rest is included.
Patterns = str | Sequence[str]

_NOT = "!"
_NAMED = 3  # tensors listed in an error


def meant(paths: Iterable[Path], patterns: Patterns) -> frozenset[Path]:
    """Return the selected tensors. A pattern that matches none is an error.

    >>> sorted(meant([("conv", "weight"), ("head", "weight")], "!head.*"))
    [('conv', 'weight')]
    """
    named = {path: ".".join(map(str, path)) for path in paths}
    fitting = {pattern: _fitting(named, pattern) for pattern in _listed(patterns)}
    for pattern, found in fitting.items():
        if not found:
            some = ", ".join(shown(name or "the update") for name in islice(named.values(), _NAMED))
            raise ConsilienceError(f"no tensor is called like {shown(pattern)!r}: found {some}, …")
    only = [found for pattern, found in fitting.items() if not pattern.startswith(_NOT)]
    but = [found for pattern, found in fitting.items() if pattern.startswith(_NOT)]
    return frozenset(named).intersection(set().union(*only) if only else named).difference(*but)


def _fitting(named: dict[Path, str], pattern: str) -> set[Path]:
    bare = pattern.removeprefix(_NOT)
    return {path for path, name in named.items() if fnmatchcase(name, bare)}


def _listed(patterns: Patterns) -> list[str]:
    found = [patterns] if isinstance(patterns, str) else list(patterns)
    if not all(isinstance(pattern, str) for pattern in found):
        raise ConsilienceError(f"expected names of tensors, such as 'head.*', found {patterns!r}")
    return found
