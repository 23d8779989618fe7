"""The count sketch against its dense matrix, and what a projection for learning must keep."""

from __future__ import annotations

import pytest
import torch

from fedlightning.local import CountSketch
from tests.support.references.personal import sketch

LIKE = torch.empty(0, dtype=torch.float64)


def dense(projection, d):
    return projection.project(torch.eye(d, dtype=LIKE.dtype)).T


@pytest.mark.parametrize(("sizes", "rows"), [([7], [3]), ([5, 3], [2, 2]), ([6, 0], [6, 0]), ([0, 4], [0, 1])])
def test_it_is_the_matrix_it_stands_for(sizes, rows):
    P = dense(CountSketch(sizes, rows, 5, LIKE), sum(sizes))
    torch.testing.assert_close(P, torch.from_numpy(sketch(sizes, sum(rows), 5)))
    y = torch.randn(2, sum(rows), dtype=LIKE.dtype)
    torch.testing.assert_close(CountSketch(sizes, rows, 5, LIKE).lift(y), y @ P)


def test_rows_are_orthonormal_and_columns_have_one_entry():
    P = dense(CountSketch([50], [8], 0, LIKE), 50)
    torch.testing.assert_close(P @ P.T, torch.eye(8, dtype=LIKE.dtype))
    assert ((P != 0).sum(0) == 1).all()
    assert sorted((P != 0).sum(1).tolist()) == [6] * 6 + [7] * 2


def test_it_keeps_lengths_as_well_as_a_gaussian_matrix():
    d, k, draws = 60, 12, 4000
    x = torch.linspace(-1, 2, d, dtype=LIKE.dtype) ** 3
    lengths = torch.stack([CountSketch([d], [k], seed, LIKE).project(x).square().sum() for seed in range(draws)])
    mean = k / d * x.square().sum()
    assert abs(lengths.mean() / mean - 1) < 4 * (2 / k / draws) ** 0.5
    assert lengths.var() / mean**2 < 2 / k


def test_blocks_do_not_mix_and_seeds_differ():
    P = dense(CountSketch([5, 3], [2, 2], 1, LIKE), 8)
    assert P[:2, 5:].abs().max() == P[2:, :5].abs().max() == 0
    assert not torch.equal(P, dense(CountSketch([5, 3], [2, 2], 2, LIKE), 8))


@pytest.mark.parametrize("rows", [[0, 2], [2, 4]])
def test_too_few_or_many_rows_are_named(rows):
    with pytest.raises(ValueError, match=r"CountSketch\(sizes=\[5, 3\], rows="):
        CountSketch([5, 3], rows, 0, LIKE)
