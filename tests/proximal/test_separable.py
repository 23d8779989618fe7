"""Functions of single elements."""

from __future__ import annotations

import torch

from fedlightning.proximal import L1, Nuclear
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
