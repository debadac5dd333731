"""Memory files made to mislead: whatever is no memory is refused, by name and in little room."""

import json
import tracemalloc
import zipfile
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

import consilience as cs


@pytest.fixture
def used() -> cs.Memory:
    """A memory with two blocks, hidden directions and trails."""
    random = np.random.default_rng(0)
    memory = cs.Memory(0.8)
    for parties in ("abcd", "bcde"):
        updates = {p: random.standard_normal(40) for p in parties}
        cs.aggregate(updates, "pairwise", memory)
        cs.aggregate(updates, cs.ICOV(rank=2), memory)
    return memory


@pytest.fixture
def parts(used: cs.Memory, tmp_path: Path):
    """The header and the arrays of its file."""
    used.save(tmp_path / "memory.npz")
    with np.load(tmp_path / "memory.npz") as file:
        arrays = {name: array.copy() for name, array in file.items()}
    return json.loads(arrays.pop("header").tobytes()), arrays


def written(path: Path, header, arrays) -> Path:
    text = header if isinstance(header, str) else json.dumps(header)
    with open(path, "wb") as file:
        np.savez(file, header=np.frombuffer(text.encode(), np.uint8), **arrays)
    return path


def refused(path: Path, why: str = "") -> None:
    before = path.read_bytes()
    with pytest.raises(cs.MemoryFileError, match=rf"not a readable memory \(.*{why}"):
        cs.Memory.load(path)
    assert path.read_bytes() == before


def test_the_parts_as_they_were_are_a_memory(parts, tmp_path: Path):
    assert cs.Memory.load(written(tmp_path / "m.npz", *parts)).rounds == 4


@pytest.mark.parametrize("count", [1e308, float("nan"), float("inf"), 0, -1.0, True, "5", None])
def test_a_count_that_no_rounds_can_have_seen(parts, tmp_path: Path, count):
    header, arrays = parts
    header["blocks"][1]["count"] = count
    refused(written(tmp_path / "m.npz", header, arrays), "count")


@pytest.mark.parametrize("ids", [[1, 2, 3, 4], ["a", "b", "c", None], list("abca"), "abcd", {}])
@pytest.mark.parametrize("where", ["block", "known", "trails"])
def test_ids_that_are_no_text_or_not_one_partys(parts, tmp_path: Path, ids, where: str):
    header, arrays = parts
    place = {"block": header["blocks"][0], "known": header["known"], "trails": header["trails"][0]}
    if where != "block" and isinstance(ids, list):
        ids = [*ids, "e"]
    place[where]["parties"] = ids
    refused(written(tmp_path / "m.npz", header, arrays), "parties")


def test_the_same_parties_in_two_blocks(parts, tmp_path: Path):
    header, arrays = parts
    header["blocks"][1]["parties"] = header["blocks"][0]["parties"][::-1]
    refused(written(tmp_path / "m.npz", header, arrays), "twice")


@pytest.mark.parametrize(
    ("at", "value"), [((0, 1), 9.0), ((slice(None), slice(None)), -1.0), ((2, 2), 1.0)]
)
def test_distances_that_are_none(parts, tmp_path: Path, at, value: float):
    header, arrays = parts
    arrays["distances0"][at] = value
    refused(written(tmp_path / "m.npz", header, arrays), "distance")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((name, value) for name in ("noise", "own") for value in (np.nan, np.inf, -1.0)),
        ("factors", np.nan),
        ("factors", np.inf),
        ("prior", np.nan),
        ("prior", -1.0),
        ("rounds0", 5.0),  # more than the memory has
    ],
)
def test_beliefs_that_nobody_can_have(parts, tmp_path: Path, name: str, value: float):
    header, arrays = parts
    arrays[name] = np.where(np.arange(arrays[name].size).reshape(arrays[name].shape), 1.0, value)
    refused(written(tmp_path / "m.npz", header, arrays))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("rounds", value) for value in (-1, 1.5, True, "4", 10**400, float("inf"), None)),
        *(("decay", value) for value in (True, "0.5", None, float("nan"))),
        ("blocks", {}),
        ("blocks", [[]]),
        ("known", []),
        ("trails", 7),
        ("trails", None),
        ("trails", {"0": {}}),
    ],
)
def test_headers_that_are_none(parts, tmp_path: Path, key: str, value):
    header, arrays = parts
    header[key] = value
    refused(written(tmp_path / "m.npz", header, arrays))


