"""Models in files by somebody who wants harm: they cost that party alone, in bounded time."""

import json
import os
import re
import socket
import struct
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from threading import Thread

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from typer.testing import CliRunner

import consilience as cs
from consilience.cli.commands import app
from consilience.engines.files.model import INDEX


def honest(folder: Path, parties="abc", size=1000, metadata=None) -> dict[str, Path]:
    """Write good models; return their paths."""
    random = np.random.default_rng(0)
    truth = random.standard_normal(size)
    paths = {}
    for party in parties:
        paths[party] = folder / f"{party}.safetensors"
        value = (truth + 0.1 * random.standard_normal(size)).astype(np.float32)
        save_file({"w": value}, paths[party], metadata)
    return paths


def costs_eve_alone(folder: Path, eve: Path, reason: str) -> None:
    """Merge her model with good ones, quickly: she is rejected, and the others are not harmed."""
    paths = honest(folder)
    expected = cs.aggregate({p: load_file(path) for p, path in paths.items()}).value["w"]
    started = time.process_time()  # of the clock on the wall others may take their share
    found = cs.aggregate_files({**paths, "eve": eve}, folder / "out.safetensors")
    assert time.process_time() - started < 2
    assert list(found.rejected) == ["eve"]
    assert reason in found.rejected["eve"]
    assert len(found.rejected["eve"]) < 1000
    assert found.rejected["eve"].isprintable()
    np.testing.assert_array_equal(load_file(found.value)["w"], expected)


