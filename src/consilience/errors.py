"""What can go wrong, in words a caller can act on."""

from collections.abc import Mapping
from typing import Any


class ConsilienceError(ValueError):
    """Base of every error this package raises on purpose."""


class UpdateError(ConsilienceError):
    """The updates of a round cannot be used: which, why, and what to do."""

    def __init__(self, message: str, rejected: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.rejected = dict(rejected or {})  # party -> reason, where parties are to blame


class RequirementError(ConsilienceError):
    """A round does not have what it must have to count (see `Require`): nothing was changed."""

    def __init__(self, message: str, rejected: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.rejected = dict(rejected or {})  # party -> reason


class MemoryFileError(ConsilienceError):
    """A file is not a memory this version can read. The file is left as it is."""


class RecordFileError(ConsilienceError):
    """A file is not a record of a run this version can read. The file is left as it is."""


class TableError(ConsilienceError):
    """A table of ratings cannot be used: which, where in it, and what was expected."""


def check_argument(name: str, value: Any, kind: Any, expected: str) -> None:
    """Raise if an argument is not of this kind: a type, or a union such as ``Memory | None``."""
    if not isinstance(value, kind):
        raise ConsilienceError(f"{name}: expected {expected}, found {type(value).__name__}")
