"""Training data that some clients have changed, to simulate attacks by data."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from fedlightning.core.errors import InvalidTypeError, InvalidValueError
from fedlightning.core.some_clients import SomeClients
from fedlightning.core.validation import require
from fedlightning.data.federation import Federation
from fedlightning.data.pooling import size_of
from fedlightning.data.tensors import MixedTensorData, TensorData, in_memory


class Poisoning(ABC):
    """Serves as the base class of attacks by data; subclasses are frozen dataclasses."""

    @abstractmethod
    def apply(self, federation: Federation) -> Federation:
        """Return a federation with other training data, of the same sizes; nothing of the given one is written to."""


@dataclass(frozen=True, kw_only=True)
class LabelFlip(SomeClients, Poisoning):
    """Turns label y of these clients' training samples into classes - 1 - y; negative labels, which hide one, stay.

    Args:
        label: Place or key of the label in a sample.
        classes: Number >= 2 of classes; null for one more than the largest training label, of tensors in memory.
        clients: Ids of these clients. Give either these or ``share``.
        share: Share 0 < share <= 1 of all clients, at least one; those that an attack through the channel with the same
            share and seed has as adversaries.
        seed: Seed of the draw of the share.
    """

    label: int | str = 1
    classes: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, "classes", at_least=2, optional=True)

    def apply(self, federation: Federation) -> Federation:
        """Return a federation in which these clients have learnt from flipped labels.

        Raises:
            TypeError: If samples have no whole number at the place of the label.
            ValueError: If a label is not below ``classes``, or their number is not known.
        """
        chosen = sorted(self.among(len(federation.partition)))
        theirs = torch.zeros(size_of(federation.train), dtype=torch.bool)
        for client in chosen:
            theirs[federation.partition[client]] = True
        return replace(federation, train=self._flipped(federation.train, theirs))

    def _flipped(self, data: Dataset[Any], theirs: Tensor) -> Dataset[Any]:
        """Return a data set in which the samples ``theirs [n]`` have flipped labels."""
        held = in_memory(data)
        if held is None:
            if self.classes is None:
                raise InvalidValueError(
                    f"LabelFlip(classes=None): the labels of a {type(data).__name__} are loaded sample by sample, so "
                    "that their number is not known. Give classes."
                )
            return _FlippedSamples(data, self, self.classes, theirs)
        parts = held.parts if isinstance(held, MixedTensorData) else (held,)
        labels = [self._labels(part) for part in parts]
        classes = 1 + int(max(each.max() for each in labels)) if self.classes is None else self.classes
        flipped = [
            TensorData(self.put(part.tensors, torch.where(mask, self.of(own, classes), own)), part.transform)
            for part, own, mask in zip(parts, labels, theirs.split([len(part) for part in parts]), strict=True)
        ]
        return MixedTensorData(flipped) if isinstance(held, MixedTensorData) else flipped[0]

    def _labels(self, data: TensorData) -> Tensor:
        labels = self.get(data.tensors)
        if not isinstance(labels, Tensor) or labels.dim() != 1 or labels.is_floating_point() or labels.is_complex():
            raise self.no_label()
        return labels

    def of(self, label: Tensor, classes: int) -> Tensor:
        """Return flipped labels, ``[...]``.

        Raises:
            ValueError: If a label is ``classes`` or more.
        """
        if (label >= classes).any():
            raise InvalidValueError(
                f"LabelFlip(classes={classes}): there is a label {int(label.max())}. Give the number of all classes."
            )
        return torch.where(label >= 0, classes - 1 - label, label)

    def get(self, sample: Any) -> Any:
        """Return the label of a sample, or the labels of a batch.

        Raises:
            TypeError: If there is nothing at the place of the label.
        """
        at: Any = self.label
        try:
            return sample[at] if isinstance(sample, Mapping | list | tuple) else None
        except (KeyError, IndexError, TypeError) as error:
            raise self.no_label() from error

    def put(self, sample: Any, label: Any) -> Any:
        """Return a sample, or a batch, with another label."""
        if isinstance(sample, Mapping):
            return type(sample)({**sample, self.label: label})  # type: ignore[call-arg]
        parts = list(sample)
        parts[self.label] = label  # type: ignore[index]
        return type(sample)(*parts) if hasattr(sample, "_fields") else type(sample)(parts)

    def no_label(self) -> InvalidTypeError:
        """Return the error that says that samples have no label there."""
        return InvalidTypeError(
            f"LabelFlip(label={self.label!r}): the training samples hold no whole number there. Give the place or the "
            "key of the label in a sample, e.g. label=1 for (input, label)."
        )


class _FlippedSamples(Dataset[Any]):
    """Flips labels of samples as they are loaded."""

    def __init__(self, data: Dataset[Any], flip: LabelFlip, classes: int, theirs: Tensor) -> None:
        self._data = data
        self._flip = flip
        self._classes = classes
        self._theirs = theirs

    def __len__(self) -> int:
        return len(self._theirs)

    def __getitem__(self, index: int) -> Any:
        sample = self._data[index]
        if not self._theirs[index]:
            return sample
        label = self._flip.get(sample)
        as_tensor = torch.as_tensor(label)
        if as_tensor.dim() or as_tensor.is_floating_point():
            raise self._flip.no_label()
        flipped = self._flip.of(as_tensor, self._classes)
        return self._flip.put(sample, flipped if isinstance(label, Tensor) else int(flipped))
