"""Reading of images, scaling of pixels, and blending of digits with photographs."""

from __future__ import annotations

import gzip
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedlightning.core.errors import MissingFileError
from fedlightning.core.requirements import imported
from fedlightning.core.validation import require


@dataclass(frozen=True)
class ScalePixels:
    """Scales bytes to real numbers, ``(byte / 255 - mean) / std``, equally for every image and client.

    Subtracting each batch's own mean instead, as some code does, would quietly normalise the domains of clients that
    hold one domain only.

    Args:
        mean: Subtracted.
        std: Divided by.
    """

    mean: float = 0.5
    std: float = 0.5

    def __post_init__(self) -> None:
        require(self, "mean")
        require(self, "std", above=0.0)

    def __call__(self, batch: Any) -> Any:
        """Scale ``batch["image"]``, or the first entry of a pair."""
        if isinstance(batch, dict):
            return {**batch, "image": self._scale(batch["image"])}
        image, *rest = batch
        return (self._scale(image), *rest)

    def _scale(self, image: Tensor) -> Tensor:
        scaled = image.to(torch.get_default_dtype(), copy=True)  # also where it is real already
        return scaled.mul_(1 / (255 * self.std)).sub_(self.mean / self.std)


def read_idx(root: str | Path, name: str, train: bool, download: bool = False) -> tuple[Tensor, Tensor]:
    """Read MNIST or Fashion-MNIST from torchvision's folder layout, unpacked or as ``.gz``.

    Args:
        root: Folder that holds ``<name>/raw/``.
        name: ``MNIST`` or ``FashionMNIST``.
        train: Training or test part.
        download: Let torchvision fetch the files into ``root`` first if they are missing.

    Returns:
        Bytes ``[n, 28, 28]`` and labels ``[n]``.

    Raises:
        FileNotFoundError: If the files are not there.
    """
    part = "train" if train else "t10k"
    folder = Path(root) / name / "raw"
    if download and not folder.is_dir():
        getattr(imported("torchvision.datasets"), name)(root, download=True)
    images = _read_bytes(folder / f"{part}-images-idx3-ubyte", header=16)
    return images.view(-1, 28, 28), _read_bytes(folder / f"{part}-labels-idx1-ubyte", header=8).long()


def _read_bytes(path: Path, header: int) -> Tensor:
    packed = path.with_name(f"{path.name}.gz")
    if path.is_file():
        content = path.read_bytes()
    elif packed.is_file():
        content = gzip.decompress(packed.read_bytes())
    else:
        raise MissingFileError(
            f"Neither {path} nor {packed.name} exists. Point root at a folder in torchvision's layout "
            "(<root>/MNIST/raw/...), or set download to true."
        )
    return torch.frombuffer(bytearray(content), dtype=torch.uint8, offset=header)


def read_photographs(path: str | Path) -> list[np.ndarray]:
    """Read photographs as arrays ``[height, width, 3]`` of bytes.

    Args:
        path: A folder of JPEG or PNG files, searched through; an ``.npy`` array ``[n, height, width, 3]``; or an
            ``.npz`` with encoded files joined in ``blob`` and their ``offsets``.

    Raises:
        FileNotFoundError: If there are none.
    """
    path = Path(path)
    if path.suffix == ".npy":
        return list(np.load(path))
    if path.suffix == ".npz":
        with np.load(path) as archive:
            blob, offsets = archive["blob"].tobytes(), archive["offsets"]
        files: Sequence[Any] = [io.BytesIO(blob[a:b]) for a, b in pairwise(offsets)]
    else:
        files = sorted(p for p in path.rglob("*") if p.suffix.lower() in (".jpg", ".jpeg", ".png"))
    if not files:
        raise MissingFileError(f"No photographs in {path}: expected a folder of .jpg or .png files, .npy or .npz.")
    return decode(files)


def decode(files: Iterable[Any]) -> list[np.ndarray]:
    """Decode pictures, given as paths or open files, to arrays ``[height, width, 3]`` of bytes."""
    image = imported("PIL.Image")
    return [np.asarray(image.open(file).convert("RGB")) for file in files]


def sample_photographs() -> list[np.ndarray]:
    """Return the two photographs that come with scikit-learn, ``[427, 640, 3]`` bytes each."""
    return list(imported("sklearn.datasets").load_sample_images().images)


def blend(digits: Tensor, photographs: Sequence[np.ndarray], seed: int) -> Tensor:
    """Blend digits with photographs as in MNIST-M: |patch - digit| in every channel (Ganin et al., JMLR 2016).

    Args:
        digits: Bytes ``[n, size, size]``.
        photographs: Bytes ``[height, width, 3]`` each, at least ``size`` in both directions.
        seed: Of the photographs and places drawn.

    Returns:
        Bytes ``[n, 3, size, size]``.
    """
    draw = np.random.default_rng(seed)
    size = digits.shape[-1]
    patches = np.empty((len(digits), size, size, 3), np.uint8)
    for patch, which in zip(patches, draw.integers(len(photographs), size=len(digits)), strict=True):
        photograph = photographs[which]
        top = draw.integers(photograph.shape[0] - size + 1)
        left = draw.integers(photograph.shape[1] - size + 1)
        patch[:] = photograph[top : top + size, left : left + size]
    blended = np.abs(patches.astype(np.int16) - digits.numpy()[..., None].astype(np.int16)).astype(np.uint8)
    return torch.from_numpy(blended).permute(0, 3, 1, 2).contiguous()


def grey_to_rgb(digits: Tensor) -> Tensor:
    """Repeat grey images ``[n, size, size]`` in three channels, ``[n, 3, size, size]``."""
    return digits.unsqueeze(1).expand(-1, 3, -1, -1).contiguous()


def digits_images(size: int) -> tuple[Tensor, Tensor]:
    """Return the 1,797 digits of scikit-learn, enlarged.

    Args:
        size: Height and width; the originals have 8.

    Returns:
        Bytes ``[1797, size, size]`` and labels ``[1797]``.
    """
    data = imported("sklearn.datasets").load_digits()
    images = torch.from_numpy(data.images).float().unsqueeze(1) * (255 / 16)
    enlarged = torch.nn.functional.interpolate(images, size=(size, size), mode="bilinear", align_corners=False)
    return enlarged.squeeze(1).round().to(torch.uint8), torch.from_numpy(data.target).long()
