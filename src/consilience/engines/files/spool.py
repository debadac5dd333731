"""Updates that wait in files until a round ends, so that only one at a time is in memory.

    spool = Spool("folder")
    updates[party] = spool.put(update)  # as it comes: the same tree, its tensors in a file
    consensus = aggregate(updates)
    spool.clear()

Each is a .safetensors file in a hidden folder of this process (see `consilience.storage.whole`).
The folder is removed with `clear`; what a killed process left behind is removed by the next one.
"""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

from consilience.engines.files import safetensors
from consilience.engines.files.stored import File, FileArray, writing
from consilience.errors import ConsilienceError, UpdateError
from consilience.storage.whole import HiddenFolder
from consilience.text import told
from consilience.updates.trees import Leaves, flatten, unflatten
from consilience.updates.usable import Updates

_NAME = "updates"
_M_MMAP_THRESHOLD, _LARGE = -3, 1 << 20  # from malloc.h; bytes
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0)


class Spool:
    """The updates of a round, in files below a folder."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self._hidden: HiddenFolder | None = None
        self._files: list[File] = []
        self._numbers = count()
        _give_back_what_is_freed()
        self._begun()  # report an unusable folder now, and remove leftovers
        self.clear()

    def put(self, update: Any) -> Any:
        """Write an update to a file, and return it with tensors that are read from there.

        Raises UpdateError if it cannot be read or written.
        """
        try:
            leaves, tree = flatten(update)
            return unflatten(tree, self._written(leaves))
        except UpdateError:
            raise
        except ConsilienceError as error:
            raise UpdateError(f"it could not be spooled: {error}") from None
        except Exception as error:  # a foreign object may raise anything
            raise UpdateError(f"it cannot be read ({told(error)})") from None

    def clear(self) -> None:
        """Remove all updates. It may be called at any time."""
        for file in self._files:
            file.close()
        self._files = []
        if self._hidden is not None:
            self._hidden.end()
            self._hidden = None

    def _begun(self) -> HiddenFolder:
        """Return the folder of this process; make it if necessary."""
        if self._hidden is None:
            self._hidden = HiddenFolder(self.folder / _NAME, shared=True)
            try:
                with writing(self.folder):
                    self.folder.mkdir(parents=True, exist_ok=True)
                    self._hidden.begin()
            except BaseException:
                self.clear()
                raise
        return self._hidden

    def _written(self, leaves: Leaves) -> Leaves:
        """Write tensors to a new file; return them as read from there."""
        hidden = self._begun()
        name = f"{next(self._numbers)}.safetensors"
        # Numbered: foreign names need not fit into a header.
        numbered = {str(number): leaf for number, leaf in enumerate(leaves.values())}
        try:
            with writing(self.folder):
                descriptor = os.open(name, _NEW, 0o600, dir_fd=hidden.descriptor)
                with os.fdopen(descriptor, "wb") as out:
                    safetensors.write(out, numbered)
        except BaseException:
            with suppress(OSError):  # make room for other updates
                os.unlink(name, dir_fd=hidden.descriptor)
            raise
        file = File(hidden.path / name)
        self._files.append(file)
        found, _ = safetensors.read(file)
        return {
            path: replace(found[number], source=leaf.emptied())
            for (path, leaf), number in zip(leaves.items(), numbered, strict=True)
        }


def _give_back_what_is_freed() -> None:
    """Have glibc return large blocks to the system when they are freed. Otherwise an update that
    came in pieces of 5 MB would keep more than twice its size."""
    with suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _LARGE)


def are_stored(updates: Updates) -> bool:
    """Tell whether any update lies in a file."""
    return any(
        isinstance(leaf.storage, FileArray) for leaves in updates.leaves for leaf in leaves.values()
    )
