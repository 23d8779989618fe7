"""Perplexity is of tokens: padding and batches make no difference."""

from __future__ import annotations

import math

import pytest
import torch
from torchmetrics.text import Perplexity

from fedlightning.metrics import TokenPerplexity


def test_the_geometric_mean_of_inverse_probabilities():
    metric = TokenPerplexity()
    probabilities = torch.tensor([[0.5, 0.25], [0.125, 0.9]])
    counts = torch.tensor([[True, True], [True, False]])
    metric.update(-probabilities[:1].log(), counts[:1])
    metric.update(-probabilities[1:].log(), counts[1:])
    assert metric.compute() == pytest.approx((0.5 * 0.25 * 0.125) ** (-1 / 3))


def test_as_torchmetrics_from_logits():
    logits, target = torch.randn(3, 5, 7), torch.randint(7, (3, 5))
    target[1, 3:] = -100
    theirs = Perplexity(ignore_index=-100)
    theirs.update(logits, target)
    losses = torch.nn.functional.cross_entropy(logits.mT, target, reduction="none", ignore_index=-100)
    metric = TokenPerplexity()
    for row in range(3):
        metric.update(losses[row], target[row] != -100)
    torch.testing.assert_close(metric.compute(), theirs.compute())


def test_sums_may_be_continued_outside_of_inference_mode():
    metric = TokenPerplexity()
    with torch.inference_mode():
        metric.update(torch.tensor([2.0]), torch.tensor([True]))
    metric.update(torch.tensor([4.0]), torch.tensor([True]))
    assert float(metric.compute()) == pytest.approx(math.exp(3.0))


def test_uncounted_losses_may_be_anything_and_no_token_gives_nan():
    metric = TokenPerplexity()
    metric.update(torch.tensor([torch.inf]), torch.tensor([False]))
    assert math.isnan(metric.compute())
    metric.update(torch.tensor([torch.inf, 0.0]), torch.tensor([False, True]))
    assert metric.compute() == 1.0
    assert metric.higher_is_better is False
