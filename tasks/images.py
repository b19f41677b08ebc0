"""The images that `patches` cuts: handwritten digits and pieces of clothing, in two parts that share no image."""

from __future__ import annotations

import gzip
import hashlib
import os
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

SIDES = {"digits": 8, "fashion": 28}
"""Pixels a side."""
CLASSES = {
    "digits": ("0", "1", "2", "3", "4", "5", "6", "7", "8", "9"),
    "fashion": ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag",
                "Ankle boot"),
}  # fmt: skip
FULL_INK = {"digits": 16, "fashion": 255}
DEBIAN_FOLDER = Path("/usr/share/datasets/fashion-mnist")
"""Where the Debian package dataset-fashion-mnist puts its files."""
FASHION_FILES = {"train": "train", "test": "t10k"}
TEST_SHARE = 5
"""One in so many of the digits is for testing."""


class ImagesMissing(LookupError):
    """The images are not installed; the message says what to install."""


class Images(NamedTuple):
    """pixels [image row column] from 0 (no ink) to `full` (integers), classes [image]. Not to be written to."""

    pixels: Tensor
    classes: Tensor
    full: int


def images(source: str, part: str) -> Images:
    """The images of "digits" (1797 of 8 × 8) or "fashion" (70,000 of 28 × 28; Xiao et al. 2017), "train" or "test".

    digits: those of scikit-learn, about a fifth of them for testing, by a hash of the pixels: the split is always the
    same, and equal images are in one part. It does not keep writers apart, which the data do not name. fashion: the
    published parts, 60,000 and 10,000, from the folder fashion-mnist under `$WORKBENCH_DATA` where that is set, else
    from the Debian package. Raises `ImagesMissing`.
    """
    data = os.environ.get("WORKBENCH_DATA")
    return _loaded(source, part, Path(data) / "fashion-mnist" if data else DEBIAN_FOLDER)


@lru_cache(maxsize=4)
def _loaded(source: str, part: str, folder: Path) -> Images:
    pixels, classes = _digits(part) if source == "digits" else _fashion(part, folder)
    return Images(pixels, classes, FULL_INK[source])


def _digits(part: str) -> tuple[Tensor, Tensor]:
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise ImagesMissing(
            "the digits come with scikit-learn, which is not installed: pip install scikit-learn"
        ) from None
    loaded = load_digits()
    pixels = torch.from_numpy(loaded.images).to(torch.uint8)
    tested = torch.tensor([_number(image) % TEST_SHARE == 0 for image in pixels])
    kept = tested if part == "test" else ~tested
    return pixels[kept], torch.from_numpy(loaded.target).long()[kept]


def _number(image: Tensor) -> int:
    content = b"patches: digits, split 0" + bytes(image.flatten().tolist())
    return int.from_bytes(hashlib.sha256(content).digest()[:8], "big")


def _fashion(part: str, folder: Path) -> tuple[Tensor, Tensor]:
    names = [f"{FASHION_FILES[part]}-{name}-ubyte" for name in ("images-idx3", "labels-idx1")]
    return _read(folder, names[0]), _read(folder, names[1]).long()


def _read(folder: Path, name: str) -> Tensor:
    """An array of bytes in the IDX format: two zeros, the type 8, the number of axes, their sizes, the values."""
    path = next((path for path in (folder / f"{name}.gz", folder / name) if path.is_file()), None)
    if path is None:
        raise ImagesMissing(
            f"no {name}.gz in {folder}. On Debian: apt-get install dataset-fashion-mnist; elsewhere put the four files "
            "of Fashion-MNIST into a folder fashion-mnist and set WORKBENCH_DATA to the folder that holds it"
        )
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        content = file.read()
    n_axes = content[3] if content[:3] == b"\0\0\x08" else 0
    shape = [int.from_bytes(content[4 + 4 * axis : 8 + 4 * axis], "big") for axis in range(n_axes)]
    values = torch.frombuffer(bytearray(content[4 + 4 * n_axes :]), dtype=torch.uint8) if n_axes else torch.empty(0)
    if not n_axes or values.numel() != torch.Size(shape).numel():
        raise ValueError(f"{path} is no whole IDX file of bytes; get it anew")
    return values.reshape(shape)
