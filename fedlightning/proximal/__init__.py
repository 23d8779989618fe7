"""Regularizers and constraints with closed-form proximal operators; see :mod:`fedlightning.proximal.base`."""

from fedlightning.proximal.base import Regularizer
from fedlightning.proximal.composite import Composite, Regularizers, compose
from fedlightning.proximal.matrices import GroupLasso, Nuclear, SpectralBall
from fedlightning.proximal.separable import L1, Box, ElasticNet, LInfBall, SquaredL2
from fedlightning.proximal.sums import Sum
from fedlightning.proximal.vectors import EntropySimplex, L2Ball, Simplex

__all__ = [
    "L1",
    "Box",
    "Composite",
    "ElasticNet",
    "EntropySimplex",
    "GroupLasso",
    "L2Ball",
    "LInfBall",
    "Nuclear",
    "Regularizer",
    "Regularizers",
    "Simplex",
    "SpectralBall",
    "SquaredL2",
    "Sum",
    "compose",
]
