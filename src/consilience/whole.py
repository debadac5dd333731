"""Files that appear whole or not at all."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def whole(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Give the name of a file to write, which takes the place of another when all went well.

    However this ends, and be it by a kill, the other is what it was or what it should become. A
    kill may leave the unfinished file behind, under a name that begins with a dot.
    """
    target = Path(path)
    partial = target.with_name(f".{target.name}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        yield partial
        with open(partial, "rb") as file:
            os.fsync(file.fileno())
        os.replace(partial, target)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
