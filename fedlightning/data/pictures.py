"""Labelled pictures in an official training and test part: MNIST, CIFAR, Tiny ImageNet.

Every reader here takes ``root``, ``cache`` and ``download`` and returns :data:`Parts`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Protocol, TypeAlias

import numpy as np
import torch
from torch import Tensor

from fedlightning.core.errors import InvalidValueError, MissingFileError
from fedlightning.core.requirements import imported
from fedlightning.data.cache import cached, fingerprint
from fedlightning.data.images import decode, read_idx, read_photographs

Parts: TypeAlias = tuple[Tensor, Tensor, Tensor, Tensor]
"""Training bytes ``[n, channels, height, width]`` and labels ``[n]``, test bytes and labels."""


class Reader(Protocol):
    """Describes functions that read one data set."""

    def __call__(self, root: str | Path, cache: str | Path | None = None, download: bool = False) -> Parts:
        """Return both parts of the data set at ``root``.

        Args:
            root: Where the files lie.
            cache: Folder where decoded pictures are kept, for data sets of encoded ones; null decodes every time.
            download: Fetch the files into ``root`` if they are missing.
        """


def read_mnist(root: str | Path, cache: str | Path | None = None, download: bool = False, name: str = "MNIST") -> Parts:
    """Read MNIST, or ``FashionMNIST``, from torchvision's layout; see :func:`~fedlightning.data.images.read_idx`."""
    images, labels = read_idx(root, name, train=True, download=download)
    test_images, test_labels = read_idx(root, name, train=False)
    return images.unsqueeze(1), labels, test_images.unsqueeze(1), test_labels


read_fashion_mnist: Reader = partial(read_mnist, name="FashionMNIST")


def read_cifar10(root: str | Path, cache: str | Path | None = None, download: bool = False) -> Parts:
    """Read CIFAR-10 from torchvision's folder layout, or from an ``.npz`` of encoded pictures.

    Args:
        root: Folder that holds ``cifar-10-batches-py/``, or the ``.npz``.
        cache: Folder where pictures of an ``.npz`` are kept decoded.
        download: Let torchvision fetch the files first if they are missing.

    Raises:
        FileNotFoundError: If the files are not there.
    """
    path = Path(root)
    if path.suffix != ".npz":
        return _from_torchvision("CIFAR10", path, "cifar-10-batches-py", "an .npz", download)
    if not path.is_file():
        raise MissingFileError(f"root={str(root)!r}: no such file.")
    with np.load(path) as archive:
        label, is_test = torch.from_numpy(archive["label"]).long(), torch.from_numpy(archive["split"] == 1)
    pictures = _decoded(lambda: read_photographs(path), cache, path.stem, [path])
    return pictures[~is_test], label[~is_test], pictures[is_test], label[is_test]


def read_cifar100(root: str | Path, cache: str | Path | None = None, download: bool = False) -> Parts:
    """Read CIFAR-100 with its 100 fine labels, from the official Python or binary version.

    Args:
        root: Folder that holds ``cifar-100-binary/`` (``train.bin``, ``test.bin``) or ``cifar-100-python/``, which
            torchvision reads.
        cache: Not needed.
        download: Let torchvision fetch the files first if they are missing.

    Raises:
        FileNotFoundError: If the files are not there.
        ValueError: If a binary file is cut off.
    """
    folder = Path(root) / "cifar-100-binary"
    if not folder.is_dir():
        return _from_torchvision("CIFAR100", Path(root), "cifar-100-python", "one with cifar-100-binary/", download)
    return (*_read_records(folder / "train.bin"), *_read_records(folder / "test.bin"))


def read_tiny_imagenet(root: str | Path, cache: str | Path | None = None, download: bool = False) -> Parts:
    """Read Tiny ImageNet (Stanford CS231n), 200 classes of 64 x 64 pixels; the validation part is the test part.

    Classes are numbered in the order of their WordNet ids, as torchvision's ``ImageFolder`` does.

    Args:
        root: The unpacked ``tiny-imagenet-200/`` or the folder that holds it: ``wnids.txt``,
            ``train/<id>/images/*.JPEG``, ``val/images/*.JPEG`` and ``val/val_annotations.txt``.
        cache: Folder where the pictures are kept decoded, 1.4 GB; decoding takes minutes.
        download: Refused: nobody but its makers gives it out.

    Raises:
        FileNotFoundError: If the files are not there.
        ValueError: If it is to be downloaded.
    """
    if download:
        raise InvalidValueError(
            "download=True: fetch http://cs231n.stanford.edu/tiny-imagenet-200.zip, unpack it, and set root to it."
        )
    folder = Path(root) / "tiny-imagenet-200"
    folder = folder if folder.is_dir() else Path(root)
    if not (folder / "wnids.txt").is_file():
        raise MissingFileError(f"No {folder / 'wnids.txt'}: point root at the unpacked tiny-imagenet-200 folder.")
    number = {name: i for i, name in enumerate(sorted((folder / "wnids.txt").read_text().split()))}
    train = [(path, i) for name, i in number.items() for path in sorted((folder / "train" / name).rglob("*.JPEG"))]
    lines = (folder / "val" / "val_annotations.txt").read_text().splitlines()
    notes = [line.split("\t") for line in lines if line]
    test = [(folder / "val" / "images" / name, number[wnid]) for name, wnid, *_ in notes]
    files = [path for path, _ in train + test]
    pictures = _decoded(lambda: decode(files), cache, "tiny-imagenet", files)
    labels = torch.tensor([label for _, label in train + test])
    return pictures[: len(train)], labels[: len(train)], pictures[len(train) :], labels[len(train) :]


def _from_torchvision(name: str, root: Path, folder: str, otherwise: str, download: bool) -> Parts:
    datasets = imported("torchvision.datasets")
    try:
        parts = [getattr(datasets, name)(str(root), train, download=download) for train in (True, False)]
    except RuntimeError as error:
        raise MissingFileError(
            f"No {root / folder}: point root at a folder in torchvision's layout or at {otherwise}, or set download to "
            "true."
        ) from error
    images = [torch.from_numpy(part.data).permute(0, 3, 1, 2).contiguous() for part in parts]
    labels = [torch.tensor(part.targets) for part in parts]
    return images[0], labels[0], images[1], labels[1]


def _read_records(path: Path) -> tuple[Tensor, Tensor]:
    """Read CIFAR-100's binary records: a coarse label, a fine label, and 3 x 32 x 32 bytes."""
    if not path.is_file():
        raise MissingFileError(f"No {path}: expected train.bin and test.bin of CIFAR-100's binary version.")
    content = torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.uint8)
    length = 2 + 3 * 32 * 32
    if len(content) % length:
        raise InvalidValueError(f"{path} has {len(content)} bytes, which is no multiple of {length}. Fetch it again.")
    records = content.view(-1, length)
    return records[:, 2:].reshape(-1, 3, 32, 32), records[:, 1].long()


def _decoded(
    photographs: Callable[[], list[np.ndarray]], cache: str | Path | None, name: str, files: Sequence[Path]
) -> Tensor:
    """Return pictures ``[n, 3, height, width]`` of files, read from the cache if it has them as they are now."""
    return cached(
        None if cache is None else Path(cache) / f"{name}-{fingerprint(files)}.pt",
        lambda: torch.from_numpy(np.stack(photographs())).permute(0, 3, 1, 2).contiguous(),
    )