def file_of(header, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def entry(shape, end, begin=0, dtype="F32"):
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def deep(depth: int) -> bytes:
    return b"[" * depth + b"]" * depth


HEADERS = {
    "dtype no text": (lambda: file_of({"w": entry([1], 4, dtype=[])}, bytes(4)), "of no dtype"),
    "dtype an object": (lambda: file_of({"w": entry([1], 4, dtype={})}, bytes(4)), "of no dtype"),
    "300 dimensions": (lambda: file_of({"w": entry([2**61] * 300, 0)}), "300 dimensions"),
    "200,000 dimensions": (lambda: file_of({"w": entry([2**61] * 200_000, 0)}), "200000 dim"),
    "64 dimensions": (lambda: file_of({"w": entry([2**61] * 64, 0)}), "its shape lies"),
    "nothing by much": (lambda: file_of({"w": entry([0, 2**61, 2**61], 0)}), "its shape lies"),
    "half a character": (lambda: file_of(b'{"\\ud800":{}}'), "half a character"),
    "half in metadata": (lambda: file_of({"__metadata__": {"a": "\udc00"}}), "half a character"),
    "half as a key": (lambda: file_of({"__metadata__": {"\ud800": "a"}}), "half a character"),
    "half in bytes": (lambda: file_of(b'{"\xed\xa0\x80":{}}'), "is broken"),
    "another encoding": (lambda: file_of("{}".encode("utf-16")), "is broken"),
    "deep shape": (
        lambda: file_of(b'{"w":{"dtype":"F32","shape":' + deep(900) + b',"data_offsets":[0,0]}}'),
        "not all counts",
    ),
    "deep dtype": (
        lambda: file_of(b'{"w":{"dtype":' + deep(900) + b',"shape":[],"data_offsets":[0,4]}}'),
        "of no dtype",
    ),
    "text as shape": (lambda: file_of({"w": entry("abc", 4)}, bytes(4)), "not all counts"),
    "long name": (lambda: file_of({"w" * 10**6: 3}), "lacks a dtype"),
    "long name twice": (lambda: file_of(b'{"%b":1,"%b":1}' % ((b"w" * 10**6,) * 2)), "twice"),
    "long dtype": (lambda: file_of({"w": entry([1], 4, dtype="F" * 10**6)}, bytes(4)), "is FFFFF"),
    "escapes in a name": (lambda: file_of({"\x1b[2J\nann: fine": 3}), "\\x1b[2J\\nann"),
    "a million lists": (lambda: file_of(b"[" + b"[]," * 5_000_000 + b"[]]"), "more values"),
    "a million tensors": (
        lambda: file_of(b"{" + b",".join(b'"%d":{}' % n for n in range(1_000_000)) + b"}"),
        "more values",
    ),
    "long metadata": (lambda: file_of({"__metadata__": {"a": "b" * 2_000_000}}), "at most 1048576"),
    "a long number": (lambda: file_of(b'{"w":' + b"9" * 5000 + b"}"), "is broken"),
}


@pytest.mark.parametrize("what", HEADERS)
def test_headers(tmp_path: Path, what):
    make, reason = HEADERS[what]
    eve = tmp_path / "eve.safetensors"
    eve.write_bytes(make())
    costs_eve_alone(tmp_path, eve, reason)


def folder_of(path: Path, weight_map: object, shards: dict[str, bytes]) -> Path:
    path.mkdir()
    (path / INDEX).write_text(json.dumps({"weight_map": weight_map}))
    for name, content in shards.items():
        (path / name).write_bytes(content)
    return path


def test_a_model_has_one_header_however_many_shards(tmp_path: Path):
    """Six shards of 16 MB would be parsed into a gigabyte."""
    shards = {f"{n}.safetensors": file_of(b"{}".ljust(9_000_000)) for n in range(2)}
    eve = folder_of(tmp_path / "eve", {str(n): name for n, name in enumerate(shards)}, shards)
    costs_eve_alone(tmp_path, eve, "the headers of its 2 files have 18000016 bytes")


INDICES = {
    "a million tensors": (lambda: {f"w{n}": "a.safetensors" for n in range(300_000)}, "this index"),
    "half a character": (lambda: {"w": "\ud800.safetensors"}, "no file can have this name"),
    "no character": (lambda: {"w": "a\0.safetensors"}, "no file can have this name"),
    "a list": (lambda: {"w": [[]]}, "lies in list"),
    "a long name": (lambda: {"w": "a" * 10**6 + ".safetensors"}, "File name too long"),
}


@pytest.mark.parametrize("what", INDICES)
def test_indices(tmp_path: Path, what):
    make, reason = INDICES[what]
    costs_eve_alone(tmp_path, folder_of(tmp_path / "eve", make(), {}), reason)


def test_an_index_that_is_a_link_to_nothing(tmp_path: Path):
    eve = tmp_path / "eve"
    eve.mkdir()
    (eve / INDEX).symlink_to("nowhere")
    save_file({"w": np.ones(1000, np.float32)}, eve / "model.safetensors")
    costs_eve_alone(tmp_path, eve, "cannot be opened")


def npz_of(path: Path, members: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


def npy(header: bytes, data: bytes = b"") -> bytes:
    return b"\x93NUMPY\x02\0" + struct.pack("<I", len(header)) + header + data


def described(shape: str, descr: str = "'<f4'") -> bytes:
    return f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}\n".encode()


NPY = {
    "deep": (npy(b"(" * 3000 + b")" * 3000), "broken header"),
    "signs": (npy(b"-" * 4000 + b"1"), "broken header"),
    "blanks": (npy(described("(1,)")[:-3] + b" " * 3900 + b"!"), "broken header"),
    "dimensions": (npy(described("(" + "1000000000000000," * 100 + ")")), "100 dimensions"),
    "overflow": (npy(described("(" + "1000000000000000," * 64 + ")")), "its shape lies"),
    "digits": (npy(described("(" + "9" * 3000 + ",)")), "broken header"),
    "fields": (npy(described("(1,)", "[('a', '<f4')]"), bytes(4)), "broken header"),
    "fields as text": (npy(described("(1,)", "'f4,f4'"), bytes(8)), "broken header"),
    "array as text": (npy(described("(1,)", "'(9999999,)f4'")), "broken header"),
    "long double": (npy(described("(1,)", "'<f16'"), bytes(16)), "found <f16"),
    "old alias": (npy(described("(1,)", "'a'"), bytes(4)), "found a"),
    "too long": (b"\x93NUMPY\x02\0\xff\xff\xff\xff", "broken header"),
    "short": (b"\x93NUM", "broken header"),
    "nothing": (b"", "broken header"),
}


@pytest.mark.parametrize("what", NPY)
def test_npy_headers(tmp_path: Path, what):
    content, reason = NPY[what]
    costs_eve_alone(tmp_path, npz_of(tmp_path / "eve.npz", {"w.npy": content}), reason)


def overlapping(path: Path, count: int) -> Path:
    """Write an archive whose many members are all the same bytes."""
    npz_of(path, {"w.npy": npy(described("(1000,)"), bytes(4000))})
    raw = path.read_bytes()
    at = raw.index(b"PK\x01\x02")
    local, record, end = raw[:at], raw[at : raw.index(b"PK\x05\x06")], raw[-22:]
    record = record.replace(b"w.npy", b"%05d")
    records = b"".join(record.replace(b"%05d", b"%05d" % n) for n in range(count))
    end = end[:8] + struct.pack("<HHII", count, count, len(records), at) + b"\0\0"
    path.write_bytes(local + records + end)
    return path


def test_members_that_are_the_same_bytes(tmp_path: Path):
    costs_eve_alone(tmp_path, overlapping(tmp_path / "eve.npz", 50_000), "share the bytes")


def test_names_that_are_one_name(tmp_path: Path):
    value = npy(described("(1,)"), bytes(4))
    eve = npz_of(tmp_path / "eve.npz", {"w": value, "w.npy": value})
    costs_eve_alone(tmp_path, eve, "'w' occurs twice")


def test_names_no_archive_can_hold(tmp_path: Path):
    for name in ["a\0b", "a" * 70_000]:
        save_file({name: np.ones(3, np.float32)}, tmp_path / "a.safetensors")
        with pytest.raises(cs.ConsilienceError, match="no member of an archive"):
            cs.aggregate_files([tmp_path / "a.safetensors"], tmp_path / "out.npz")
    np.savez(tmp_path / "a.npz", __metadata__=np.ones(3))
    with pytest.raises(cs.ConsilienceError, match="called '__metadata__'"):
        cs.aggregate_files([tmp_path / "a.npz"], tmp_path / "out.safetensors")


def test_what_is_no_file_is_not_waited_for(tmp_path: Path):
    os.mkfifo(tmp_path / "pipe.safetensors")
    eve = tmp_path / "eve.safetensors"
    for target in [tmp_path / "pipe.safetensors", Path("/dev/zero"), Path("/dev/tty")]:
        eve.symlink_to(target)
        costs_eve_alone(tmp_path, eve, "expected a file")
        eve.unlink()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(eve))
        costs_eve_alone(tmp_path, eve, "expected a file")
    folder_of(tmp_path / "folder", {"w": "pipe.safetensors"}, {})
    os.mkfifo(tmp_path / "folder" / "pipe.safetensors")
    costs_eve_alone(tmp_path, tmp_path / "folder", "expected a file")


