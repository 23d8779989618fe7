"""Every regulariser: optimality of its proximal operator, Moreau's identity, projections, brute force, scipy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from fedlightning.core.serialisation import from_config, to_config
from fedlightning.proximal import (
    L1,
    GroupLasso,
    L2Ball,
    LInfBall,
    Nuclear,
    SpectralBall,
    SquaredL2,
)
from tests.support.proximal import VECTORS, points

MATRICES = [
    Nuclear(0.3),
    Nuclear(0.3, radius=0.5),
    SpectralBall(0.6),
    GroupLasso(0.3),
    GroupLasso(0.3, "columns"),
    Nuclear(0.3) + SpectralBall(0.5),
    Nuclear(0.3) + SquaredL2(0.7),
    GroupLasso(0.3) + L1(0.1),
    GroupLasso(0.3) + L2Ball(0.9),
    Nuclear(0.3) + L2Ball(0.7),
    (SpectralBall(0.6) + SquaredL2(0.7)) + Nuclear(0.3, radius=0.5),
    (L2Ball(0.9) + L1(0.1)) + GroupLasso(0.3),
]
BOTH = [(psi, (6,)) for psi in VECTORS] + [(psi, (4, 3)) for psi in MATRICES]
ids = [f"{i}-{type(psi).__name__}" for i, (psi, _) in enumerate(BOTH)]
each = pytest.mark.parametrize(("psi", "shape"), BOTH, ids=ids)


@each
@pytest.mark.parametrize("t", [0.4, 1.7])
def test_prox_minimises(psi, shape, t):
    """No nearby point and no other point's prox is better, and the objective grows as strong convexity wants it to."""
    for z, other in zip(points(shape), points(shape, seed=1), strict=True):
        u = psi.prox(z, t)

        def objective(v, z=z):
            return float(t * psi.value(v) + (v - z).square().sum() / 2)

        best = objective(u)
        assert np.isfinite(best)
        for v in (psi.prox(other, t), psi.project(other), psi.project(u + 0.01 * other), psi.project(z)):
            assert objective(v) >= best + float((v - u).square().sum()) / 2 - 1e-9


@each
def test_prox_is_firmly_nonexpansive(psi, shape):
    z, other = points(shape), points(shape, seed=1)
    u, v = psi.prox(z, 0.8), psi.prox(other, 0.8)
    inner = ((u - v) * (z - other)).flatten(1).sum(1)
    assert (inner >= (u - v).flatten(1).square().sum(1) - 1e-12).all()


@each
def test_projection_is_idempotent_and_feasible(psi, shape):
    z = points(shape)
    p = psi.project(z)
    assert torch.isfinite(psi.value(p))
    torch.testing.assert_close(psi.project(p), p, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(psi.prox(z, 0.0), p)


@each
def test_subgradient_supports_psi_from_below(psi, shape):
    for z, other in zip(psi.project(points(shape)), psi.project(points(shape, seed=1)), strict=True):
        assert psi.value(other) >= psi.value(z) + (psi.subgradient(z) * (other - z)).sum() - 1e-9


@each
def test_leading_dimensions_are_separate_points(psi, shape):
    z = points(shape).view(4, 5, *shape)
    alone = torch.stack([psi.prox(point, 0.6) for point in z.flatten(0, 1)]).view_as(z)
    torch.testing.assert_close(psi.prox(z, 0.6), alone)
    total = sum(psi.value(point) for point in psi.project(z).flatten(0, 1))
    torch.testing.assert_close(psi.value(psi.project(z)), total)


@each
def test_inputs_are_not_mutated(psi, shape):
    z = points(shape)
    before = z.clone()
    psi.prox(z, 0.5), psi.project(z), psi.value(z), psi.subgradient(z), psi.to_dual(z), psi.from_dual(z, 0.5)
    assert torch.equal(z, before)


@each
def test_goes_through_a_configuration(psi, shape):
    z = points(shape)
    assert torch.equal(from_config(to_config(psi)).prox(z, 0.5), psi.prox(z, 0.5))


@pytest.mark.parametrize(
    ("norm", "dual_ball", "shape"),
    [
        (L1(0.3), LInfBall(0.3), (6,)),
        (Nuclear(0.3), SpectralBall(0.3), (4, 3)),
        (GroupLasso(0.3), None, (4, 3)),
    ],
    ids=["L1", "Nuclear", "GroupLasso"],
)
def test_moreau(norm, dual_ball, shape):
    """z = prox of a norm + projection onto the ball of its dual norm."""
    z = points(shape)
    projected = dual_ball.project(z) if dual_ball else L2Ball(0.3).project(z)  # rows: one l2 ball each
    torch.testing.assert_close(norm.prox(z, 1.0) + projected, z)


@each
def test_prox_agrees_with_a_general_solver(psi, shape):
    """scipy's trust region solver on the same problem, started far away; constraints through projection."""
    z = points(shape, 1)[0]

    def objective(v):
        v = torch.from_numpy(v).view(shape)
        inside = psi.project(v)
        outside = 1e3 * (v - inside).abs().sum()
        return float(psi.value(inside) * 0.9 + (inside - z).square().sum() / 2 + outside)

    u = psi.prox(z, 0.9)
    start = psi.project(points(shape, 1, seed=2)[0]).flatten().numpy()
    found = minimize(objective, start, method="Powell", options={"maxfev": 1500})
    assert objective(u.flatten().numpy()) <= found.fun + 1e-7
