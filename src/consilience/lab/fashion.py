"""Fashion-MNIST: 60,000 and 10,000 pictures of clothes, in MNIST's format (Xiao et al. 2017).

    clothes = fashion.load()
    clothes.train_images  # (60000, 28, 28) uint8

The files have the same names as MNIST's; here and in the cache they have the prefix `fashion-`.
"""

from pathlib import Path

from . import mnist
from .fetch import File, Mirror, Source
from .packages import Apt, Archive, Unprefixed

PREFIX = "fashion-"
FILES = (
    File(
        "fashion-train-images-idx3-ubyte",
        "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
    ),
    File(
        "fashion-train-labels-idx1-ubyte",
        "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    ),
    File(
        "fashion-t10k-images-idx3-ubyte",
        "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    ),
    File(
        "fashion-t10k-labels-idx1-ubyte",
        "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    ),
)
_VERSION = "0.0~git20200523.55506a9-1"
_APT = Archive(
    File(
        f"dataset-fashion-mnist_{_VERSION}_all.deb",
        "39e172fe32dd318ebb3e512220c3beea2fa47d7e20bab348fb4e0922d6beefc0",
    ),
    (Apt(f"dataset-fashion-mnist={_VERSION}"),),
    "./usr/share/datasets/fashion-mnist/",
    ".gz",
)
SOURCES: tuple[Source, ...] = tuple(
    Unprefixed(PREFIX, source)
    for source in (
        Mirror("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com", ".gz"),
        Mirror(
            "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion",
            ".gz",
        ),
        _APT,
    )
)


def load(folder: str | Path | None = None) -> mnist.Mnist:
    """All of Fashion-MNIST, from `folder`, the cache, or the network."""
    return mnist.load(folder, files=FILES, sources=SOURCES)