def test_a_link_to_the_output_stops_nobody(tmp_path: Path):
    eve = tmp_path / "eve"
    eve.mkdir()
    (eve / "link.safetensors").symlink_to(tmp_path / "out.safetensors")
    paths = honest(tmp_path)
    for _ in range(2):
        cs.aggregate_files({**paths, "eve": eve}, tmp_path / "out.safetensors")


def test_names_that_are_no_text(tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for path in honest(tmp_path).values():
        path.rename(tmp_path / os.fsdecode(path.stem.encode() + b"\xff.safetensors"))
    (tmp_path / "a\\udcff.safetensors").write_bytes(b"another")
    (tmp_path / os.fsdecode(b"eve\xff\x1b[2J.safetensors")).write_bytes(b"")
    found = CliRunner().invoke(app, ["merge", "*.safetensors", "-o", "out.npz", "--json"])
    assert found.exit_code == 1, found.output
    parties = json.loads(found.stdout)["parties"]
    assert {p for p, one in parties.items() if not one["rejected"]} == {
        rf"{p}\udcff.safetensors" for p in "abc"
    }
    assert r"a\\udcff.safetensors" in parties
    found = CliRunner().invoke(app, ["merge", "*.safetensors", "-o", "out2.npz"])
    assert found.exit_code == 1, found.output
    assert "\x1b[2J" not in "".join(one["reason"] or "" for one in parties.values())


FEW = """
import resource, sys, consilience as cs
resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))
print(cs.aggregate_files(sys.argv[2:], sys.argv[1]).rejected)
"""


@pytest.mark.integration
def test_more_shards_than_files_may_be_open(tmp_path: Path):
    random = np.random.default_rng(0)
    truth = random.standard_normal((100, 10)).astype(np.float32)
    names = [f"{n}.safetensors" for n in range(100)]
    for party in "abcd":
        places = dict(zip(map(str, range(100)), names, strict=True))
        folder = folder_of(tmp_path / party, places, {})
        for n, name in enumerate(names):
            noise = 0.1 * random.standard_normal(10).astype(np.float32)
            save_file({str(n): truth[n] + noise}, folder / name)
    words = [sys.executable, "-c", FEW, tmp_path / "out", *(tmp_path / party for party in "abcd")]
    said = subprocess.run(words, capture_output=True, text=True, check=False)
    assert said.stdout == "{}\n", said.stderr
    assert len(os.listdir(tmp_path / "out")) == 101


def test_longer_metadata_does_not_overwrite_the_model(tmp_path: Path):
    """Room is left for the longest metadata: in bytes as written, not in another spelling."""
    paths = honest(tmp_path, "abc", metadata={"note": "a" * 500})
    paths["eve"] = honest(tmp_path, "e", metadata={"note": "é" * 100})["e"]
    found = cs.aggregate_files(paths, tmp_path / "out.safetensors")
    assert max(found.weights, key=found.weights.get) != "eve"
    expected = cs.aggregate({p: load_file(path) for p, path in paths.items()}).value["w"]
    np.testing.assert_array_equal(load_file(found.value)["w"], expected)


def test_metadata_do_not_fill_every_shard(tmp_path: Path):
    random = np.random.default_rng(0)
    truth = random.standard_normal((30, 50))
    for party in "abce":
        (folder := tmp_path / party).mkdir()
        names = {str(n): f"{n}.safetensors" for n in range(30)}
        (folder / INDEX).write_text(json.dumps({"weight_map": names}))
        for n, name in names.items():
            value = truth[int(n)] + 0.1 * random.standard_normal(50)
            metadata = {"x": "\1" * 10**6} if party == "e" and n == "0" else {"format": "pt"}
            save_file({n: value.astype(np.float32)}, folder / name, metadata)
    paths = [tmp_path / party for party in "abce"]
    found = cs.aggregate_files(paths, tmp_path / "out")
    assert not found.rejected
    assert sum(file.stat().st_size for file in found.value.iterdir()) < 10e6
    again = cs.aggregate_files([*paths[:3], found.value], None)
    assert not again.rejected


def rewrite(path: Path) -> None:
    """Change a model, and put back the time of its last change."""
    before = path.stat()
    with open(path, "r+b") as file:
        file.seek(-2000, os.SEEK_END)
        file.write(np.full(500, 1e6, np.float32).tobytes())
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def replace(path: Path) -> None:
    """Put another model in the place of one, as large and as old."""
    before, raw = path.stat(), path.read_bytes()
    path.with_suffix(".new").write_bytes(raw[:-2000] + np.full(500, 1e6, np.float32).tobytes())
    os.utime(path.with_suffix(".new"), ns=(before.st_atime_ns, before.st_mtime_ns))
    path.with_suffix(".new").rename(path)


def merged_while(paths, out, spoil) -> cs.Consensus:
    spoilt = []

    def interfere(step, done, total):
        if not spoilt and done == total:
            spoilt.append(step)
            spoil()

    found = cs.aggregate_files(paths, out, progress=interfere)
    assert spoilt == ["evidence"]
    return found


def test_a_change_is_noticed_although_its_time_was_put_back(tmp_path: Path, monkeypatch):
    monkeypatch.setattr("consilience.engines.files.aggregate._KEPT", 0)
    paths = honest(tmp_path, "abcde")
    found = merged_while(paths, tmp_path / "out.safetensors", lambda: rewrite(paths["b"]))
    assert list(found.rejected) == ["b"]
    assert "was changed while" in found.rejected["b"]
    assert abs(load_file(found.value)["w"]).max() < 10


@pytest.mark.parametrize("spoil", [rewrite, replace, os.unlink, lambda p: os.truncate(p, 9)])
def test_what_fits_is_read_once(tmp_path: Path, spoil):
    paths = honest(tmp_path, "abcde")
    expected = cs.aggregate({p: load_file(path) for p, path in paths.items()}).value["w"]
    found = merged_while(paths, tmp_path / "out.safetensors", lambda: spoil(paths["b"]))
    assert not found.rejected
    np.testing.assert_array_equal(load_file(found.value)["w"], expected)


def test_a_file_opened_again_must_be_the_same(tmp_path: Path, monkeypatch):
    monkeypatch.setattr("consilience.engines.files.aggregate._KEPT", 0)
    monkeypatch.setattr("consilience.engines.files.descriptors._MOST", 1)
    paths = honest(tmp_path, "abcde")
    found = merged_while(paths, tmp_path / "out.safetensors", lambda: replace(paths["b"]))
    assert list(found.rejected) == ["b"]
    assert "was changed while" in found.rejected["b"]


def test_many_files_that_change_one_after_another(tmp_path: Path, monkeypatch):
    monkeypatch.setattr("consilience.engines.files.aggregate._KEPT", 0)
    eves = [f"e{n:03}" for n in range(25)]
    paths = honest(tmp_path, ["a", "b", "c", *eves])
    left = list(eves)

    def interfere(step, done, total):
        if step == "evidence" and left:
            rewrite(paths[left.pop()])

    found = cs.aggregate_files(paths, tmp_path / "out.safetensors", progress=interfere)
    assert set(found.rejected) == set(eves)


def test_a_file_that_shrinks_and_grows_all_the_time(tmp_path: Path, monkeypatch):
    monkeypatch.setattr("consilience.engines.files.aggregate._KEPT", 0)
    paths = honest(tmp_path, "abcde", 100_000)
    whole, stop = paths["b"].read_bytes(), []

    def writhe():
        while not stop:
            os.truncate(paths["b"], 5000)
            paths["b"].write_bytes(whole)

    thread = Thread(target=writhe)
    thread.start()
    try:
        for _ in range(5):
            found = cs.aggregate_files(paths, tmp_path / "out.safetensors")
            assert set(found.rejected) <= {"b"}
            assert np.isfinite(load_file(found.value)["w"]).all()
    finally:
        stop.append(True)
        thread.join()


@pytest.mark.parametrize("suffix", [".safetensors", ".npz", ""])
def test_a_folder_that_is_not_ours_keeps_its_files(tmp_path: Path, suffix):
    """Whatever lies in the way, links and folders like those a killed merge leaves."""
    paths, out = honest(tmp_path), tmp_path / f"out{suffix}"
    if not suffix:
        folder = folder_of(tmp_path / "d", {"w": "w.safetensors"}, {})
        paths["d"] = paths["a"].rename(folder / "w.safetensors").parent
        del paths["a"]
    precious = tmp_path / "precious"
    precious.mkdir()
    for name in ["content", "tensors", "letters"]:
        (precious / name).write_text("precious")
    names = [f".{out.name}.partial", f".{out.name}.0123456789abcdef.partial"]
    for name in names:
        (tmp_path / name).symlink_to(precious)
    prepared = tmp_path / f".{out.name}.{'a' * 16}.partial"  # a folder of ours under such a name
    prepared.mkdir()
    (prepared / "letters").write_text("precious")
    (prepared / "lock").symlink_to(precious / "letters")
    (tmp_path / f".{out.name}.{'b' * 16}.partial").write_text("precious")
    cs.aggregate_files(paths, out)
    assert sorted(os.listdir(precious)) == ["content", "letters", "tensors"]
    assert (prepared / "letters").read_text() == "precious"
    assert all((tmp_path / name).is_symlink() for name in names)
    assert not out.is_symlink()
    assert out.is_dir() == (not suffix)


def test_leftovers_of_another_owner_stay(tmp_path: Path):
    if os.geteuid() != 0:
        pytest.skip("only root can make a folder of another owner")
    paths, out = honest(tmp_path), tmp_path / "out.safetensors"
    theirs = tmp_path / f".{out.name}.{'0' * 16}.partial"
    theirs.mkdir()
    for name in ["lock", "content"]:
        (theirs / name).write_text("theirs")
    os.chown(theirs, 1234, 1234)
    cs.aggregate_files(paths, out)
    assert sorted(os.listdir(theirs)) == ["content", "lock"]
    os.chown(theirs, 0, 0)
    os.chown(theirs / "lock", 1234, 1234)
    cs.aggregate_files(paths, out)
    assert sorted(os.listdir(theirs)) == ["content", "lock"]
    os.chown(theirs / "lock", 0, 0)
    cs.aggregate_files(paths, out)
    assert not theirs.exists()


def test_the_hidden_name_cannot_be_foreseen(tmp_path: Path):
    paths, seen = honest(tmp_path), set()

    def look(step, done, total):
        seen.update(name for name in os.listdir(tmp_path) if name.startswith("."))

    for _ in range(2):
        cs.aggregate_files(paths, tmp_path / "out.npz", progress=look)
    assert len(seen) == 2
    assert all(re.fullmatch(r"\.out\.npz\.[0-9a-f]{16}\.partial", name) for name in seen)


def test_a_memory_is_not_written_through_a_link(tmp_path: Path):
    memory, path = cs.Memory(), tmp_path / "m.npz"
    (tmp_path / "precious").write_text("precious")
    path.symlink_to(tmp_path / "precious")
    (tmp_path / f".m.npz.{'0' * 16}.partial").symlink_to(tmp_path / "precious")
    stale = tmp_path / f".m.npz.{'1' * 16}.partial"
    stale.write_text("half")
    os.mkfifo(tmp_path / f".m.npz.{'2' * 16}.partial")
    memory.save(path)
    assert (tmp_path / "precious").read_text() == "precious"
    assert not path.is_symlink()
    assert not stale.exists()
    assert cs.Memory.load(path).rounds == 0


@pytest.mark.parametrize(
    "words",
    [
        "-o out.npz --memory out.npz",
        "-o ./out.npz --memory sub/../out.npz",
        "-o out.npz --record run.html --report run.html",
        "-o out.npz --memory run.html --report run.html",
        "-o out.npz --record out.npz",
    ],
)
def test_what_is_written_twice_would_be_lost_once(tmp_path: Path, monkeypatch, words):
    monkeypatch.chdir(tmp_path)
    Path("sub").mkdir()
    honest(tmp_path)
    found = CliRunner().invoke(app, ["merge", *(f"{p}.safetensors" for p in "abc"), *words.split()])
    assert found.exit_code == 2
    assert not Path("out.npz").exists()


def test_metadata_may_be_null(tmp_path):
    """As the format's own reader has it."""
    sound = file_of({"__metadata__": None, "w": entry([3], 12)}, np.ones(3, "<f4").tobytes())
    (tmp_path / "a.safetensors").write_bytes(sound)
    found = cs.aggregate_files([tmp_path / "a.safetensors"], tmp_path / "out.safetensors", "mean")
    np.testing.assert_array_equal(load_file(found.value)["w"], np.ones(3))
