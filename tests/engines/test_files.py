"""Models in files: the same consensus as of arrays, no header believed, nothing half-written."""

import json
import os
import struct
import subprocess
import sys
import zipfile
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

import consilience as cs
from consilience.engines.files.model import INDEX, open_model
from consilience.passes.sampling import sampled_spans

DTYPES = ["float16", "float32", "float64", "bfloat16"]


def models(parties="abcdef", dtype="float32", size=60_000, seed=0):
    """Return parties' models; the last flips the sign, and each has its own counter."""
    random = np.random.default_rng(seed)
    # In the order in which safetensors writes them: the sample depends on it.
    truth = {"b": random.standard_normal(size), "deep.name": random.standard_normal(2 * size + 1)}
    truth["w"] = random.standard_normal((size // 100, 100))
    made = {}
    for j, party in enumerate(parties):
        sign = -1 if j == len(parties) - 1 else 1
        noise = 0.1 * (1 + j)
        made[party] = {
            name: (sign * value + noise * random.standard_normal(value.shape)).astype(
                ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype
            )
            for name, value in truth.items()
        }
        made[party]["steps"] = np.array([j, 7])
        made[party]["mask"] = np.array(j % 2 == 0)
    return made


def save(model, path: Path, metadata=None, shards=None):
    if path.suffix == ".npz":
        np.savez(path, **model)
    elif path.suffix == ".safetensors":
        save_file(model, path, metadata)
    else:
        path.mkdir()
        shards = shards or {"w": "one.safetensors"}
        places = {name: shards.get(name, "two.safetensors") for name in model}
        for file in set(places.values()):
            held = {name: value for name, value in model.items() if places[name] == file}
            save_file(held, path / file, metadata)
        (path / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": places}))
    return path


def load(path: Path):
    if path.is_dir():
        index = json.loads((path / INDEX).read_text())
        files = {name: load_file(path / name) for name in set(index["weight_map"].values())}
        return {name: files[file][name] for name, file in index["weight_map"].items()}
    if path.suffix == ".npz":
        with np.load(path) as arrays:
            return dict(arrays)
    return load_file(path)


def save_all(made, folder: Path, suffix=".safetensors", **how):
    return {party: save(model, folder / f"{party}{suffix}", **how) for party, model in made.items()}


def assert_same(found, expected):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name].dtype == value.dtype
        assert found[name].shape == value.shape
        assert found[name].tobytes() == value.tobytes(), name


def nothing_left(folder: Path):
    return not [name for name in os.listdir(folder) if name.startswith(".")]


@pytest.mark.parametrize("method", cs.methods())
def test_files_give_what_arrays_give(tmp_path: Path, method):
    made = models()
    expected = cs.aggregate(made, method)
    found = cs.aggregate_files(save_all(made, tmp_path), tmp_path / "out.safetensors", method)
    assert found.value == tmp_path / "out.safetensors"
    assert (found.weights, found.noise) == (expected.weights, expected.noise)
    assert_same(load(found.value), expected.value)
    assert nothing_left(tmp_path)


@pytest.mark.parametrize("suffix", [".safetensors", ".npz", ""])
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_format_and_dtype(tmp_path: Path, suffix, dtype):
    if suffix == ".npz" and dtype == "bfloat16":
        pytest.skip("numpy has no bfloat16")
    made = models("abcd", dtype)
    found = cs.aggregate_files(save_all(made, tmp_path, suffix), tmp_path / f"out{suffix}")
    assert_same(load(found.value), cs.aggregate(made).value)


def test_formats_may_mix_and_the_output_has_its_own(tmp_path: Path):
    made = models("abc")
    paths = {
        p: save(made[p], tmp_path / f"{p}{s}")
        for p, s in zip("abc", ["", ".npz", ".safetensors"], strict=True)
    }
    for out in ["out.npz", "out.safetensors", "out"]:
        found = cs.aggregate_files(paths, tmp_path / out)
        assert_same(load(found.value), cs.aggregate(made).value)
    assert sorted(os.listdir(tmp_path / "out")) == [INDEX, "one.safetensors", "two.safetensors"]


def test_big_endian_arrays(tmp_path: Path):
    made = models("abc")
    swapped = {
        p: {n: v.astype(v.dtype.newbyteorder(">")) for n, v in m.items()} for p, m in made.items()
    }
    found = cs.aggregate_files(save_all(swapped, tmp_path, ".npz"), tmp_path / "out.safetensors")
    assert_same(load(found.value), cs.aggregate(made).value)


def test_integers_are_voted_on_and_the_metadata_are_the_heaviests(tmp_path: Path):
    made = models("dcba")
    paths = {
        p: save(m, tmp_path / f"{p}.safetensors", {"who": p * (50 - ord(p) % 7)})
        for p, m in made.items()
    }
    found = cs.aggregate_files(paths, tmp_path / "out.safetensors")
    heaviest = max(found.weights, key=found.weights.get)
    assert heaviest == "d"
    raw = found.value.read_bytes()
    header = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])
    assert header["__metadata__"] == {"who": heaviest * (50 - ord(heaviest) % 7)}
    steps = np.sort([model["steps"] for model in made.values()], axis=0)
    np.testing.assert_array_equal(load(found.value)["steps"], steps[1])


