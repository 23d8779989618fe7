"""CelebA (Liu et al., ICCV 2015): faces, clients of whole identities."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from fedlightning.core.errors import MissingFileError
from fedlightning.core.requirements import imported
from fedlightning.data.federation import Federation
from fedlightning.data.module import FederatedDataModule
from fedlightning.data.partitioners import Partitioner, Shards


class CelebA(FederatedDataModule):
    """Distributes CelebA's faces, cut to squares and shrunk; a sample is (image in [-1, 1], identity).

    By default sorted by identity and cut into equal parts, as Xie et al. (CDMA, 2023, D.1) do for their 500 clients;
    ``ByGroup()`` makes a client of every person.
    """

    def __init__(self, root: str, partitioner: Partitioner | None = None, size: int = 64, **options: Any) -> None:
        """Set the folder, the partitioner and the image size.

        Args:
            root: Folder in torchvision's layout: ``<root>/celeba/img_align_celeba/*.jpg``, ``identity_CelebA.txt`` and
                ``list_eval_partition.txt`` (0 train, 1 validation, 2 test).
            partitioner: Splits the training images by identity; null for 500 equal parts sorted by identity.
            size: Height and width of the images.
            options: Arguments of :class:`FederatedDataModule`.
        """
        super().__init__(**options)
        self.root = root
        self.partitioner = Shards(500, shards_per_client=1) if partitioner is None else partitioner
        self.size = size

    def build(self) -> Federation:
        """Read the lists of images and partition the training images; each image is read only when needed."""
        folder = Path(self.root) / "celeba"
        identities, parts = (_read_list(folder / name) for name in ("identity_CelebA.txt", "list_eval_partition.txt"))
        files: list[list[str]] = [[name for name in identities if parts[name] == str(part)] for part in range(3)]
        train, val, test = (
            _Faces(folder / "img_align_celeba", names, [int(identities[name]) for name in names], self.size)
            for names in files
        )
        return Federation(train, self.partitioner.split(torch.tensor(train.identities), self.seed), val=val, test=test)


class _Faces(Dataset[tuple[Tensor, int]]):
    def __init__(self, folder: Path, names: list[str], identities: list[int], size: int) -> None:
        self.folder, self.names, self.identities, self.size = folder, names, identities, size

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image = imported("PIL.Image").open(self.folder / self.names[index]).convert("RGB")
        side = min(image.size)
        left, top = (image.width - side) // 2, (image.height - side) // 2
        square = image.resize((self.size, self.size), box=(left, top, left + side, top + side))
        pixels = torch.from_numpy(np.array(square)).permute(2, 0, 1)
        return pixels.to(torch.get_default_dtype()) / 127.5 - 1, self.identities[index]


def _read_list(path: Path) -> dict[str, str]:
    if not path.is_file():
        raise MissingFileError(
            f"No {path}: expected CelebA in torchvision's layout, <root>/celeba/ with img_align_celeba/, "
            "identity_CelebA.txt and list_eval_partition.txt."
        )
    return dict(line.split() for line in path.read_text().splitlines() if line.strip())
