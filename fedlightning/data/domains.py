"""Source and target domains over clients: digits on white paper and digits over photographs, Office-31.

A sample is ``{"image", "label", "domain"}`` with domain 0 for source and 1 for target. Training labels of target
samples are hidden (-1); validation and test data hold both domains with their labels.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import ConcatDataset, Dataset

from fedlightning.core.errors import MissingFileError
from fedlightning.core.requirements import imported
from fedlightning.core.validation import require
from fedlightning.data.cache import cached, fingerprint
from fedlightning.data.federation import Federation
from fedlightning.data.images import (
    ScalePixels,
    blend,
    digits_images,
    grey_to_rgb,
    read_idx,
    read_photographs,
    sample_photographs,
)
from fedlightning.data.module import FederatedDataModule
from fedlightning.data.partitioners import SourceTargetShare
from fedlightning.data.tensors import TensorData

SOURCE, TARGET, HIDDEN = 0, 1, -1


class DigitsM(FederatedDataModule):
    """Distributes scikit-learn's digits as source, and further digits over scikit-learn's photographs as target.

    Nothing is downloaded. The 1,797 digits are shared out once: 650 source, 650 target, 197 validation, 300 test; no
    digit is in two parts. Validation and test digits appear in both domains. Target training digits lie over one part
    of the photographs, validation and test digits over another.
    """

    def __init__(
        self,
        num_clients: int = 2,
        p: float = 1.0,
        size: int = 16,
        batch_size: int | None = 32,
        local_steps: int | None = 20,
        **options: Any,
    ) -> None:
        """Set the number of clients, the share of source samples and the size of a round.

        Args:
            num_clients: Number N of clients, even.
            p: Share of the source samples in the first half of the clients; 1 separates the domains.
            size: Height and width of the images.
            batch_size: Samples B of a local minibatch.
            local_steps: Local steps M a round.
            options: Further arguments of :class:`FederatedDataModule`.
        """
        super().__init__(batch_size=batch_size, local_steps=local_steps, **options)
        self.partitioner = SourceTargetShare(num_clients, p)
        self.size = size
        require(self, "size", at_least=1, whole=True)

    def build(self) -> Federation:
        """Split the digits into source, target, validation and test, and blend the target digits."""
        images, labels = digits_images(self.size)
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
        source, target, val, test = (part for part in order.split([650, 650, 197, 300]))
        photographs = sample_photographs()
        seen = [photograph[:, :420] for photograph in photographs]
        unseen = [photograph[:, 420:] for photograph in photographs]
        train = _unlabelled_target(images[source], labels[source], blend(images[target], seen, seed=1))
        return Federation(
            train,
            self.partitioner.split(train.tensors["domain"], self.seed),
            val=_both_domains(images[val], labels[val], blend(images[val], unseen, seed=2)),
            test=_both_domains(images[test], labels[test], blend(images[test], unseen, seed=3)),
        )


class MNISTM(FederatedDataModule):
    """Distributes MNIST as source, and MNIST over photographs as target (Ganin et al., 2016; FedMM, Section 7).

    The target's training part blends the 60,000 training digits, validation and test part 5,000 test digits each, in
    both domains. The blends are made from the photographs you name, once, and cached.
    """

    def __init__(
        self,
        root: str,
        photographs: str,
        num_clients: int = 2,
        p: float = 1.0,
        binary_digits: bool = False,
        cache: str = "data/cache",
        download: bool = False,
        batch_size: int | None = 64,
        local_steps: int | None = 20,
        **options: Any,
    ) -> None:
        """Set the files, the number of clients and the share of source samples.

        Args:
            root: Folder with MNIST in torchvision's layout, ``<root>/MNIST/raw/``.
            photographs: Folder, ``.npy`` or ``.npz`` with photographs (BSDS500, say); the last third of them is used
                for validation and test digits only.
            num_clients: Number N of clients, even.
            p: Share of the source samples in the first half of the clients; 1 separates the domains.
            binary_digits: Make every digit black and white before blending, as a widely copied script does.
            cache: Folder for the blended digits.
            download: Fetch MNIST into ``root`` if it is missing.
            batch_size: Samples B of a local minibatch.
            local_steps: Local steps M a round.
            options: Further arguments of :class:`FederatedDataModule`.
        """
        super().__init__(batch_size=batch_size, local_steps=local_steps, **options)
        self.partitioner = SourceTargetShare(num_clients, p)
        self.root = root
        self.photographs = photographs
        self.binary_digits = binary_digits
        self.cache = cache
        self.download = download

    def build(self) -> Federation:
        """Read the digits and their blends."""
        images, labels = read_idx(self.root, "MNIST", train=True, download=self.download)
        test_images, test_labels = read_idx(self.root, "MNIST", train=False)
        train = _unlabelled_target(images, labels, self._blended("train", images))
        blended = self._blended("test", test_images)
        val, test = slice(0, 5000), slice(5000, None)
        return Federation(
            train,
            self.partitioner.split(train.tensors["domain"], self.seed),
            val=_both_domains(test_images[val], test_labels[val], blended[val]),
            test=_both_domains(test_images[test], test_labels[test], blended[test]),
        )

    def _blended(self, part: str, digits: Tensor) -> Tensor:
        source = Path(self.photographs)
        files = sorted(source.rglob("*")) if source.is_dir() else [source]
        known = fingerprint([each for each in files if each.is_file()], self.binary_digits, len(digits))
        path = Path(self.cache) / f"mnist-m-{part}-{known}.pt"

        def blended() -> Tensor:
            photographs = read_photographs(self.photographs)
            cut = max(1, 2 * len(photographs) // 3)
            chosen = photographs[:cut] if part == "train" else photographs[cut:] or photographs
            black_and_white = (digits > 0).to(torch.uint8) * 255
            return blend(black_and_white if self.binary_digits else digits, chosen, seed=1 if part == "train" else 2)

        return cached(path, blended)


class Office31(FederatedDataModule):
    """Distributes two domains of Office-31 (Saenko et al., 2010), read from ``<root>/<domain>/images/<class>/*.jpg``.

    All images of the target domain train without labels and serve as validation and test data with them, as is usual
    for this set.
    """

    def __init__(
        self,
        root: str,
        source: str = "amazon",
        target: str = "webcam",
        num_clients: int = 2,
        p: float = 1.0,
        size: int = 224,
        batch_size: int | None = 32,
        local_steps: int | None = 20,
        **options: Any,
    ) -> None:
        """Set the folder, the two domains and the number of clients.

        Args:
            root: Folder of the three domains.
            source: Labelled domain: ``amazon``, ``dslr`` or ``webcam``.
            target: Unlabelled domain.
            num_clients: Number N of clients, even.
            p: Share of the source samples in the first half of the clients; 1 separates the domains.
            size: Height and width the images are cut to.
            batch_size: Samples B of a local minibatch.
            local_steps: Local steps M a round.
            options: Further arguments of :class:`FederatedDataModule`.
        """
        super().__init__(batch_size=batch_size, local_steps=local_steps, **options)
        self.partitioner = SourceTargetShare(num_clients, p)
        self.root = root
        self.domains = (source, target)
        self.size = size
        require(self, "size", at_least=1, whole=True)

    def build(self) -> Federation:
        """List the images of both domains and partition the images among the clients."""
        source, target = (self._folder(domain) for domain in self.domains)
        domain = torch.tensor([SOURCE] * len(source) + [TARGET] * len(target))
        evaluation: Dataset[Any] = ConcatDataset([_InDomain(source, SOURCE), _InDomain(target, TARGET)])
        return Federation(
            ConcatDataset([_InDomain(source, SOURCE), _InDomain(target, TARGET, hide_labels=True)]),
            self.partitioner.split(domain, self.seed),
            val=evaluation,
            test=evaluation,
        )

    def _folder(self, domain: str) -> Any:
        folder = Path(self.root) / domain / "images"
        if not folder.is_dir():
            raise MissingFileError(
                f"Office31(root={self.root!r}): no folder {folder}. Expected <root>/<domain>/images/<class>/*.jpg "
                "with the domains amazon, dslr and webcam."
            )
        transforms = imported("torchvision.transforms")
        return imported("torchvision.datasets").ImageFolder(
            str(folder),
            transforms.Compose(
                [
                    transforms.Resize(int(self.size * 256 / 224)),
                    transforms.CenterCrop(self.size),
                    transforms.ToTensor(),
                    transforms.Normalize(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225)),
                ]
            ),
        )


class _InDomain(Dataset[Any]):
    """Turns the pairs (image, label) of a data set into samples of one domain."""

    def __init__(self, pairs: Any, domain: int, hide_labels: bool = False) -> None:
        self._pairs = pairs
        self._domain = domain
        self._hide_labels = hide_labels

    def __len__(self) -> int:
        return len(self._pairs)

    def __getitem__(self, index: int) -> dict[str, Any]:
        image, label = self._pairs[index]
        return {"image": image, "label": HIDDEN if self._hide_labels else label, "domain": self._domain}


def _unlabelled_target(source: Tensor, labels: Tensor, target: Tensor) -> TensorData:
    """Return the training samples: the source with labels, the target without labels."""
    images = torch.cat([grey_to_rgb(source), target])
    hidden = torch.full((len(target),), HIDDEN)
    domain = torch.tensor([SOURCE, TARGET]).repeat_interleave(torch.tensor([len(source), len(target)]))
    return TensorData({"image": images, "label": torch.cat([labels, hidden]), "domain": domain}, ScalePixels())


def _both_domains(digits: Tensor, labels: Tensor, blended: Tensor) -> TensorData:
    """Return the evaluation samples: every digit in both domains, with labels."""
    images = torch.cat([grey_to_rgb(digits), blended])
    domain = torch.tensor([SOURCE, TARGET]).repeat_interleave(len(digits))
    return TensorData({"image": images, "label": labels.repeat(2), "domain": domain}, ScalePixels())
