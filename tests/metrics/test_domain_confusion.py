import doctest

import pytest
import torch
from sklearn.metrics import balanced_accuracy_score

from fedlightning.metrics import DomainConfusion, domain_confusion


def test_doctest():
    assert doctest.testmod(domain_confusion).failed == 0


def test_against_scikit_learn():
    draw = torch.Generator().manual_seed(0)
    probability, domain = torch.rand(300, generator=draw), torch.randint(0, 2, (300,), generator=draw)
    metric = DomainConfusion()
    for part in range(0, 300, 70):
        metric.update(probability[part : part + 70], domain[part : part + 70])
    error = 1 - balanced_accuracy_score(domain, probability < 0.5)
    assert metric.compute().item() == pytest.approx(2 * min(error, 1 - error))


@pytest.mark.parametrize(("probability", "expected"), [((0.9, 0.1), 0.0), ((0.1, 0.9), 0.0), ((0.9, 0.9), 1.0)])
def test_extremes(probability, expected):
    metric = DomainConfusion()
    metric.update(torch.tensor(probability), torch.tensor([0, 1]))
    assert metric.compute().item() == pytest.approx(expected)


def test_one_domain_alone_tells_nothing():
    metric = DomainConfusion()
    metric.update(torch.tensor([0.9]), torch.tensor([0]))
    assert metric.compute().isnan()
