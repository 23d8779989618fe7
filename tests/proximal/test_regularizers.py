"""Every regulariser: optimality of its proximal operator, Moreau's identity, projections, brute force, scipy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from fedlightning.core.serialisation import from_config, to_config
from fedlightning.proximal import (
    L1,
    Box,
    ElasticNet,
    EntropySimplex,
    GroupLasso,
    L2Ball,
    LInfBall,
    Nuclear,
    Simplex,
    SpectralBall,
    SquaredL2,
    Sum,
)

VECTORS = [
    L1(0.3),
    L1(0.3, radius=0.5),
    ElasticNet(0.3, 0.7),
    SquaredL2(0.7),
    Box(-0.2, 0.6),
    Box(low=0.0),
    Box(high=0.1),
    LInfBall(0.4),
    L2Ball(0.8),
    Simplex(),
    Simplex(2.5),
    L1(0.3) + Box(-0.1, 0.7),
    L1(0.3) + L2Ball(0.5),
    L1(0.3, radius=0.5) + SquaredL2(0.7),
    L2Ball(0.8) + SquaredL2(0.7),
    (L1(0.3) + SquaredL2(0.7)) + LInfBall(0.4),
    L1(0.3) + (SquaredL2(0.7) + Box(-0.1, 0.4)),
    (L2Ball(0.8) + SquaredL2(0.7)) + L1(0.3),
    (Box(-0.3, 0.4) + LInfBall(0.35)) + (SquaredL2(0.2) + SquaredL2(0.5)),
]
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


def points(shape, count=20, seed=0):
    return torch.randn(count, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


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


def test_simplex_agrees_with_bisection():
    z = points((6,))
    low, high = z.min(1).values - 1, z.max(1).values
    for _ in range(200):
        middle = (low + high) / 2
        above = (z - middle[:, None]).clamp(min=0).sum(1) > 1
        low, high = torch.where(above, middle, low), torch.where(above, high, middle)
    torch.testing.assert_close(Simplex().project(z), (z - low[:, None]).clamp(min=0))


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


def test_step_sizes_by_element():
    z, t = points((6,)), torch.linspace(0, 1, 6, dtype=torch.float64)
    for psi in VECTORS:
        if psi.separable:
            columns = [psi.prox(z[:, i : i + 1], float(t[i])) for i in range(6)]
            torch.testing.assert_close(psi.prox(z, t), torch.cat(columns, 1))


@pytest.mark.parametrize("psi", [Nuclear(0.3, radius=0.5), SpectralBall(0.6)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_computed_in_float32(psi, dtype):
    z = points((4, 3), 3).to(dtype)
    found = psi.prox(z, 0.4)
    assert found.dtype == dtype
    torch.testing.assert_close(found, psi.prox(z.double(), 0.4).to(dtype), rtol=0.05, atol=0.01)


def test_entropy_starts_off_the_boundary():
    z = points((6,), 5)
    start = EntropySimplex(2.0).start(z)
    assert start.min() > 1e-4 / 6
    torch.testing.assert_close(start.sum(-1), torch.full((5,), 2.0, dtype=torch.float64))
    inside = torch.full((6,), 1 / 3, dtype=torch.float64)
    torch.testing.assert_close(EntropySimplex(2.0).start(inside), inside)


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
        (lambda: Nuclear(-0.1), r"Nuclear\(weight=-0.1\): expected > 0"),
        (lambda: L2Ball(0), r"L2Ball\(radius=0\): expected > 0"),
        (lambda: LInfBall(-2), r"LInfBall\(radius=-2\): expected > 0"),
        (lambda: SpectralBall(0), r"SpectralBall\(radius=0\): expected > 0"),
        (lambda: Simplex(0), r"Simplex\(total=0\): expected > 0"),
        (lambda: ElasticNet(0.1, 0), r"ElasticNet\(l2=0\): expected > 0"),
        (lambda: SquaredL2(-1), r"SquaredL2\(weight=-1\): expected > 0"),
        (lambda: Box(), r"Box\(low=None, high=None\): give at least one bound"),
        (lambda: Box(1, 0), r"Box\(low=1, high=0\): expected low <= high"),
        (lambda: GroupLasso(0.1, "cells"), r"GroupLasso\(groups='cells'\): expected 'rows' or 'columns'"),
        (lambda: Nuclear(0.1) + L1(0.1), r"L1 \+ Nuclear: this sum has no closed-form"),
        (lambda: Sum(Simplex(), Box(0, 1)), r"Simplex \+ Box: this sum has no closed-form"),
        (lambda: L1(0.1) + SquaredL2(0.1) + Simplex(), r"L1 \+ Simplex: this sum has no closed-form"),
        (lambda: Box(0, 1) + Box(2, 3), r"Box\(low=0, high=1\) \+ Box\(low=2, high=3\): no number satisfies both"),
        (lambda: Box(1, 2) + L1(0.1, radius=0.5), r"no number satisfies both constraints. Let their bounds meet"),
        (lambda: Box(float("nan"), 1), r"Box\(low=nan\): expected a finite number"),
        (lambda: L1(float("inf")), r"L1\(weight=inf\): expected a finite number"),
    ],
)
def test_errors_name_the_value(make, message):
    with pytest.raises(ValueError, match=message):
        make()
