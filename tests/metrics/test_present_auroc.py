from __future__ import annotations

import torch
from torchmetrics.functional.classification import binary_auroc, multiclass_auroc

from fedlightning.metrics import PresentClassesAUROC


def scores(n=40, classes=4):
    return torch.randn(n, classes).softmax(1)


def test_equals_torchmetrics_where_every_class_is_there():
    p, y = scores(), torch.arange(40) % 4
    metric = PresentClassesAUROC(4)
    metric.update(p[:25], y[:25])
    metric.update(p[25:], y[25:])
    torch.testing.assert_close(metric.compute(), multiclass_auroc(p, y, 4))


def test_averages_the_classes_that_are_there():
    p, y = scores(), torch.arange(40) % 2 * 3
    metric = PresentClassesAUROC(4)
    metric.update(p, y)
    expected = torch.stack([binary_auroc(p[:, k], (y == k).long()) for k in (0, 3)]).mean()
    torch.testing.assert_close(metric.compute(), expected)


def test_is_undefined_for_a_single_class():
    metric = PresentClassesAUROC(4)
    metric.update(scores(5), torch.full((5,), 2))
    assert metric.compute().isnan()


def test_ties_count_half_as_in_torchmetrics():
    p, y = (scores(60) * 5).round(), torch.arange(60) % 4
    p = p / p.sum(1, keepdim=True)
    metric = PresentClassesAUROC(4)
    metric.update(p, y)
    torch.testing.assert_close(metric.compute(), multiclass_auroc(p, y, 4))
