"""Inner-product manipulation: the honest mean, turned around."""

from __future__ import annotations

import pytest
import torch

from fedlightning.channel import InnerProductManipulation
from tests.support.exchanges import exchange
from tests.support.rules import drawn


def test_adversaries_send_the_opposite_of_the_honest_mean():
    rows = drawn(9)
    sent = InnerProductManipulation(clients=[3, 8], scale=0.5).act([rows], range(9), exchange(), 0)[0]
    mean = rows[[0, 1, 2, 4, 5, 6, 7]].mean(dim=0)
    torch.testing.assert_close(sent[[3, 8]], (-0.5 * mean).expand(2, -1))


def test_the_mean_of_all_points_away_beyond_a_scale():
    rows = 1 + drawn(10)
    for scale, sign in ((3.9, 1), (4.1, -1)):  # two of ten: 8 - 2 * scale
        sent = InnerProductManipulation(clients=[0, 1], scale=scale).act([rows], range(10), exchange(), 0)[0]
        assert torch.sign(sent.mean(dim=0) @ rows[2:].mean(dim=0)) == sign


def test_the_scale_is_positive():
    with pytest.raises(ValueError, match=r"InnerProductManipulation\(scale=0\)"):
        InnerProductManipulation(share=0.1, scale=0)
