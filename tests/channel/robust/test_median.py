"""The median of every coordinate."""

from __future__ import annotations

import pytest
import torch

from fedlightning.channel import Median
from tests.support.references import robust as references
from tests.support.rules import aggregated, drawn


@pytest.mark.parametrize("count", [1, 2, 3, 6, 7])
def test_median_is_that_of_a_loop(count):
    rows = drawn(count)
    assert torch.equal(aggregated(Median(), rows), torch.from_numpy(references.median(rows.numpy())))


def test_of_an_even_number_it_is_the_mean_of_the_middle_values():
    rows = torch.tensor([[1.0, -5.0], [2.0, 0.0], [4.0, 1.0], [100.0, 1.0]])
    assert aggregated(Median(), rows).tolist() == [3.0, 0.5]


def test_the_largest_numbers_of_a_dtype_have_a_median():
    rows = torch.full((2, 1), torch.finfo(torch.float32).max)
    assert torch.equal(aggregated(Median(), rows), rows[0])


def test_sixteen_bit_updates_have_a_median_of_their_own_dtype():
    rows = torch.tensor([[1.0], [3.0], [1000.0]], dtype=torch.bfloat16)
    found = aggregated(Median(), rows)
    assert (found.dtype, found.tolist()) == (torch.bfloat16, [3.0])


@pytest.mark.parametrize(("count", "bad"), [(3, 1), (4, 1), (9, 4), (10, 4)])
def test_coordinates_stay_among_the_honest_ones_below_half(count, bad):
    honest = drawn(count - bad)
    for value in (1e30, -1e30):
        found = aggregated(Median(), torch.cat([torch.full((bad, 37), value, dtype=torch.float64), honest]))
        assert (found >= honest.amin(dim=0)).all()
        assert (found <= honest.amax(dim=0)).all()
    half = torch.cat([torch.full((count, 37), 1e30, dtype=torch.float64), drawn(count)])
    assert (aggregated(Median(), half) > 1e29).all()
