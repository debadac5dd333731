"""Sources, against a mirror on this machine that can be told to misbehave."""

import gzip
import hashlib
import io
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from consilience.lab import fetch as f
from consilience.lab import packages as p
from mirror import LocalMirror

DATA = bytes(range(256)) * 40  # 10 kB


def file_of(data: bytes, name: str = "numbers") -> f.File:
    return f.File(name, hashlib.sha256(data).hexdigest())


NUMBERS = file_of(DATA)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CONSILIENCE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("CONSILIENCE_DATA", raising=False)
    return tmp_path / "cache"


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_mirror_fills_the_cache_and_is_not_asked_again(mirror: LocalMirror, cache: Path) -> None:
    mirror.contents = {"numbers": DATA}
    for _ in range(2):
        assert f.fetch([NUMBERS], [f.Mirror(mirror.url)]) == {"numbers": DATA}
    assert len(mirror.requests) == 1
    assert names(cache) == ["numbers"]


def test_a_mirror_may_compress(mirror: LocalMirror, cache: Path) -> None:
    mirror.contents = {"numbers.gz": gzip.compress(DATA)}
    assert f.fetch([NUMBERS], [f.Mirror(mirror.url + "/", ".gz")])["numbers"] == DATA
    assert (cache / "numbers").read_bytes() == DATA


def test_a_download_cut_in_the_middle_is_resumed(mirror: LocalMirror, cache: Path) -> None:
    mirror.contents, mirror.cut, mirror.cuts = {"numbers": DATA}, 3000, 2
    assert f.fetch([NUMBERS], [f.Mirror(mirror.url)])["numbers"] == DATA
    assert [wanted for _, wanted in mirror.requests] == [None, "bytes=3000-", "bytes=6000-"]
    assert names(cache) == ["numbers"]


def test_a_part_outlives_the_process(mirror: LocalMirror, cache: Path) -> None:
    mirror.contents, mirror.cut, mirror.cuts = {"numbers": DATA}, 1000, f.ATTEMPTS
    with pytest.raises(f.DataUnavailableError, match=r"cut 3 times.*3000 bytes kept"):
        f.fetch([NUMBERS], [f.Mirror(mirror.url)])
    assert [name.endswith(".part") for name in names(cache)] == [True]
    mirror.requests.clear()
    assert f.fetch([NUMBERS], [f.Mirror(mirror.url)])["numbers"] == DATA
    assert [wanted for _, wanted in mirror.requests] == ["bytes=3000-"]


def test_a_server_that_cannot_resume_starts_again(mirror: LocalMirror) -> None:
    mirror.contents, mirror.cut, mirror.cuts, mirror.ranges = {"numbers": DATA}, 3000, 1, False
    assert f.fetch([NUMBERS], [f.Mirror(mirror.url)])["numbers"] == DATA


def test_a_part_of_something_longer_is_thrown_away(
    mirror: LocalMirror, monkeypatch: pytest.MonkeyPatch
) -> None:
    mirror.contents, mirror.cut, mirror.cuts = {"numbers": DATA * 2}, len(DATA), 1
    monkeypatch.setattr(f, "ATTEMPTS", 1)
    with pytest.raises(f.DataUnavailableError, match="cut 1"):
        f.fetch([NUMBERS], [f.Mirror(mirror.url)])
    monkeypatch.undo()
    mirror.contents = {"numbers": DATA}
    assert f.fetch([NUMBERS], [f.Mirror(mirror.url)])["numbers"] == DATA


