"""Robust rules and rows to try them on."""

from __future__ import annotations

import torch

from fedlightning.channel import (
    CenteredClipping,
    GeometricMedian,
    Krum,
    Median,
    MultiKrum,
    NearestNeighbourMixing,
    TrimmedMean,
)
from fedlightning.channel.robust.rows import ClientRows

COUNT, ADVERSARIES = 11, 3

RULES = {
    "median": Median(),
    "trimmed mean": TrimmedMean(0.3),
    "Krum": Krum(ADVERSARIES),
    "Multi-Krum": MultiKrum(ADVERSARIES),
    "geometric median": GeometricMedian(),
    "centred clipping": CenteredClipping(radius=2.0),
    "centred clipping, adaptive": CenteredClipping(start=Median(), iterations=5),
    "mixing, trimmed mean": NearestNeighbourMixing(TrimmedMean(0.3), ADVERSARIES),
    "mixing, geometric median": NearestNeighbourMixing(GeometricMedian(), ADVERSARIES),
    "mixing, Krum": NearestNeighbourMixing(Krum(ADVERSARIES), ADVERSARIES),
}
"""Rules that withstand three adversaries among eleven clients."""


def drawn(count=COUNT, length=37, seed=0, dtype=torch.float64):
    return torch.randn(count, length, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).to(dtype)


def aggregated(rule, rows, **options):
    """The aggregate of rows ``[S, n]``, whose clients are numbered from 0."""
    return rule.aggregate(ClientRows([rows], range(len(rows)), **options))
