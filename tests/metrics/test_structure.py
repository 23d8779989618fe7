import doctest

import pytest
import torch

from fedlightning.metrics import structure
from fedlightning.metrics.structure import numerical_rank, share_of_nonzeros


def test_doctest():
    assert doctest.testmod(structure).failed == 0


@pytest.mark.parametrize("rank", [0, 1, 3, 5])
def test_rank_of_products(rank):
    draw = torch.Generator().manual_seed(rank)
    left, right = torch.randn(8, rank, generator=draw), torch.randn(rank, 5, generator=draw)
    assert numerical_rank(left @ right) == rank


def test_rank_in_half_precision():
    assert numerical_rank(torch.ones(4, 3, dtype=torch.bfloat16)) == 1


def test_the_tolerance_is_that_of_the_paper():
    near = torch.tensor([0.9e-5, -0.9e-5, 1.1e-5, -1.1e-5])
    assert share_of_nonzeros(near) == 0.5
    assert numerical_rank(near.diag()) == 2
    assert share_of_nonzeros(near, tolerance=1e-4) == 0
