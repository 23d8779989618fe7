"""Data sets held as tensors, whose samples are gathered by index instead of loaded one by one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset, TensorDataset

from fedlightning.core.tree import flatten, map_tensors
from fedlightning.federation.sampling.sources import MixedSource, TensorSource, Transform


class _Leaf:
    """Stands for a tensor where many numbers would be printed."""

    def __init__(self, tensor: Tensor) -> None:
        self.shown = f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"

    def __repr__(self) -> str:
        return self.shown


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

    def __repr__(self) -> str:
        """Return the shapes and types of the leaves, not their numbers."""
        shapes = map_tensors(_Leaf, self.tensors)
        return f"TensorData({shapes})" if self.transform is None else f"TensorData({shapes}, {self.transform!r})"

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
    """Return the data set as tensors ``[n, ...]``; None if samples are not tensors or have several shapes.

    A subclass may make samples of its tensors in a way of its own (normalised, augmented): they have to be loaded.
    """
    if isinstance(dataset, TensorData) and _gives_what_it_holds(dataset, TensorData):
        return dataset
    if isinstance(dataset, TensorDataset) and _gives_what_it_holds(dataset, TensorDataset):
        return TensorData(tuple(dataset.tensors))
    return None


def _gives_what_it_holds(dataset: Any, base: Any) -> bool:
    """Return whether a data set gives samples as its base class does."""
    names = ("__getitem__", "__getitems__", "__len__")
    return all(getattr(type(dataset), name, None) is getattr(base, name, None) for name in names)


def in_memory(dataset: Dataset[Any]) -> TensorData | MixedTensorData | None:
    """Return the data set as tensors of one or several shapes; None if samples have to be loaded."""
    return dataset if isinstance(dataset, MixedTensorData) else as_tensor_data(dataset)


def stored_samples(dataset: Dataset[Any], index: Tensor) -> list[Tensor]:
    """Return what is known of the samples at ``index [n]`` without loading one, leaves ``[n, ...]``.

    These are the samples themselves if they are tensors in memory, before any transform. Of other data sets these are
    the targets, if the data set has an attribute ``targets`` with a number for every sample, and nothing otherwise.
    """
    data = in_memory(dataset)
    if isinstance(data, MixedTensorData):
        part = data.shape_of(int(index[0]))
        return stored_samples(data.parts[part], index - data.offsets[part])
    if data is not None:
        return [leaf[index] for leaf in flatten(data.tensors)[0]]
    targets: Any = getattr(dataset, "targets", None)
    if not isinstance(targets, Sequence | Tensor) or len(targets) <= int(index.max()):
        return []
    own = [_plain(targets[place]) for place in index.tolist()]
    return [torch.tensor(own)] if all(isinstance(each, int | float) for each in own) else []


def shape_of_samples(dataset: Dataset[Any], index: Tensor) -> int:
    """Return the number of the shape that the samples at ``index [n]`` share; 0 in data sets of one shape."""
    return dataset.shape_of(int(index[0])) if isinstance(dataset, MixedTensorData) else 0


def _plain(target: Any) -> Any:
    return target.item() if isinstance(target, Tensor) and target.dim() == 0 else target
