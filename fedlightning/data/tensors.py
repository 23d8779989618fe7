"""Data sets held as tensors, whose samples are gathered by index instead of loaded one by one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset, TensorDataset

from fedlightning.core.tree import flatten, map_tensors
from fedlightning.federation.sources import MixedSource, TensorSource, Transform


@dataclass(frozen=True)
class TensorData(Dataset[Any]):
    """Holds samples as tensors in any nesting, which is the fast path of federated training.

    Attributes:
        tensors: Leaves ``[n, ...]``.
        transform: Applied to every batch after gathering, on the device (bytes to real numbers, say).
    """

    tensors: Any
    transform: Transform | None = None

    def __len__(self) -> int:
        return len(flatten(self.tensors)[0][0])

    def __getitem__(self, index: Any) -> Any:
        """Return a sample, or a batch for a slice or an index tensor."""
        item = map_tensors(lambda t: t[index], self.tensors)
        return item if self.transform is None else self.transform(item)

    def source(self) -> TensorSource:
        """Return the source from which a cohort's samples are gathered."""
        return TensorSource(self.tensors, self.transform)


class MixedTensorData(Dataset[Any]):
    """Holds samples of several shapes, for clients with different inputs; one client's samples share a shape.

    Attributes:
        parts: Samples of one shape each; positions count through all parts.
        offsets: ``[parts]``, position of the first sample of each part.
    """

    def __init__(self, parts: Sequence[TensorData]) -> None:
        """Join one or more parts."""
        self.parts = tuple(parts)
        self.offsets = torch.tensor([0, *(len(part) for part in parts)])[:-1].cumsum(0)

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    def __getitem__(self, index: Any) -> Any:
        """Return a sample, or for an index tensor a batch of samples, which must share a shape."""
        index = torch.as_tensor(index)
        part = self.shape_of(int(index.flatten()[0]))
        return self.parts[part][index - self.offsets[part]]

    def shape_of(self, position: int) -> int:
        """Return the number of the part that holds a sample."""
        return int(torch.searchsorted(self.offsets, position, right=True)) - 1

    def source(self) -> MixedSource:
        """Return the source from which a cohort's samples are gathered."""
        return MixedSource([part.source() for part in self.parts], self.offsets)


def as_tensor_data(dataset: Dataset[Any] | None) -> TensorData | None:
    """Return the data set as tensors ``[n, ...]``; None if samples are not tensors or have several shapes."""
    if isinstance(dataset, TensorData):
        return dataset
    if isinstance(dataset, TensorDataset):
        return TensorData(tuple(dataset.tensors))
    return None


def in_memory(dataset: Dataset[Any]) -> TensorData | MixedTensorData | None:
    """Return the data set as tensors of one or several shapes; None if samples have to be loaded."""
    return dataset if isinstance(dataset, MixedTensorData) else as_tensor_data(dataset)


def shape_of_samples(dataset: Dataset[Any], index: Tensor) -> int:
    """Return the number of the shape that the samples at ``index [n]`` share; 0 in data sets of one shape."""
    return dataset.shape_of(int(index[0])) if isinstance(dataset, MixedTensorData) else 0
