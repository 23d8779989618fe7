"""Regularizers of vectors, and points to evaluate them at."""

from __future__ import annotations

import torch

from fedlightning.proximal import L1, Box, ElasticNet, L2Ball, LInfBall, Simplex, SquaredL2

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


def points(shape, count=20, seed=0):
    return torch.randn(count, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
