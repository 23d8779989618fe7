"""The geometric median minimises the sum of distances."""

from __future__ import annotations

import math

import pytest
import torch
from scipy.optimize import minimize

from fedlightning.channel import GeometricMedian
from tests.support.rules import aggregated, drawn


def total(rows, point):
    return (rows - point).norm(dim=1).sum()


@pytest.mark.parametrize("count", [3, 4, 7, 30])
def test_no_point_has_a_smaller_sum_of_distances(count):
    rows = drawn(count, 3)
    found = aggregated(GeometricMedian(), rows)
    best = minimize(
        lambda point: float(total(rows, torch.from_numpy(point))),
        rows.mean(dim=0).numpy(),
        method="Nelder-Mead",
        options={"xatol": 1e-9, "fatol": 1e-13, "maxiter": 20_000, "maxfev": 20_000},
    )
    assert float(total(rows, found)) <= best.fun * (1 + 1e-12)
    torch.testing.assert_close(found, torch.from_numpy(best.x), rtol=0, atol=1e-5)


def test_forces_of_all_updates_cancel():
    rows = drawn(9)
    away = rows - aggregated(GeometricMedian(), rows)
    assert (away / away.norm(dim=1, keepdim=True)).sum(dim=0).norm() < 1e-6


def test_of_an_equilateral_triangle_it_is_the_centre():
    rows = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.5, math.sqrt(3) / 2]], dtype=torch.float64)
    torch.testing.assert_close(aggregated(GeometricMedian(), rows), rows.mean(dim=0))


def test_of_a_square_it_is_where_the_diagonals_cross():
    rows = torch.tensor([[0.0, 0.0], [9.0, 1.0], [10.0, 10.0], [2.0, 8.0]], dtype=torch.float64)
    a, b, c, d = rows
    s = torch.linalg.solve(torch.stack([c - a, b - d], dim=1), b - a)[0]
    torch.testing.assert_close(aggregated(GeometricMedian(), rows), a + s * (c - a))


def test_a_point_within_an_angle_of_more_than_120_degrees_is_the_median_itself():
    rows = torch.tensor([[-5.0, 1.0], [0.0, 0.0], [5.0, 1.0]], dtype=torch.float64)
    torch.testing.assert_close(aggregated(GeometricMedian(), rows), rows[1], rtol=0, atol=1e-5)


def test_on_a_line_it_is_the_median():
    rows = torch.tensor([[1.0], [2.0], [4.0], [8.0], [1e12]], dtype=torch.float64)
    torch.testing.assert_close(aggregated(GeometricMedian(), rows), rows[2], rtol=0, atol=1e-5)


def test_a_majority_of_equal_updates_is_the_median():
    rows = torch.cat([drawn(1).expand(4, -1), 1e6 * drawn(3, seed=1)])
    assert torch.equal(aggregated(GeometricMedian(), rows), rows[0])
    assert torch.equal(aggregated(GeometricMedian(), rows[:1]), rows[0])


def test_steps_and_smoothing_are_bounded():
    rows = drawn(9)
    one = aggregated(GeometricMedian(iterations=1), rows)
    assert (one - aggregated(GeometricMedian(), rows)).norm() > 1e-4
    nearly_mean = aggregated(GeometricMedian(smoothing=1e6), rows)
    torch.testing.assert_close(nearly_mean, rows.mean(dim=0))


@pytest.mark.parametrize("wrong", [{"smoothing": 0.0}, {"tolerance": -1.0}, {"iterations": 0}])
def test_numbers_out_of_range_are_refused(wrong):
    with pytest.raises(ValueError, match=f"GeometricMedian\\({next(iter(wrong))}="):
        GeometricMedian(**wrong)
