"""Functions of single elements."""

from __future__ import annotations

import pytest
import torch

from fedlightning.proximal import (
    L1,
    Box,
    ElasticNet,
    LInfBall,
    Nuclear,
    SquaredL2,
)
from tests.support.proximal import VECTORS, points


def test_step_sizes_by_element():
    z, t = points((6,)), torch.linspace(0, 1, 6, dtype=torch.float64)
    for psi in VECTORS:
        if psi.separable:
            columns = [psi.prox(z[:, i : i + 1], float(t[i])) for i in range(6)]
            torch.testing.assert_close(psi.prox(z, t), torch.cat(columns, 1))


def test_thresholds_give_exact_zeros_and_low_rank():
    z = points((8, 6), 1)[0]
    assert (L1(0.5).prox(z, 1.0) == 0).sum() == (z.abs() <= 0.5).sum()
    singular = torch.linalg.svdvals(z)
    middle = float(singular[2] + singular[3]) / 2
    assert torch.linalg.matrix_rank(Nuclear(middle).prox(z, 1.0), atol=1e-9) == 3


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: L1(0), r"L1\(weight=0\): expected > 0"),
        (lambda: L1(0.1, radius=-1), r"L1\(radius=-1\): expected > 0"),
        (lambda: LInfBall(-2), r"LInfBall\(radius=-2\): expected > 0"),
        (lambda: ElasticNet(0.1, 0), r"ElasticNet\(l2=0\): expected > 0"),
        (lambda: SquaredL2(-1), r"SquaredL2\(weight=-1\): expected > 0"),
        (lambda: Box(), r"Box\(low=None, high=None\): give at least one bound"),
        (lambda: Box(1, 0), r"Box\(low=1, high=0\): expected low <= high"),
        (lambda: Box(float("nan"), 1), r"Box\(low=nan\): expected a finite number"),
        (lambda: L1(float("inf")), r"L1\(weight=inf\): expected a finite number"),
    ],
)
def test_errors_name_the_value(make, message):
    with pytest.raises(ValueError, match=message):
        make()
