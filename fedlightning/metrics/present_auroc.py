"""Area under the ROC curve over the classes that are there."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor
from torchmetrics.classification import MulticlassAUROC


class PresentClassesAUROC(MulticlassAUROC):
    """One-against-rest AUROC, averaged over the classes that have both positive and negative samples.

    A client often holds few of the classes. torchmetrics' macro average counts a class without positives as 0, which
    tells of the client's data and not of its model. Where every class is there, both agree. With no class to judge by
    (all samples of one class) it is NaN.
    """

    def __init__(self, num_classes: int, **options: Any) -> None:
        """Like ``MulticlassAUROC``, which averages nothing here.

        Args:
            num_classes: Number C of classes.
            options: Further arguments of ``MulticlassAUROC``.
        """
        super().__init__(num_classes, average="none", **options)

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Take scores ``[n, C]`` and classes ``[n]``; logits are turned into probabilities."""
        super().update(preds.detach().float(), target)

    def compute(self) -> Tensor:  # type: ignore[override]
        """The mean, a scalar."""
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="No (positive|negative) samples in targets")
            areas = super().compute()
        assert isinstance(self.target, list)
        target = torch.cat(self.target) if self.target else areas.new_empty(0, dtype=torch.long)
        counts = torch.bincount(target, minlength=len(areas))
        judged = areas[(counts > 0) & (counts < len(target))]
        return judged.mean() if len(judged) else areas.new_tensor(torch.nan)