def test_the_output_takes_after_the_commonest_of_those_that_are_left(tmp_path: Path):
    made = models("abcd") | {p: m for p, m in models("abcd", "float64").items() if p in "cd"}
    made["b"]["w"][5, 5] = np.nan
    found = cs.aggregate_files(save_all(made, tmp_path), tmp_path / "out.safetensors")
    assert set(found.rejected) == {"b"}
    assert_same(load(found.value), cs.aggregate(made).value)


@pytest.mark.parametrize("method", ["ivar-vb", "pairwise"])
def test_a_centre_and_a_memory(tmp_path: Path, method):
    made, base = models("abcd"), models("z", seed=5)["z"]
    center = save(base, tmp_path / "base.safetensors")
    ours, theirs = cs.Memory(seed=1), cs.Memory(seed=1)
    for _ in range(2):
        found = cs.aggregate_files(
            {p: save(m, tmp_path / f"{p}.safetensors") for p, m in made.items()},
            tmp_path / "out.safetensors",
            method,
            ours,
            center,
        )
        expected = cs.aggregate(made, method, theirs, base)
    assert found.weights == expected.weights
    assert (ours.rounds, ours.noise) == (2, theirs.noise)
    base["w"][3, 3] = np.nan
    with pytest.raises(cs.UpdateError, match="centre's tensor 'w' holds NaN"):
        cs.aggregate_files([tmp_path / "a.safetensors"], None, center=save(base, center))


def test_to_learn_only_who_is_trusted(tmp_path: Path):
    made = models()
    paths, memory = save_all(made, tmp_path), cs.Memory()
    before = sorted(os.listdir(tmp_path))
    for method in ["pairwise", "trimmed-mean"]:
        assert cs.aggregate_files(paths, None, method).weights == cs.aggregate(made, method).weights
    assert cs.aggregate_files(paths, None).value is None
    assert memory.rounds == 0
    assert sorted(os.listdir(tmp_path)) == before


def header_of(entries, data=b"", length=None):
    text = entries if isinstance(entries, bytes) else json.dumps(entries).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def entry(shape, begin, end, dtype="F32"):
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


