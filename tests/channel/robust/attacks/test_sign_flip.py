"""A flipped sign."""

from __future__ import annotations

import pytest
import torch

from fedlightning.channel import SignFlip
from tests.support.exchanges import exchange
from tests.support.rules import drawn


def test_updates_are_sent_with_the_opposite_sign():
    sent = SignFlip(clients=[1, 2], scale=3.0).act([drawn(3)], [0, 1, 2], exchange(), 0)[0]
    torch.testing.assert_close(sent, drawn(3) * torch.tensor([[1.0], [-3.0], [-3.0]], dtype=torch.float64))


def test_the_scale_is_positive():
    with pytest.raises(ValueError, match=r"SignFlip\(scale=0.0\)"):
        SignFlip(share=0.1, scale=0.0)
