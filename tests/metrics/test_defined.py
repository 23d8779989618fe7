"""Which metrics a client's samples define, where torchmetrics answers with a number in any case."""

from __future__ import annotations

import pytest
import torch
from torchmetrics import AUROC, MetricCollection, R2Score, SumMetric
from torchmetrics.classification import BinaryAccuracy, BinaryAUROC, BinaryAveragePrecision, BinaryPrecision

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


def test_without_samples_nothing_is_defined():
    metrics = {"accuracy": BinaryAccuracy(), "sum": SumMetric(), "r2": R2Score()}
    assert not any(is_defined(metric) for metric in metrics.values())
    grouped = MetricCollection([BinaryAccuracy(), BinaryPrecision()])
    grouped.update(torch.rand(4), torch.ones(4))
    assert all(is_defined(metric) for metric in grouped.values())
    part = BinaryAccuracy()
    part.update(torch.rand(4), torch.ones(4))
    assert is_defined(1 - part)


def test_the_coefficient_of_determination_needs_two_samples():
    metric = R2Score()
    metric.update(torch.rand(1), torch.rand(1))
    assert not is_defined(metric)
    metric.update(torch.rand(1), torch.rand(1))
    assert is_defined(metric)


def test_other_metrics_are_defined():
    metric = BinaryAccuracy()
    metric.update(torch.rand(2), torch.ones(2))
    assert is_defined(metric)
