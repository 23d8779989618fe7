"""Distances keep their digits beside rows of any size."""

from __future__ import annotations

import pytest
import torch

from fedlightning.channel.robust.distances import distances_from, squared_distances
from fedlightning.channel.robust.rows import ClientRows
from tests.support.rules import drawn


@pytest.mark.parametrize("columns", [None, 5])
def test_distances_are_those_of_cdist(columns):
    rows = drawn(6)
    found = squared_distances(ClientRows([rows], range(6), columns=columns))
    torch.testing.assert_close(found, torch.cdist(rows, rows).square(), rtol=1e-12, atol=1e-12)
    assert torch.equal(found, found.T)


def test_neither_a_far_origin_nor_a_minority_costs_digits():
    honest = 1e8 + 1e-3 * drawn(6)
    rows = torch.cat([honest, torch.full((2, 37), 1e20, dtype=torch.float64)])
    found = squared_distances(ClientRows([rows], range(8)))[:6, :6]
    exact = torch.cdist(honest, honest, compute_mode="donot_use_mm_for_euclid_dist").square()
    torch.testing.assert_close(found, exact, rtol=1e-9, atol=0)


def test_distances_from_a_weighted_mean():
    rows, weights = drawn(6), drawn(1, 6, seed=1)[0]
    found = distances_from(weights, rows @ rows.T)
    torch.testing.assert_close(found, (rows - weights @ rows).norm(dim=1))
    about = drawn(1, seed=2)[0]
    weights = weights / weights.sum()
    torch.testing.assert_close(
        distances_from(weights, (rows - about) @ (rows - about).T), (rows - weights @ rows).norm(dim=1)
    )
