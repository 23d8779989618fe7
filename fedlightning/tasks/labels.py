"""A check that a classifier has an output for every label, made before anything is computed."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fedlightning.core.errors import InvalidValueError
from fedlightning.core.settings import settings
from fedlightning.data.module import FederatedDataModule
from fedlightning.data.tensors import MixedTensorData, as_tensor_data
from fedlightning.tasks.base import FederatedLightningModule


def require_labels(task: FederatedLightningModule, classes: int) -> None:
    """Make sure that clients' training labels are below the number of classes.

    On a GPU a larger label ends the process with an assertion that names neither label nor model. Only labels that are
    held as a tensor are checked.

    Args:
        task: Attached to a trainer, with samples (input, label, ...).
        classes: Number of outputs of the model.

    Raises:
        ValueError: If a label is too large.
    """
    data: Any = task.trainer.datamodule  # type: ignore[attr-defined]
    labels = _labels(data) if isinstance(data, FederatedDataModule) else None
    if labels is None or int(labels.max()) < classes:
        return
    low, high = int(labels.min()), int(labels.max())
    raise InvalidValueError(
        f"{type(task).__name__}(classes={classes}): the training data have labels {low} to {high}, but the model has "
        f"{classes} outputs, for labels 0 to {classes - 1}. Give the task {settings({'model.classes': high + 1})} and "
        f"a network with {high + 1} outputs, or other labels."
    )


def _labels(data: FederatedDataModule) -> Tensor | None:
    """Return the labels of the clients' samples; None unless they are tensors with one whole number per sample."""
    train = data.federation.train
    parts = train.parts if isinstance(train, MixedTensorData) else [as_tensor_data(train)]
    found = []
    for part in parts:
        tensors = None if part is None else part.tensors
        label = tensors[1] if isinstance(tensors, list | tuple) and len(tensors) > 1 else None
        if not isinstance(label, Tensor) or label.dim() != 1 or label.is_floating_point():
            return None
        found.append(label)
    return torch.cat(found)[data.federation.partition.order]
