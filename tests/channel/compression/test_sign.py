"""Signs with a scale: contraction by definition, and bits."""

from __future__ import annotations

import torch

from fedlightning.channel.compression import SignCompression
from tests.support.compression import exchange_of, rows_of, transformed


def test_signs_times_the_mean_magnitude():
    values = torch.tensor([[1.0, -2.0, 0.0, 5.0]])
    assert transformed(SignCompression(), values)[0].tolist() == [[2.0, -2.0, 2.0, 2.0]]


def test_it_contracts_by_definition():
    """‖C(x) - x‖² = ‖x‖² - ‖x‖₁² / n, an identity, zeros included."""
    values = rows_of(100, 30)
    values[:20, ::3] = 0.0
    lost = (transformed(SignCompression(), values)[0] - values).square().sum(1)
    square = values.square().sum(1)
    torch.testing.assert_close(lost, square - values.abs().sum(1).square() / 30, rtol=1e-12, atol=1e-12)
    assert bool((lost <= (1 - 1 / 30) * square).all())


def test_no_row_becomes_longer():
    values = rows_of(100, 30)
    assert bool((transformed(SignCompression(), values)[0].norm(dim=1) <= values.norm(dim=1)).all())
    assert SignCompression().bound(2.0, ["z"], exchange_of([0])) == 2.0


def test_bits_by_hand():
    assert transformed(SignCompression(), rows_of(2, 50, dtype=torch.float32))[1].tolist() == [82, 82]
