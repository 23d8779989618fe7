"""Sums: closed forms, order, and sums that have none."""

from __future__ import annotations

import pytest
import torch

from fedlightning.proximal import (
    L1,
    Box,
    Nuclear,
    Simplex,
    SquaredL2,
    Sum,
)


@pytest.mark.parametrize("t", [0.3, 2.0])
def test_with_a_square_a_threshold_is_shrunk_by_one_plus_its_weight(t):
    """prox of t * (w |u| + l/2 u^2): soft threshold at t * w, then division by 1 + t * l."""
    z = torch.linspace(-3, 3, 25, dtype=torch.float64)
    shrunk = z.sign() * (z.abs() - t * 0.4).clamp(min=0) / (1 + t * 0.7)
    torch.testing.assert_close((L1(0.4) + SquaredL2(0.7)).prox(z, t), shrunk)


def test_the_order_of_the_terms_does_not_matter():
    terms = L1(0.4), SquaredL2(0.7), Box(-0.2, 0.5)
    z = torch.linspace(-3, 3, 25, dtype=torch.float64)
    first = (terms[0] + terms[1]) + terms[2]
    second = terms[2] + (terms[1] + terms[0])
    assert torch.equal(first.prox(z, 0.3), second.prox(z, 0.3))
    assert first.value(z / 20) == second.value(z / 20)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Nuclear(0.1) + L1(0.1), r"L1 \+ Nuclear: this sum has no closed-form"),
        (lambda: Sum(Simplex(), Box(0, 1)), r"Simplex \+ Box: this sum has no closed-form"),
        (lambda: L1(0.1) + SquaredL2(0.1) + Simplex(), r"L1 \+ Simplex: this sum has no closed-form"),
        (lambda: Box(0, 1) + Box(2, 3), r"Box\(low=0, high=1\) \+ Box\(low=2, high=3\): no number satisfies both"),
        (lambda: Box(1, 2) + L1(0.1, radius=0.5), r"no number satisfies both constraints. Let their bounds meet"),
    ],
)
def test_errors_name_the_value(make, message):
    with pytest.raises(ValueError, match=message):
        make()
