import hashlib
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from consilience.lab import mnist
from consilience.lab.fetch import File, Mirror
from mirror import LocalMirror


@pytest.fixture
def mirror(monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalMirror]:
    monkeypatch.setenv("no_proxy", "*")
    server = LocalMirror()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def digits(count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    labels = np.arange(count) % 10
    pictures = np.zeros((count, 28, 28), np.uint8)
    for digit in range(10):  # a bright bar whose place tells the digit
        pictures[labels == digit, 2 * digit : 2 * digit + 3, 4:24] = 200
    noise = rng.integers(0, 50, pictures.shape)
    return (pictures + noise).astype(np.uint8), labels.astype(np.uint8)


@pytest.fixture
def tiny_mnist(mirror: LocalMirror, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`mnist.load` gives 150 and 50 pictures, from a server on this machine."""
    monkeypatch.setenv("CONSILIENCE_CACHE", str(tmp_path / "cache"))
    rng = np.random.default_rng(0)
    arrays = [*digits(150, rng), *digits(50, rng)]
    files = []
    for file, array in zip(mnist.FILES, arrays, strict=True):
        data = mnist.to_idx(array)
        mirror.contents[file.name] = data
        files.append(File(file.name, hashlib.sha256(data).hexdigest()))
    load = partial(mnist.load, files=files, sources=[Mirror(mirror.url)])
    monkeypatch.setattr(mnist, "load", load)
