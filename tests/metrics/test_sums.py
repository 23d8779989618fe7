"""Metrics of sums over samples: the sums of parts give the value over all."""

from __future__ import annotations

import pytest
import torch
from torchmetrics import MeanMetric, Metric, PearsonCorrCoef
from torchmetrics.classification import BinaryAUROC, MulticlassAccuracy, MulticlassF1Score
from torchmetrics.wrappers import MinMaxMetric

from fedlightning.metrics.sums import sums_of, value_of_sums

LOGITS, LABELS = torch.randn(40, 3, generator=torch.Generator().manual_seed(0)), torch.arange(40) % 3


@pytest.mark.parametrize(
    "make",
    [
        lambda: MulticlassAccuracy(3, average="micro"),
        lambda: MulticlassF1Score(3, average="macro"),
        lambda: BinaryAUROC(thresholds=10),
    ],
)
def test_the_sums_of_parts_give_the_value_over_all(make):
    binary = isinstance(make(), BinaryAUROC)
    given = (LOGITS[:, 0].sigmoid(), LABELS % 2) if binary else (LOGITS, LABELS)
    whole, sums = make(), []
    for part in (slice(0, 7), slice(7, 40)):
        metric = make()
        for each in (metric, whole):
            each.update(given[0][part], given[1][part])
        sums.append(sums_of(metric))
    server = make()
    server.update(*given)  # what it held before does not count
    added = {name: sums[0][name] + sums[1][name] for name in sums[0]}
    assert torch.equal(value_of_sums(server, added), whole.compute())
    assert 0 < whole.compute() < 1
    assert all(not state.any() for state in sums_of(server).values())


class Lengthening(Metric):
    def __init__(self):
        super().__init__()
        self.add_state("seen", torch.zeros(0), dist_reduce_fx="sum")

    def update(self, values):
        self.seen = torch.cat([self.seen, values])

    def compute(self):
        return self.seen.mean()


@pytest.mark.parametrize("metric", [BinaryAUROC(), PearsonCorrCoef(), MinMaxMetric(MeanMetric()), Lengthening()])
def test_metrics_that_do_not_add_up_have_no_sums(metric):
    if isinstance(metric, Lengthening):
        metric.update(torch.ones(3))
    assert sums_of(metric) is None


def test_sums_of_another_metric_are_refused():
    metric = MeanMetric()
    with pytest.raises(ValueError, match=r"MeanMetric has the states .*mean_value.*, the sums are \{'tp': \(\)\}"):
        value_of_sums(metric, {"tp": torch.tensor(1)})
