"""Which tensors are meant: by name, with the wildcards of a shell."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from itertools import islice

from consilience.errors import ConsilienceError
from consilience.text import shown
from consilience.updates.trees import Path

# A pattern, or several: those before which "!" stands say what is not meant, the others what is.
# Of none of the others, everything is.
Patterns = str | Sequence[str]

_NOT = "!"
_NAMED = 3  # tensors, in an error


def meant(paths: Iterable[Path], patterns: Patterns) -> frozenset[Path]:
    """Return the tensors that are meant. A pattern that fits none is a mistake.

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
