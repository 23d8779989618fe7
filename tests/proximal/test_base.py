"""What a regularizer has from its base: projections, the Euclidean mirror map, sums."""

from __future__ import annotations

import torch

from fedlightning.proximal import L1, Box
from fedlightning.proximal.base import Regularizer
from fedlightning.proximal.sums import Sum


class HalfLine(Regularizer):
    """psi(u) = u on u >= 0: its proximal operator is max(z - t, 0)."""

    def value(self, z):
        return torch.where((z >= 0).all(), z.sum(), torch.inf)

    def prox(self, z, t):
        return (z - t).clamp(min=0)

    def subgradient(self, z):
        return torch.ones_like(z)


def test_a_step_of_nothing_is_the_projection():
    z = torch.tensor([-2.0, 0.5])
    assert HalfLine().project(z).tolist() == [0.0, 0.5]
    assert torch.equal(HalfLine().start(z), HalfLine().project(z))


def test_without_a_mirror_map_of_its_own_the_dual_point_is_the_point():
    z = torch.tensor([-2.0, 0.5])
    assert HalfLine().to_dual(z) is z
    assert torch.equal(HalfLine().from_dual(z, 0.2), HalfLine().prox(z, 0.2))


def test_adding_two_makes_their_sum():
    total = L1(0.3) + Box(-0.1, 0.7)
    assert isinstance(total, Sum)
    assert float(total.value(torch.tensor([0.5, 0.0]))) == float(torch.tensor(0.3) * 0.5)
