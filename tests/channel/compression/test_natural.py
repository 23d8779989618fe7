"""Powers of two: expectation, variance, extreme numbers, bits."""

from __future__ import annotations

import pytest
import torch

from fedlightning.channel.compression import NaturalCompression
from tests.support.compression import EvenDraws, rows_of, transformed

DRAWS = 4000


def over_all_draws(row):
    return NaturalCompression().compress(row.expand(DRAWS, -1), EvenDraws(DRAWS)).values


def test_it_is_unbiased():
    row = rows_of(1, 40)
    found = over_all_draws(row)
    assert bool(((found.mean(0) - row[0]).abs() <= row[0].abs() / DRAWS).all())
    assert bool((torch.frexp(found).mantissa.abs() == 0.5).all())


def test_the_variance_is_an_eighth_at_most_and_no_less():
    """For x = 2^a (1 + t), E (C(x) - x)² / x² = t (1 - t) / (1 + t)², which is largest at t = 1/3: 1/8."""
    t = torch.tensor([[0.0, 0.1, 1 / 3, 0.5, 0.9]], dtype=torch.float64)
    row = 8 * (1 + t)
    found = over_all_draws(row)
    error = ((found - row) / row).square().mean(0)
    torch.testing.assert_close(error, (t * (1 - t) / (1 + t) ** 2)[0], rtol=0.0, atol=1 / DRAWS)
    assert float(error.max()) == pytest.approx(NaturalCompression().variance(5), abs=1 / DRAWS)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_powers_of_two_are_exact(dtype):
    low, high = (-20, 30) if dtype != torch.float16 else (-14, 15)
    powers = torch.tensor([[sign * 2.0**place for place in range(low, high) for sign in (1, -1)]], dtype=dtype)
    assert torch.equal(transformed(NaturalCompression(), powers)[0], powers)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_numbers_below_the_normal_ones_go_to_the_least_or_to_zero(dtype):
    least = torch.finfo(dtype).tiny
    row = torch.tensor([[least / 4, -least / 2, 0.0]], dtype=dtype)
    found = NaturalCompression().compress(row.expand(8, -1), EvenDraws(8)).values
    assert (found[:, 0] == least).sum() == 2
    assert (found[:, 1] == -least).sum() == 4
    assert bool((found[:, 2] == 0).all())


def test_what_rounds_beyond_the_largest_number_is_not_hidden():
    row = torch.full((1, 1000), 3e38)
    found = transformed(NaturalCompression(), row)[0]
    assert set(found.unique().tolist()) == {2.0**127, float("inf")}


@pytest.mark.parametrize(
    ("dtype", "bits"), [(torch.float64, 12), (torch.float32, 9), (torch.bfloat16, 9), (torch.float16, 6)]
)
def test_bits_by_hand(dtype, bits):
    assert transformed(NaturalCompression(), rows_of(2, 50, dtype=dtype))[1].tolist() == [50 * bits, 50 * bits]
