"""The largest entries, by definition and by bits."""

from __future__ import annotations

import pytest
import torch

from fedlightning.channel.compression import TopK
from fedlightning.core.errors import InvalidTypeError, InvalidValueError
from tests.support.compression import exchange_of, rows_of, transformed


def test_the_largest_entries_are_kept():
    values = torch.tensor([[1.0, -5.0, 2.0, 0.5, -3.0], [0.0, 0.0, 7.0, 0.0, 0.0]])
    found = transformed(TopK(0.4), values)[0]
    assert found.tolist() == [[0.0, -5.0, 0.0, 0.0, -3.0], [0.0, 0.0, 7.0, 0.0, 0.0]]


def test_of_equal_entries_the_first_are_kept():
    values = torch.tensor([[1.0, -2.0, 2.0, 3.0, 2.0, -2.0]])
    assert transformed(TopK(0.5), values)[0].tolist() == [[0.0, -2.0, 2.0, 3.0, 0.0, 0.0]]


@pytest.mark.parametrize(("fraction", "kept"), [(0.01, 1), (0.1, 5), (0.11, 6), (0.5, 25), (1.0, 50)])
def test_it_contracts_by_definition(fraction, kept):
    """‖C(x) - x‖² <= (1 - k / n) ‖x‖² for every x, with equality where all entries are of the same size."""
    compressor = TopK(fraction)
    values = rows_of(200, 50)
    lost = (transformed(compressor, values)[0] - values).square().sum(1)
    assert bool((lost <= (1 - kept / 50) * values.square().sum(1) + 1e-12).all())
    flat = torch.ones(1, 50) * torch.tensor([1.0, -1.0]).repeat(25)
    found = transformed(compressor, flat)[0]
    assert int((found != 0).sum()) == kept
    assert float((found - flat).square().sum()) == 50 - kept


@pytest.mark.parametrize(
    ("fraction", "dtype", "bits"),
    [
        (0.02, torch.float32, 2 * 32 + 2 * 7),
        (0.5, torch.float32, 50 * 32 + 100),  # a bitmap; indices would take 350 bits
        (0.5, torch.float64, 50 * 64 + 100),
        (1.0, torch.bfloat16, 100 * 16),
    ],
)
def test_bits_by_hand(fraction, dtype, bits):
    assert transformed(TopK(fraction), rows_of(2, 100, dtype=dtype))[1].tolist() == [bits, bits]


def test_no_row_becomes_longer():
    assert TopK(0.1).bound(2.0, ["z"], exchange_of([0])) == 2.0
    assert TopK(0.1).bound(None, ["z"], exchange_of([0])) is None


@pytest.mark.parametrize("fraction", [0.0, -0.1, 1.5])
def test_a_fraction_is_a_share(fraction):
    with pytest.raises(InvalidValueError, match=r"TopK\(fraction=.*expected > 0 and <= 1"):
        TopK(fraction)


def test_a_fraction_is_a_number():
    with pytest.raises(InvalidTypeError, match=r"TopK\(fraction='all'\): expected a number"):
        TopK("all")
