"""Centred clipping is a mean of clipped differences."""

from __future__ import annotations

import pytest
import torch

from fedlightning.channel import CenteredClipping, Krum, Median
from tests.support.references import robust as references
from tests.support.rules import aggregated, drawn


@pytest.mark.parametrize("radius", [0.5, 5.0, 6.5, 100.0])
@pytest.mark.parametrize("iterations", [1, 3, 10])
def test_it_follows_the_loop(radius, iterations):
    rows = 3 + drawn(7)
    expected = torch.from_numpy(references.centered_clipping(rows.numpy(), radius, iterations, [0.0] * 37))
    torch.testing.assert_close(aggregated(CenteredClipping(radius, iterations), rows), expected)
    start = rows.median(dim=0).values
    expected = torch.from_numpy(references.centered_clipping(rows.numpy(), radius, iterations, start.numpy()))
    torch.testing.assert_close(aggregated(CenteredClipping(radius, iterations, Median()), rows), expected)


def test_without_a_radius_it_is_the_median_distance_from_the_start():
    rows = 3 + drawn(7)
    radius = float(rows.norm(dim=1).median())
    torch.testing.assert_close(aggregated(CenteredClipping(), rows), aggregated(CenteredClipping(radius), rows))
    radius = float((rows - rows.median(dim=0).values).norm(dim=1).median())
    rule = CenteredClipping(start=Median())
    torch.testing.assert_close(aggregated(rule, rows), aggregated(CenteredClipping(radius, start=Median()), rows))


def test_a_large_radius_gives_the_mean_and_equal_updates_themselves():
    rows = drawn(5)
    torch.testing.assert_close(aggregated(CenteredClipping(1e9), rows), rows.mean(dim=0))
    torch.testing.assert_close(aggregated(CenteredClipping(start=Median()), rows[:1].expand(3, -1)), rows[0])
    assert torch.equal(aggregated(CenteredClipping(), torch.zeros(3, 4)), torch.zeros(4))


@pytest.mark.parametrize("start", [None, Median()])
def test_one_adversary_moves_it_by_little(start):
    rows = drawn(12)
    rule = CenteredClipping(0.5, 3, start)
    before = aggregated(CenteredClipping(0.5, 3), rows)
    for size in (1e3, 1e30, 1e100):
        other = torch.cat([rows[:-1], torch.full((1, 37), size, dtype=torch.float64)])
        moved = (aggregated(CenteredClipping(0.5, 3), other) - before).norm()
        assert 0.05 < moved < 2 * 3 * 0.5 / 12
        assert aggregated(rule, other).norm() < 3


def test_the_start_needs_enough_clients_too():
    assert CenteredClipping().fewest == 1
    assert CenteredClipping(start=Krum(1)).fewest == 5
    with pytest.raises(ValueError, match=r"Krum\(adversaries=1\) needs"):
        aggregated(CenteredClipping(start=Krum(1)), drawn(4))


@pytest.mark.parametrize("wrong", [{"radius": 0.0}, {"iterations": 0}])
def test_numbers_out_of_range_are_refused(wrong):
    with pytest.raises(ValueError, match=f"CenteredClipping\\({next(iter(wrong))}="):
        CenteredClipping(**wrong)


def test_the_start_is_a_rule():
    with pytest.raises(TypeError, match=r"CenteredClipping\(start=Median\): expected an Aggregation object"):
        CenteredClipping(start=Median)