def test_a_header_nested_without_end(parts, tmp_path: Path):
    refused(written(tmp_path / "m.npz", "[" * 100_000, parts[1]))


@pytest.mark.parametrize("name", ["more", "distances2"])
def test_what_no_header_speaks_of(parts, tmp_path: Path, name: str):
    header, arrays = parts
    refused(written(tmp_path / "m.npz", header, {**arrays, name: np.ones((5, 5))}), name)


def test_a_name_that_would_forge_a_line(tmp_path: Path):
    path = written(tmp_path / "m.npz", {"format": "x\nmemory.npz: all is well", "version": 1}, {})
    with pytest.raises(cs.MemoryFileError) as refusal:
        cs.Memory.load(path)
    assert str(refusal.value).isprintable()


def peak_of_refusing(path: Path) -> int:
    tracemalloc.start()
    try:
        refused(path)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("name", ["header.npy", "distances0.npy", "noise.npy"])
def test_a_bomb_is_refused_before_it_is_inflated(parts, tmp_path: Path, name: str):
    header, arrays = parts
    path = tmp_path / "m.npz"
    if name == "header.npy":
        path.write_bytes(b"")
    else:
        del arrays[name.removesuffix(".npy")]
        written(path, header, arrays)
    mega = bytes(1 << 20)
    with (
        zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
        archive.open(name, "w") as member,
    ):
        shape = (100 * (1 << 20) // 8,)
        head = {"descr": "<f8", "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(member, head)
        for _ in range(100):
            member.write(mega)
    assert path.stat().st_size < 1 << 20
    assert peak_of_refusing(path) < 10 << 20


def test_an_array_that_claims_to_be_larger_than_its_bytes(parts, tmp_path: Path):
    header, arrays = parts
    del arrays["noise"]
    path = written(tmp_path / "m.npz", header, arrays)
    with (
        zipfile.ZipFile(path, "a") as archive,
        archive.open("noise.npy", "w") as member,
    ):
        head = {"descr": "<f8", "fortran_order": False, "shape": (1 << 26,)}
        np.lib.format.write_array_header_1_0(member, head)
        member.write(bytes(40))
    assert peak_of_refusing(path) < 10 << 20


def test_a_flipped_bit_is_noticed_or_changes_nothing(used: cs.Memory, parts, tmp_path: Path):
    header, expected = parts
    path = tmp_path / "memory.npz"
    content = path.read_bytes()
    for bit in np.random.default_rng(0).choice(8 * len(content), 150, replace=False):
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << (bit % 8)
        path.write_bytes(flipped)
        with suppress(cs.MemoryFileError):
            cs.Memory.load(path).save(path)
            with np.load(path) as found:
                assert json.loads(found["header"].tobytes()) == header
                assert all(found[name].tobytes() == expected[name].tobytes() for name in expected)


@pytest.mark.parametrize("own", [0.0, 1e-320])
@pytest.mark.parametrize("method", ["ivar-mle", "ivar-vb", cs.ICOV(rank=1)], ids=str)
def test_a_noise_without_a_precision_is_not_known(method, own: float):
    """Or else no later round would have weights."""
    X = np.random.default_rng(0).standard_normal((6, 50))
    memory = cs.Memory()
    cs.aggregate(X, method, memory)
    assert memory.known is not None
    assert memory.known.latent is not None
    memory.known.latent.own[0] = own
    assert np.isfinite(cs.aggregate(X, method, memory).value).all()
