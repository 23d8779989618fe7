"""Data sets held as tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import Dataset, TensorDataset

from fedlightning.core.tree import flatten, map_tensors
from fedlightning.federation.sources import MixedSource, TensorSource, Transform


@dataclass(frozen=True)
class TensorData(Dataset[Any]):
    """Samples held as tensors, in any nesting; the fast path of federated training.

    Attributes:
        tensors: Leaves ``[n, ...]``.
        transform: Applied to every batch after gathering, on the device (bytes to real numbers, say).
    """

    tensors: Any
    transform: Transform | None = None

    def __len__(self) -> int:
        return len(flatten(self.tensors)[0][0])

    def __getitem__(self, index: Any) -> Any:
        """A sample, or a batch for a slice or an index tensor."""
        item = map_tensors(lambda t: t[index], self.tensors)
        return item if self.transform is None else self.transform(item)


class MixedTensorData(Dataset[Any]):
    """Samples of several shapes, for clients that differ in what they measure; those of one client have one shape.

    Attributes:
        parts: Samples of one shape each; positions count through them all.
        offsets: ``[parts]``, position of the first sample of each.
    """

    def __init__(self, parts: Sequence[TensorData]) -> None:
        """Join the parts."""
        self.parts = tuple(parts)
        self.offsets = torch.tensor([0, *(len(part) for part in parts)])[:-1].cumsum(0)

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    def __getitem__(self, index: Any) -> Any:
        """A sample, or a batch of samples of one shape for an index tensor."""
        index = torch.as_tensor(index)
        part = self.shape_of(int(index.flatten()[0]))
        return self.parts[part][index - self.offsets[part]]

    def shape_of(self, position: int) -> int:
        """Which part a sample lies in."""
        return int(torch.searchsorted(self.offsets, position, right=True)) - 1

    def source(self) -> MixedSource:
        """For training."""
        return MixedSource([TensorSource(part.tensors, part.transform) for part in self.parts], self.offsets)


def as_tensor_data(dataset: Dataset[Any]) -> TensorData | None:
    """The data set as tensors, if it is made of tensors."""
    if isinstance(dataset, TensorData):
        return dataset
    if isinstance(dataset, TensorDataset):
        return TensorData(tuple(dataset.tensors))
    return None
