"""The mean is the mean."""

from __future__ import annotations

import torch

from fedlightning.channel import Mean
from tests.support.rules import aggregated, drawn


def test_the_mean_is_that_of_torch():
    torch.testing.assert_close(aggregated(Mean(), drawn(5)), drawn(5).mean(dim=0))