def test_a_wrong_checksum_is_reported_and_the_next_source_tried(
    mirror: LocalMirror, cache: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    wrong = DATA[:-1] + b"!"
    mirror.contents = {"numbers": wrong}
    (tmp_path / "second").mkdir()
    (tmp_path / "second" / "numbers").write_bytes(DATA)
    sources = [f.Mirror(mirror.url), f.Folder(tmp_path / "second")]
    assert f.fetch([NUMBERS], sources)["numbers"] == DATA
    (message,) = caplog.messages
    for part in ("numbers", NUMBERS.sha256, file_of(wrong).sha256, mirror.url):
        assert part in message
    assert names(cache) == []


def test_the_named_folder_comes_before_the_cache(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.mkdir()
    (cache / "numbers").write_bytes(b"damaged")
    named = tmp_path / "named"
    named.mkdir()
    (named / "numbers.gz").write_bytes(gzip.compress(DATA))
    assert f.fetch([NUMBERS], [], named)["numbers"] == DATA
    monkeypatch.setenv("CONSILIENCE_DATA", str(named))
    assert f.fetch([NUMBERS], [])["numbers"] == DATA
    assert (cache / "numbers").read_bytes() == b"damaged"


def test_a_damaged_cache_is_mended(mirror: LocalMirror, cache: Path) -> None:
    cache.mkdir()
    (cache / "numbers").write_bytes(DATA[:100])
    mirror.contents = {"numbers": DATA}
    assert f.fetch([NUMBERS], [f.Mirror(mirror.url)])["numbers"] == DATA
    assert (cache / "numbers").read_bytes() == DATA


def test_files_may_come_from_different_sources(mirror: LocalMirror, tmp_path: Path) -> None:
    letters = file_of(b"abc", "letters")
    (tmp_path / "letters").write_bytes(b"abc")
    mirror.contents = {"numbers": DATA}
    found = f.fetch([letters, NUMBERS], [f.Mirror(mirror.url)], tmp_path)
    assert found == {"letters": b"abc", "numbers": DATA}
    assert [path for path, _ in mirror.requests] == ["/data/numbers"]


def test_the_error_says_what_was_tried_and_what_to_do(mirror: LocalMirror, tmp_path: Path) -> None:
    mirror.server_close()  # nobody listens at this address now
    letters = file_of(b"abc", "letters")
    with pytest.raises(f.DataUnavailableError) as caught:
        f.fetch([NUMBERS, letters], [f.Mirror(mirror.url)])
    message = str(caught.value)
    for part in (
        f"folder {tmp_path / 'cache'}: numbers: not there",
        f"{mirror.url}: cannot connect",
        f"numbers  sha256 {NUMBERS.sha256}",
        f"letters  sha256 {letters.sha256}",
        "CONSILIENCE_DATA",
    ):
        assert part in message
    assert message.count("cannot connect") == 1  # not once more for every file


def test_a_file_a_mirror_lacks_is_reported_with_its_address(mirror: LocalMirror) -> None:
    with pytest.raises(f.DataUnavailableError, match=f"HTTP 404 .*{mirror.url}/numbers"):
        f.fetch([NUMBERS], [f.Mirror(mirror.url)])


def test_no_half_file_is_left_when_writing_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(f.os, "fsync", full)
    with pytest.raises(OSError, match="no space"):
        f.store(DATA, tmp_path / "numbers")
    assert names(tmp_path) == []


def test_a_cache_that_cannot_be_made(
    mirror: LocalMirror, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "taken").write_text("a file, not a folder")
    monkeypatch.setenv("CONSILIENCE_CACHE", str(tmp_path / "taken" / "cache"))
    mirror.contents = {"numbers": DATA}
    with pytest.raises(f.DataUnavailableError, match="Set CONSILIENCE_CACHE"):
        f.fetch([NUMBERS], [f.Mirror(mirror.url)])


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("CONSILIENCE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert f.cache_folder() == tmp_path / "consilience"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert f.cache_folder() == tmp_path / "home" / ".cache" / "consilience"


def packed_tar(name: str, data: bytes) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as tar:
        entry = tarfile.TarInfo(name)
        entry.size = len(data)
        tar.addfile(entry, io.BytesIO(data))
    return stream.getvalue()


def packed_zip(name: str, data: bytes) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as zipped:
        zipped.writestr(name, data)
    return stream.getvalue()


def packed_deb(name: str, data: bytes) -> bytes:
    members = {"debian-binary": b"2.0", "data.tar.gz": packed_tar(name, data)}  # the first is odd
    packed = b"!<arch>\n"
    for member, content in members.items():
        header = f"{member:<16}{0:<12}{0:<6}{0:<6}{100644:<8}{len(content):<10}`\n"
        packed += header.encode() + content + b"\n" * (len(content) % 2)
    return packed


@pytest.mark.parametrize("pack", [packed_tar, packed_zip, packed_deb])
def test_a_file_in_an_archive(pack, mirror: LocalMirror, cache: Path) -> None:
    packed = pack("package/numbers", DATA)
    mirror.contents = {"archive": packed}
    archive = p.Archive(file_of(packed, "archive"), (f.Mirror(mirror.url),), "package/")
    assert f.fetch([NUMBERS], [archive])["numbers"] == DATA
    assert names(cache) == ["archive", "numbers"]
    with pytest.raises(f.NotHereError, match="no package/letters"):
        archive.read(file_of(b"abc", "letters"))


def test_a_compressed_file_in_an_archive_under_a_shorter_name(
    mirror: LocalMirror, cache: Path
) -> None:
    packed = packed_deb("./share/numbers.gz", gzip.compress(DATA))
    mirror.contents = {"archive": packed}
    archive = p.Archive(file_of(packed, "archive"), (f.Mirror(mirror.url),), "./share/", ".gz")
    ours = file_of(DATA, "ours-numbers")
    assert f.fetch([ours], [p.Unprefixed("ours-", archive)])["ours-numbers"] == DATA
    assert names(cache) == ["archive", "ours-numbers"]


def test_a_package_that_installs_nothing(tmp_path: Path) -> None:
    packed = packed_deb("numbers", DATA).replace(b"data.tar", b"else.tar")
    (tmp_path / "archive").write_bytes(packed)
    archive = p.Archive(file_of(packed, "archive"), (f.Folder(tmp_path),))
    with pytest.raises(f.NotHereError, match="installs nothing"):
        archive.read(NUMBERS)


def test_an_archive_that_cannot_be_had_says_why_once(mirror: LocalMirror) -> None:
    archive = p.Archive(file_of(b"?", "archive"), (f.Mirror(mirror.url),))
    with pytest.raises(f.DataUnavailableError, match="HTTP 404") as caught:
        f.fetch([NUMBERS], [archive])
    assert str(caught.value).count("What to do") == 1


def test_pip_is_told_the_hash_and_may_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    # Stands in for pip: shows the requirement it was given, and fails.
    code = "import sys; sys.exit('ERROR: refused ' + open(sys.argv[-3]).read())"
    monkeypatch.setattr(
        p.subprocess,
        "run",
        lambda command, run=p.subprocess.run, **more: run(
            [sys.executable, "-c", code, *command[1:]], **more
        ),
    )
    with pytest.raises(f.UnreachableError, match="exit code 1: ERROR: refused thing==1 --hash"):
        p.Pip("thing==1").read(NUMBERS)


def test_npm_may_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(p.shutil, "which", lambda _: None)
    with pytest.raises(f.UnreachableError, match="npm is not installed"):
        p.Npm("thing@1").read(NUMBERS)


def test_apt_leaves_the_package_or_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Stands in for apt: writes down how it was called, in a file called as the package.
    apt = tmp_path / "apt-get"
    apt.write_text('#!/bin/sh\necho "$@" > numbers\n')
    apt.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert p.Apt("thing=1").read(NUMBERS) == b"download --quiet thing=1\n"
    apt.unlink()
    with pytest.raises(f.UnreachableError, match="apt is not installed"):
        p.Apt("thing=1").read(NUMBERS)
