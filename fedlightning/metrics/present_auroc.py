"""Area under the ROC curve, averaged over the classes that are present."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torchmetrics.classification import MulticlassAUROC
from torchmetrics.utilities import dim_zero_cat


class PresentClassesAUROC(MulticlassAUROC):
    """Averages the one-against-rest AUROC over the classes that have both positive and negative samples.

    A client often holds few of the classes. torchmetrics' macro average counts a class without positives as 0, which
    tells of the client's data and not of its model. Where every class is there, both agree. With no class to judge by
    (all samples of one class) it is NaN.

    The area under the curve is the share of pairs (positive, negative) that the scores put in order, ties counting
    half, so it follows from the ranks of all scores (Mann and Whitney, 1947): all classes at once, without the curve.
    """

    def __init__(self, num_classes: int, **options: Any) -> None:
        """Set up ``MulticlassAUROC`` without averaging.

        Args:
            num_classes: Number C of classes.
            options: Further arguments of ``MulticlassAUROC`` except ``average`` and ``thresholds``.
        """
        super().__init__(num_classes, average="none", **options)

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Add scores ``[n, C]`` and classes ``[n]``; logits are turned into probabilities."""
        super().update(preds.detach().float(), target)

    def compute(self) -> Tensor:  # type: ignore[override]
        """Return the mean over the classes present, a scalar."""
        scores, target = dim_zero_cat(self.preds).mT.contiguous(), dim_zero_cat(self.target)
        positive = F.one_hot(target, len(scores)).mT.double()  # [C, n]
        ordered = scores.sort(1).values
        ranks = torch.searchsorted(ordered, scores) + torch.searchsorted(ordered, scores, right=True) + 1
        count = positive.sum(1)
        above = (positive * ranks).sum(1) / 2 - count * (count + 1) / 2  # pairs in order
        areas = above / (count * (len(target) - count))
        judged = (count > 0) & (count < len(target))
        return areas[judged].mean().to(scores.dtype)  # NaN of none
