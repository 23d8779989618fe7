"""Functions of whole vectors: simplex, entropy, balls."""

from __future__ import annotations

import pytest
import torch

from fedlightning.proximal import (
    EntropySimplex,
    L2Ball,
    Simplex,
)
from tests.support.proximal import points


def test_simplex_agrees_with_bisection():
    z = points((6,))
    low, high = z.min(1).values - 1, z.max(1).values
    for _ in range(200):
        middle = (low + high) / 2
        above = (z - middle[:, None]).clamp(min=0).sum(1) > 1
        low, high = torch.where(above, middle, low), torch.where(above, high, middle)
    torch.testing.assert_close(Simplex().project(z), (z - low[:, None]).clamp(min=0))


@pytest.mark.parametrize("psi", [Simplex(2.0), EntropySimplex(2.0)], ids=repr)
@pytest.mark.parametrize("size", [1e5, 1e8, 1e30])
def test_the_projection_of_large_numbers_keeps_their_sum(psi, size):
    """Duals grow with the rounds, so that what is projected may be large."""
    z = torch.tensor([0.25, 0.0, 0.125, -8.0]) + torch.tensor([1.0, 1.0, 1.0, 0.0]) * size
    found = psi.project(z)
    torch.testing.assert_close(found, psi.project(z.double()).float(), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(found.sum(), torch.tensor(2.0), rtol=1e-6, atol=0)


def test_clients_at_nan_or_infinity_do_not_disturb_others():
    z = points((6,))
    broken = z.clone()
    broken[1, 2], broken[2, 0] = torch.nan, torch.inf
    for psi in (Simplex(), L2Ball(0.5)):
        found = psi.project(broken)
        assert found[1:3].isnan().any(1).all()
        assert torch.equal(found[[0, *range(3, len(z))]], psi.project(z)[[0, *range(3, len(z))]])


@pytest.mark.parametrize("size", [1e-30, 1.0, 1e10, 1e25])
def test_balls_scale_what_lies_outside_and_nothing_else(size):
    z = size * torch.tensor([[3.0, -4.0], [0.0, 0.0]])
    found = L2Ball(2.0).project(z)
    torch.testing.assert_close(found[0], z[0] * min(1.0, 2.0 / (5 * size)))
    assert torch.equal(found[1], z[1])
    assert L2Ball(2.0).project(torch.zeros(3, 0)).shape == (3, 0)


def test_the_norm_of_many_numbers_of_few_digits_does_not_overflow():
    """Neither their squares nor their sum fit into 16 bits."""
    found = L2Ball(1.0).project(torch.full((1000,), 100.0, dtype=torch.float16))
    assert found.float().norm().item() == pytest.approx(1.0, rel=1e-2)


def test_entropy_mirror_map_and_its_inverse():
    psi = EntropySimplex(2.0)
    z = Simplex(2.0).project(points((6,)).abs()).clamp(min=1e-3)
    z = 2 * z / z.sum(-1, keepdim=True)
    torch.testing.assert_close(psi.from_dual(psi.to_dual(z), 0.7), z)
    step = points((6,), seed=3)
    multiplied = z * (-0.1 * step).exp()
    torch.testing.assert_close(
        psi.from_dual(psi.to_dual(z) - 0.1 * step, 0.7), 2 * multiplied / multiplied.sum(-1, keepdim=True)
    )


def test_entropy_starts_off_the_boundary():
    z = points((6,), 5)
    start = EntropySimplex(2.0).start(z)
    assert start.min() > 1e-4 / 6
    torch.testing.assert_close(start.sum(-1), torch.full((5,), 2.0, dtype=torch.float64))
    inside = torch.full((6,), 1 / 3, dtype=torch.float64)
    torch.testing.assert_close(EntropySimplex(2.0).start(inside), inside)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: L2Ball(0), r"L2Ball\(radius=0\): expected > 0"),
        (lambda: Simplex(0), r"Simplex\(total=0\): expected > 0"),
    ],
)
def test_errors_name_the_value(make, message):
    with pytest.raises(ValueError, match=message):
        make()
