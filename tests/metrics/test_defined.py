"""Which metrics a client's samples define, where torchmetrics answers with a number in any case."""

from __future__ import annotations

import pytest
import torch
from torchmetrics import AUROC
from torchmetrics.classification import BinaryAccuracy, BinaryAUROC, BinaryAveragePrecision

from fedlightning.metrics.defined import is_defined


@pytest.mark.parametrize("thresholds", [None, 5])
@pytest.mark.parametrize(
    ("labels", "auroc", "precision"),
    [([0, 1, 1], True, True), ([1, 1], False, True), ([0, 0], False, False), ([1, 1, -1], False, True)],
)
def test_areas_under_curves_need_the_samples_that_they_are_made_of(labels, auroc, precision, thresholds):
    options = {"thresholds": thresholds, "ignore_index": -1}
    kinds = {
        BinaryAUROC(**options): auroc,
        AUROC("binary", **options): auroc,
        BinaryAveragePrecision(**options): precision,
    }
    for metric, expected in kinds.items():
        metric.update(torch.rand(len(labels)), torch.tensor(labels))
        assert is_defined(metric) is expected


def test_other_metrics_are_defined():
    metric = BinaryAccuracy()
    metric.update(torch.rand(2), torch.ones(2))
    assert is_defined(metric)
