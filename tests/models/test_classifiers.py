"""Classifiers: sizes and shapes."""

from __future__ import annotations

import pytest
import torch

from fedlightning.models import CNN, LeNet5, LogisticRegression


@pytest.mark.parametrize(
    ("network", "shape", "parameters"),
    [
        (LogisticRegression(784), (1, 28, 28), 7_850),
        (LeNet5(), (1, 28, 28), 61_706),
        (CNN(), (1, 28, 28), 1_663_370),
    ],
)
def test_sizes_of_the_classifiers(network, shape, parameters):
    assert sum(p.numel() for p in network.parameters()) == parameters
    assert network(torch.zeros(2, *shape)).shape == (2, 10)
