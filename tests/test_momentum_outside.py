"""SCAFFOLD as others run it, with a momentum beside the corrections, which the page of their tables tries."""

from __future__ import annotations

import pytest
import torch

from experiments.benchmarks.momentum_outside import Corrected, MomentumOutside
from fedlightning.algorithms import SCAFFOLD
from fedlightning.local import SGD
from tests.support.federations import train


def test_without_momentum_it_is_scaffold():
    *_, ours = train(MomentumOutside(0.05, momentum=0.0, weight_decay=0.0), 4, local_steps=6)
    *_, plain = train(SCAFFOLD(0.05), 4, local_steps=6)
    torch.testing.assert_close(ours, plain, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("active", [None, torch.tensor([True, False])])
def test_corrections_do_not_enter_the_momentum(active):
    correction, gradients = torch.tensor([[1.0], [2.0]]), torch.tensor([[[0.5], [0.25]], [[2.0], [4.0]]])
    step, w = Corrected(SGD(momentum=0.9), 0.1, correction), torch.zeros(2, 1)
    for gradient in gradients:
        w = step(w, gradient, active)
    first, second = gradients
    expected = -0.1 * (first + (0.9 * first + second) + 2 * correction)
    torch.testing.assert_close(w, expected if active is None else expected * active[:, None])
