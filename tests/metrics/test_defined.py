"""Which metrics a client's samples define, where torchmetrics answers with a number in any case."""

from __future__ import annotations

import pytest
import torch
from torchmetrics import AUROC, Metric, MetricCollection, R2Score, SumMetric
from torchmetrics.classification import BinaryAccuracy, BinaryAUROC, BinaryAveragePrecision, BinaryPrecision
from torchmetrics.wrappers import Running

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


class Gathering(Metric):
    """Gathers by a method of its own."""

    def __init__(self):
        super().__init__()
        self.add_state("total", torch.tensor(0.0))

    def update(self):
        raise NotImplementedError

    def gather(self, value):
        self.total = self.total + value

    def compute(self):
        return self.total


def test_metrics_that_count_no_updates_are_defined_by_what_they_hold():
    running = Running(SumMetric(), window=3)
    running(2.0)
    assert is_defined(running)
    gathering = Gathering()
    assert not is_defined(gathering)
    gathering.gather(2.0)
    assert is_defined(gathering)


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
