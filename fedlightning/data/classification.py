"""Labelled images over clients: scikit-learn's digits, MNIST, Fashion-MNIST, CIFAR-10. A sample is (image, label)."""

from __future__ import annotations

from typing import Any

import torch

from fedlightning.data.images import ScalePixels, digits_images, read_cifar10, read_idx
from fedlightning.data.module import FederatedDataModule, Federation, TensorData
from fedlightning.data.partition import IID, Partitioner


class Digits(FederatedDataModule):
    """scikit-learn's digits: 1,197 training, 300 validation, 300 test images; nothing is downloaded."""

    def __init__(
        self,
        partitioner: Partitioner | None = None,
        size: int = 8,
        scaling: ScalePixels | None = None,
        **dealing: Any,
    ) -> None:
        """Choose clients.

        Args:
            partitioner: Splits the training images by label; null for 20 clients IID.
            size: Height and width of the images.
            scaling: Range of the pixels; null for [-1, 1].
            dealing: Arguments of :class:`FederatedDataModule`.
        """
        super().__init__(**dealing)
        self.partitioner = IID(20) if partitioner is None else partitioner
        self.size = size
        self.scaling = ScalePixels() if scaling is None else scaling

    def build(self) -> Federation:
        """Share out the digits."""
        images, labels = digits_images(self.size)
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
        train, val, test = (
            TensorData((images[part].unsqueeze(1), labels[part]), self.scaling)
            for part in order.split([1197, 300, 300])
        )
        return Federation(train, self.partitioner.split(train.tensors[1], self.seed), val=val, test=test)


class MNIST(FederatedDataModule):
    """MNIST: 60,000 training, 5,000 validation and 5,000 test images of 28 x 28 grey pixels."""

    name = "MNIST"

    def __init__(
        self,
        root: str,
        partitioner: Partitioner | None = None,
        scaling: ScalePixels | None = None,
        download: bool = False,
        **dealing: Any,
    ) -> None:
        """Name the folder.

        Args:
            root: Folder in torchvision's layout, ``<root>/MNIST/raw/``, files unpacked or ``.gz``.
            partitioner: Splits the training images by label; null for 100 clients IID.
            scaling: Range of the pixels; null for [-1, 1].
            download: Fetch the files into ``root`` if they are missing.
            dealing: Arguments of :class:`FederatedDataModule`.
        """
        super().__init__(**dealing)
        self.root = root
        self.partitioner = IID(100) if partitioner is None else partitioner
        self.scaling = ScalePixels() if scaling is None else scaling
        self.download = download

    def build(self) -> Federation:
        """Read the images."""
        images, labels = read_idx(self.root, self.name, train=True, download=self.download)
        test_images, test_labels = read_idx(self.root, self.name, train=False)
        train, val, test = (
            TensorData((x.unsqueeze(1), y), self.scaling)
            for x, y in (
                (images, labels),
                (test_images[:5000], test_labels[:5000]),
                (test_images[5000:], test_labels[5000:]),
            )
        )
        return Federation(train, self.partitioner.split(labels, self.seed), val=val, test=test)


class FashionMNIST(MNIST):
    """Fashion-MNIST, in every way like :class:`MNIST`."""

    name = "FashionMNIST"


class CIFAR10(FederatedDataModule):
    """CIFAR-10: 50,000 training, 5,000 validation and 5,000 test images of 32 x 32 colour pixels."""

    def __init__(
        self,
        root: str,
        partitioner: Partitioner | None = None,
        scaling: ScalePixels | None = None,
        cache: str | None = None,
        download: bool = False,
        **dealing: Any,
    ) -> None:
        """Name the folder.

        Args:
            root: Folder in torchvision's layout, ``<root>/cifar-10-batches-py/``; or an ``.npz`` with encoded pictures
                joined in ``blob``, their ``offsets``, ``label`` and ``split`` (0 train, 1 test).
            partitioner: Splits the training images by label; null for 100 clients IID.
            scaling: Range of the pixels; null for [-1, 1].
            cache: Folder for the decoded pictures of an ``.npz``; null decodes them every time.
            download: Fetch the files into ``root`` if they are missing.
            dealing: Arguments of :class:`FederatedDataModule`.
        """
        super().__init__(**dealing)
        self.root = root
        self.partitioner = IID(100) if partitioner is None else partitioner
        self.scaling = ScalePixels() if scaling is None else scaling
        self.cache = cache
        self.download = download

    def build(self) -> Federation:
        """Read the images; validation and test pictures are drawn at random from the official test part."""
        images, labels, test_images, test_labels = read_cifar10(self.root, self.cache, self.download)
        order = torch.randperm(len(test_labels), generator=torch.Generator().manual_seed(0))
        train = TensorData((images, labels), self.scaling)
        val, test = (
            TensorData((test_images[part], test_labels[part]), self.scaling)
            for part in order.split(len(test_labels) // 2)
        )
        return Federation(train, self.partitioner.split(labels, self.seed), val=val, test=test)