LIES = {
    "empty": (b"", "it has 0 bytes"),
    "short": (b"abc", "it has 3 bytes"),
    "header beyond the file": (header_of({}, length=1 << 40), "it says its header has"),
    "absurd header": (header_of({}, length=(1 << 64) - 1), "it says its header has"),
    "not json": (header_of(b"{]"), "header is broken"),
    "not text": (header_of(b'{"\xff":1}'), "header is broken"),
    "deep": (header_of(b"[" * 100_000), "header is broken"),
    "a list": (header_of([1]), "not a JSON object"),
    "twice": (header_of(b'{"w":1,"w":2}'), "'w' occurs twice"),
    "bare": (header_of({"w": 3}), "lacks a dtype"),
    "no offsets": (header_of({"w": {"dtype": "F32", "shape": [1]}}), "lacks a dtype"),
    "three offsets": (header_of({"w": {**entry([1], 0, 4), "data_offsets": [0, 4, 4]}}), "lacks"),
    "negative shape": (header_of({"w": entry([-1, -1], 0, 4)}, bytes(4)), "not all counts"),
    "truth as shape": (header_of({"w": entry([True], 0, 4)}, bytes(4)), "not all counts"),
    "float offset": (header_of({"w": entry([1], 0, 4.0)}, bytes(4)), "not all counts"),
    "huge shape": (header_of({"w": entry([10**30], 0, 4)}, bytes(4)), "not all counts"),
    "outside": (header_of({"w": entry([1], 4, 8)}, bytes(4)), "lies at bytes 4 to 8 of 4"),
    "backwards": (header_of({"w": entry([1], 4, 0)}, bytes(4)), "lies at bytes 4 to 0"),
    "bytes and shape": (header_of({"w": entry([2], 0, 4)}, bytes(4)), "expected 8 of F32"),
    "product wraps": (header_of({"w": entry([1 << 32, 1 << 32], 0, 0)}), "has 0 bytes, expected"),
    "float8": (header_of({"w": entry([4], 0, 4, "F8_E4M3")}, bytes(4)), "is F8_E4M3, expected"),
    "overlap": (
        header_of({"w": entry([2], 0, 8), "v": entry([1], 4, 8)}, bytes(8)),
        "overlaps tensor 'w'",
    ),
    "hole": (header_of({"w": entry([1], 0, 4), "v": entry([1], 8, 12)}, bytes(12)), "a hole after"),
    "rest": (header_of({"w": entry([1], 0, 4)}, bytes(5)), "1 bytes at its end belong to no"),
    "metadata": (header_of({"__metadata__": {"a": 1}}), "__metadata__ is not"),
    "long header": (header_of(b"{}".ljust((1 << 24) + 1)), "bytes, at most"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_header_that_lies_costs_its_party_alone(tmp_path: Path, lie):
    content, reason = LIES[lie]
    made = models("abc", size=500)
    paths = save_all(made, tmp_path)
    paths["eve"] = tmp_path / "eve.safetensors"
    paths["eve"].write_bytes(content)
    found = cs.aggregate_files(paths, tmp_path / "out.safetensors")
    assert list(found.rejected) == ["eve"]
    assert reason in found.rejected["eve"]
    assert "eve.safetensors" in found.rejected["eve"]
    assert_same(load(found.value), cs.aggregate(made).value)


def rezip(path: Path, change):
    """Change the bytes of an archive."""
    raw = bytearray(path.read_bytes())
    path.write_bytes(change(raw) or raw)


def directory(raw, at, value, form):
    """Write a field of the first entry of an archive's directory."""
    struct.pack_into(form, raw, raw.index(b"PK\x01\x02") + at, value)


def twice(path: Path):
    with zipfile.ZipFile(path, "a") as archive, pytest.warns(UserWarning, match="Duplicate"):
        archive.writestr("w.npy", b"")


def npy(path: Path, header: bytes):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("w.npy", b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header)


def share(path: Path):
    """Let two members' entries in the directory point to the same bytes."""
    np.savez(path, w=np.ones(9), x=np.ones(9))
    raw = bytearray(path.read_bytes())
    struct.pack_into("<I", raw, raw.rindex(b"PK\x01\x02") + 42, 0)
    path.write_bytes(raw)


def reach(path: Path):
    """Let a member be as large as its header says, and larger than the file."""
    npy(path, b"{'descr': '<f4', 'fortran_order': False, 'shape': (1000000,)}\n")
    raw = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as archive:
        size = archive.infolist()[0].file_size + 4_000_000
    for at in (20, 24):
        directory(raw, at, size, "<I")
    path.write_bytes(raw)


NPZ_LIES = {
    "compressed": (lambda p: np.savez_compressed(p, w=np.ones(9)), "np.savez(new, **np.load(old))"),
    "objects": (lambda p: np.savez(p, w=np.array([{}, None])), "never loaded"),
    "text": (lambda p: np.savez(p, w=np.array(["a"])), "expected numbers, found <U1"),
    "fortran": (lambda p: np.savez(p, w=np.ones((2, 3)).T), "Fortran order"),
    "truncated": (lambda p: rezip(p, lambda raw: raw[: len(raw) // 2]), "not an .npz file"),
    "empty": (lambda p: p.write_bytes(b""), "not an .npz file"),
    "twice": (twice, "'w' occurs twice"),
    "offset outside": (lambda p: rezip(p, lambda r: directory(r, 42, 1 << 30, "<I")), "outside"),
    "offset elsewhere": (lambda p: rezip(p, lambda r: directory(r, 42, 5, "<I")), "something else"),
    "size": (lambda p: rezip(p, lambda r: directory(r, 24, 77, "<I")), "does not fit the file"),
    "directory": (
        lambda p: rezip(p, lambda r: struct.pack_into("<I", r, len(r) - 10, 1 << 31)),
        "not an .npz file",
    ),
    "shared bytes": (share, "share the bytes"),
    "beyond the file": (reach, "does not fit the file"),
    "npy header": (lambda p: npy(p, b"{'descr': '<f4'}\n"), "broken header"),
    "npy code": (lambda p: npy(p, b"__import__('os').abort()\n"), "broken header"),
    "npy shape": (
        lambda p: npy(p, b"{'descr': '<f4', 'fortran_order': False, 'shape': (5,)}\n"),
        "has 0 bytes, expected 20",
    ),
    "npy negative": (
        lambda p: npy(p, b"{'descr': '<f4', 'fortran_order': False, 'shape': (-5, 0)}\n"),
        "broken header",
    ),
}


@pytest.mark.parametrize("lie", NPZ_LIES)
def test_an_archive_that_lies_costs_its_party_alone(tmp_path: Path, lie):
    spoil, reason = NPZ_LIES[lie]
    made = models("abc", size=500)
    paths = save_all(made, tmp_path, ".npz")
    paths["eve"] = save(made["a"], tmp_path / "eve.npz")
    spoil(paths["eve"])
    found = cs.aggregate_files(paths, tmp_path / "out.npz")
    assert list(found.rejected) == ["eve"]
    assert reason in found.rejected["eve"]
    assert_same(load(found.value), cs.aggregate(made).value)


@pytest.mark.parametrize("suffix", [".safetensors", ".npz"])
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_no_broken_file_breaks_the_reader(tmp_path_factory, suffix, data):
    """Whatever the bytes: an error that names the file, or tensors that lie within it."""
    folder = tmp_path_factory.getbasetemp()
    path = folder / f"fuzzed{suffix}"
    save({"w": np.ones((3, 4), np.float32), "n": np.arange(5)}, path)
    raw = bytearray(path.read_bytes())
    for at, byte in data.draw(
        st.lists(st.tuples(st.integers(0, len(raw) - 1), st.integers(0, 255)), max_size=4)
    ):
        raw[at] = byte
    path.write_bytes(raw[: data.draw(st.sampled_from([len(raw), len(raw) - 1, len(raw) // 2, 9]))])
    with ExitStack() as files:
        try:
            found = open_model(path, files)
        except cs.UpdateError as refused:
            found, said = None, str(refused)
        if found is None:
            assert path.name in said
        else:
            for tensor in found.tensors.values():
                assert tensor.storage[:].size == tensor.size == np.prod(tensor.shape)


INDEX_LIES = {
    "out of the folder": (lambda f, m: m | {"w": "../a.safetensors"}, "expected a .safetensors"),
    "round about": (lambda f, m: m | {"w": "x/../../c/one.safetensors"}, "expected a .safetensors"),
    "absolute": (lambda f, m: m | {"w": "/etc/passwd"}, "expected a .safetensors"),
    "hidden": (lambda f, m: m | {"w": ".x.safetensors"}, "expected a .safetensors"),
    "a number": (lambda f, m: m | {"w": 3}, "expected a .safetensors"),
    "no such shard": (lambda f, m: m | {"w": "three.safetensors"}, "cannot be opened"),
    "wrong shard": (lambda f, m: m | {"b": "one.safetensors"}, "holds tensor 'b', unlike"),
    "a tensor too many": (lambda f, m: m | {"x": "two.safetensors"}, "lacks tensor 'x'"),
    "not a mapping": (lambda f, m: [1], "without a weight_map"),
}


@pytest.mark.parametrize("lie", INDEX_LIES)
def test_an_index_that_lies_costs_its_party_alone(tmp_path: Path, lie):
    change, reason = INDEX_LIES[lie]
    paths = save_all(models("abc", size=500), tmp_path, "")
    index = paths["b"] / INDEX
    places = json.loads(index.read_text())["weight_map"]
    index.write_text(json.dumps({"weight_map": change(paths["b"], places)}))
    found = cs.aggregate_files(paths, tmp_path / "out")
    assert list(found.rejected) == ["b"]
    assert reason in found.rejected["b"]


def test_what_is_no_model_is_refused_by_name(tmp_path: Path):
    paths = save_all(models("abc", size=500), tmp_path)
    os.mkfifo(tmp_path / "pipe.safetensors")
    (tmp_path / "empty").mkdir()
    (tmp_path / "pickle.bin").write_bytes(b"cos\nabort\n(tR.")
    (tmp_path / "model.txt").write_text("weights")
    names = ["pipe.safetensors", "empty", "pickle.bin", "model.txt", "nobody.safetensors"]
    paths |= {name: tmp_path / name for name in names}
    found = cs.aggregate_files(paths, tmp_path / "out.safetensors")
    assert list(found.rejected) == names
    for name, words in zip(
        names,
        ["expected a file", "found 0 of them", "never loaded", "expected .safe", "No such file"],
        strict=True,
    ):
        assert words in found.rejected[name]
        assert name in found.rejected[name]
    with pytest.raises(cs.UpdateError, match=r"every update was rejected.*pickle\.bin"):
        cs.aggregate_files([tmp_path / "pickle.bin"], tmp_path / "out2.safetensors")
    assert not (tmp_path / "out2.safetensors").exists()


def test_a_mismatched_model_is_rejected_as_any_update(tmp_path: Path):
    made = models("abcd", size=500)
    del made["a"]["b"]
    made["b"]["w"] = made["b"]["w"][:3]
    found = cs.aggregate_files(save_all(made, tmp_path), tmp_path / "out.safetensors")
    assert found.rejected == cs.aggregate(made).rejected
    assert set(found.rejected) == {"a", "b"}


def test_names_are_the_shortest_that_differ(tmp_path: Path):
    made = models("abcd", size=500)
    for folder in "xy":
        (tmp_path / folder / "deep").mkdir(parents=True)
    paths = [tmp_path / n for n in ["x/m.npz", "y/m.npz", "x/deep/k.npz", "z.npz"]]
    for path, model in zip(paths, made.values(), strict=True):
        save(model, path)
    found = cs.aggregate_files(paths, None)
    assert list(found.weights) == ["x/m.npz", "y/m.npz", "k.npz", "z.npz"]
    with pytest.raises(cs.ConsilienceError, match=r"m\.npz: given twice"):
        cs.aggregate_files([*paths, tmp_path / "x" / ".." / "x" / "m.npz"], None)
    with pytest.raises(cs.ConsilienceError, match="found one"):
        cs.aggregate_files(str(paths[0]), None)


def test_outputs_that_are_refused_before_any_work(tmp_path: Path):
    paths = save_all(models("abc", size=500), tmp_path)
    folder = tmp_path / "full"
    folder.mkdir()
    (folder / "precious").write_text("kept")
    paths["whole"] = save(models("d", size=500)["d"], tmp_path / "whole")
    linked = tmp_path / "link.safetensors"
    linked.symlink_to(paths["b"])
    for out, words in [
        (paths["b"], "is one of the inputs"),
        (linked, "is one of the inputs"),
        (paths["whole"] / "one.safetensors", "is one of the inputs"),
        (folder, "something in it"),
        (tmp_path / "nowhere" / "out.npz", "there is no folder"),
    ]:
        with pytest.raises(cs.ConsilienceError, match=words):
            cs.aggregate_files(paths, out)
    del paths["whole"]
    with pytest.raises(cs.ConsilienceError, match="expected the name of"):
        cs.aggregate_files(paths, tmp_path / "out.bin")
    made = models("abc", "bfloat16", size=500)
    with pytest.raises(cs.ConsilienceError, match="bfloat16, which numpy has not"):
        cs.aggregate_files(save_all(made, folder), tmp_path / "out.npz")
    assert nothing_left(tmp_path)


def test_an_output_is_replaced_whole_or_not_at_all(tmp_path: Path):
    made, out = models("abc"), tmp_path / "out.safetensors"
    paths = save_all(made, tmp_path)
    out.write_text("the last one")
    steps = []

    def stop(step, done, total):
        steps.append(step)
        assert out.read_text() == "the last one"
        assert not nothing_left(tmp_path)
        if step == "combination":
            raise InterruptedError("enough")

    with pytest.raises(InterruptedError, match="enough"):
        cs.aggregate_files(paths, out, progress=stop)
    assert "evidence" in steps
    assert out.read_text() == "the last one"
    assert nothing_left(tmp_path)
    cs.aggregate_files(paths, out)
    assert_same(load(out), cs.aggregate(made).value)


def test_progress_goes_up_to_all_of_it(tmp_path: Path):
    told = []
    paths = save_all(models(), tmp_path)
    cs.aggregate_files(
        paths, tmp_path / "out.safetensors", progress=lambda *what: told.append(what)
    )
    sizes = {total for step, _, total in told if step == "combination"}
    assert sizes == {4 * (4 * 60_000 + 1)}
    assert told[-1] == ("combination", *sizes, *sizes)
    assert {step for step, _, _ in told} == {"evidence", "combination"}
    assert all(0 < done <= total for _, done, total in told)


SAMPLED = 1_100_000  # of eight parties


@pytest.fixture(scope="module")
def eight(tmp_path_factory):
    """Models so large that a sample is read, in memory and in files."""
    random = np.random.default_rng(0)
    made = {p: {"w": random.standard_normal(SAMPLED, dtype=np.float32)} for p in "abcdefgh"}
    return made, save_all(made, tmp_path_factory.mktemp("eight"))


def test_a_sample_of_files_is_secret_or_that_of_a_seed(tmp_path: Path, eight):
    made, paths = eight
    out = tmp_path / "out.safetensors"
    expected = cs.aggregate(made, seed=4)
    assert expected.diagnostics["coordinates_seen"] < SAMPLED / 3
    for _ in range(2):
        found = cs.aggregate_files(paths, out, seed=4)
        assert found.weights == expected.weights
        assert_same(load(out), expected.value)
    one, other = (cs.aggregate_files(paths, None).weights for _ in range(2))
    assert one != other


def test_what_hides_in_files_beside_the_sample_is_found_and_told(tmp_path: Path, eight):
    made, paths = eight
    # Who needs a witness is found out from another sample each time: no part of this.
    method = cs.Pairwise(corroborate=False)
    spans = sampled_spans(SAMPLED, 8, np.random.default_rng(4))
    at = next(stop for (_, stop), (start, _) in pairwise(spans) if start > stop)
    for value in (np.nan, 1e4):
        bad = made["c"]["w"].copy()
        bad[at] = value
        changed = {**paths, "c": save({"w": bad}, tmp_path / "c.safetensors")}
        told = []
        found = cs.aggregate_files(
            changed,
            tmp_path / "out.safetensors",
            method,
            seed=4,
            progress=lambda *what, told=told: told.append(what),
        )
        assert list(found.rejected) == (["c"] if np.isnan(value) else [])
        if not np.isnan(value):
            exact = cs.aggregate({**made, "c": {"w": bad}}, method, exact=True)
            assert found.weights == pytest.approx(exact.weights, rel=1e-6)
            np.testing.assert_allclose(load(found.value)["w"], exact.value["w"], atol=1e-5)
        totals = [total for step, _, total in told if step == "evidence"]
        seen = int(found.diagnostics["coordinates_seen"])
        assert totals[0] == 4 * 8 * sum(stop - start for start, stop in spans)
        assert totals[-1] == 4 * len(found.parties) * seen
        assert ("evidence", totals[-1], totals[-1]) in told
        assert told[-1] == ("combination", 4 * SAMPLED, 4 * SAMPLED)


def cut(path: Path):
    os.truncate(path, 1000)


def change(path: Path):
    with open(path, "r+b") as file:
        file.seek(-4, os.SEEK_END)
        file.write(b"\0\0\0\1")


@pytest.mark.parametrize(("spoil", "reason"), [(cut, "cut short"), (change, "was changed while")])
def test_a_file_that_fails_while_it_is_read_costs_its_party_alone(
    tmp_path: Path, monkeypatch, spoil, reason
):
    monkeypatch.setattr("consilience.engines.files.aggregate._KEPT", 0)
    made = models()
    paths = save_all(made, tmp_path)
    spoilt = []

    def interfere(step, done, total):
        if not spoilt:
            spoil(paths["b"])
            spoilt.append(step)

    found = cs.aggregate_files(paths, tmp_path / "out.safetensors", progress=interfere)
    assert spoilt == ["evidence"]
    assert list(found.rejected) == ["b"]
    assert reason in found.rejected["b"]
    assert "b.safetensors" in found.rejected["b"]
    others = {party: model for party, model in made.items() if party != "b"}
    assert_same(load(found.value), cs.aggregate(others).value)


def test_one_writer_at_a_time(tmp_path: Path):
    made, out = models("abc"), tmp_path / "out.safetensors"
    paths = save_all(made, tmp_path)

    def another(step, done, total):
        with pytest.raises(cs.ConsilienceError, match="another process is writing it"):
            cs.aggregate_files(paths, out)

    cs.aggregate_files(paths, out, progress=another)
    assert_same(load(out), cs.aggregate(made).value)
    assert nothing_left(tmp_path)


KILLED = """
import os, sys, consilience as cs
def die(step, done, total):
    if step == "combination":
        os._exit(9)
cs.aggregate_files(sys.argv[2:], sys.argv[1], progress=die)
"""


@pytest.mark.integration
@pytest.mark.parametrize("suffix", [".safetensors", ".npz", ""])
def test_what_a_killed_process_left_is_removed(tmp_path: Path, suffix):
    made, out = models("abc", size=500), tmp_path / f"out{suffix}"
    paths = save_all(made, tmp_path, suffix)
    words = [sys.executable, "-c", KILLED, out, *paths.values()]
    assert subprocess.run(words, check=False).returncode == 9
    assert not nothing_left(tmp_path)
    cs.aggregate_files(paths, out)
    assert_same(load(out), cs.aggregate(made).value)
    assert nothing_left(tmp_path)


LIMITED = """
import resource, sys, consilience as cs
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    cs.aggregate_files(sys.argv[2:], sys.argv[1])
except cs.ConsilienceError as error:
    print(error)
"""


@pytest.mark.integration
def test_no_room_for_the_output(tmp_path: Path):
    paths = save_all(models("abc"), tmp_path)
    out = tmp_path / "out.safetensors"
    words = [sys.executable, "-c", LIMITED, out, *paths.values()]
    said = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    assert "out.safetensors: cannot be written (File too large)" in said
    assert nothing_left(tmp_path)
    assert not out.exists()


# Not ru_maxrss, in which a child inherits its parent's peak.
MEASURED = """
import sys, consilience as cs
def peak():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))
cs.aggregate([[1.0], [2.0], [4.0]])
before = peak()
cs.aggregate_files(sys.argv[2:], sys.argv[1], exact=True)
print(peak() - before)
"""


@pytest.mark.integration
@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak of memory from /proc")
@pytest.mark.parametrize("suffix", [".safetensors", ".npz"])
def test_memory_does_not_grow_with_the_files(tmp_path: Path, suffix):
    some = np.random.default_rng(0).standard_normal(16_000_000, dtype=np.float32)
    paths = [save({"w": np.roll(some, j)}, tmp_path / f"{j}{suffix}") for j in range(3)]
    words = [sys.executable, "-c", MEASURED, tmp_path / f"out{suffix}", *paths]
    grown = int(subprocess.run(words, capture_output=True, text=True, check=True).stdout)
    assert grown < 40_000  # kilobytes; a file has 64,000


def test_the_disk_begins_to_write_while_the_rest_is_formed(tmp_path: Path, monkeypatch):
    begun = []

    def advise(descriptor, offset, count, how):
        if how == os.POSIX_FADV_DONTNEED:
            begun.append(count)

    monkeypatch.setattr(os, "posix_fadvise", advise)
    paths = save_all(models(), tmp_path)
    cs.aggregate_files(paths, tmp_path / "out.safetensors")
    assert sum(begun) >= 4 * 60_000
    assert min(begun) >= 1 << 16  # a page that holds several tensors is not flushed for each
