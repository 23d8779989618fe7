"""Digits that clients see at different resolutions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn import functional as F

from fedlightning.core.errors import InvalidValueError
from fedlightning.data.federation import Federation
from fedlightning.data.partition import Partition
from fedlightning.data.personal import PersonalDigits
from fedlightning.data.tensors import MixedTensorData, TensorData


class DigitsOfSizes(PersonalDigits):
    """Distributes :class:`PersonalDigits` at resolutions that differ between clients; nothing is downloaded.

    Clients' images differ in shape, so their first layers must: see :class:`~fedlightning.models.PerArchitecture`.
    """

    def __init__(self, sizes: Sequence[int] = (8, 4), permute_labels: bool = False, **options: Any) -> None:
        """Set the resolutions and whether labels are permuted.

        Args:
            sizes: Height and width of the images of clients 0, 1, ..., then from the start again: 8, 4, 2 or 1.
            permute_labels: Whether every client names the digits in its own way.
            options: Further arguments of :class:`PersonalDigits`.
        """
        super().__init__(permute_labels=permute_labels, **options)
        if not isinstance(sizes, list | tuple) or not sizes:
            raise InvalidValueError(f"DigitsOfSizes(sizes={sizes!r}): expected a list of 8, 4, 2 or 1, e.g. [8, 4].")
        if wrong := [size for size in sizes if size not in (8, 4, 2, 1)]:
            raise InvalidValueError(f"sizes={list(sizes)}: {wrong[0]} is none of 8, 4, 2, 1.")
        self.sizes = list(sizes)

    def build(self) -> Federation:
        """Partition the images, then shrink the images of each client to the client's resolution."""
        whole = super().build()
        data = whole.train
        assert isinstance(data, TensorData)
        images, *others = data.tensors
        kinds = sorted(set(self.sizes), reverse=True)
        size = torch.zeros(len(images), dtype=torch.long)  # of each image, by number of its kind
        for partition in (whole.partition, whole.val_partition, whole.test_partition):
            assert partition is not None
            for client, index in enumerate(partition):
                size[index] = kinds.index(self.sizes[client % len(self.sizes)])
        parts = []
        for kind, length in enumerate(kinds):
            pixels = F.avg_pool2d(images[size == kind].float(), images.shape[-1] // length)
            own = pixels.round().to(images.dtype), *(other[size == kind] for other in others)
            parts.append(TensorData(own, data.transform))
        position = torch.empty_like(size)
        position[size.argsort(stable=True)] = torch.arange(len(size))

        def moved(partition: Partition | None) -> Partition:
            assert partition is not None
            return Partition(position[partition.order], partition.offsets)

        mixed = MixedTensorData(parts)
        val, test = moved(whole.val_partition), moved(whole.test_partition)
        return Federation(mixed, moved(whole.partition), val=mixed, test=mixed, val_partition=val, test_partition=test)
