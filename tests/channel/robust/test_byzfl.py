"""Robust rules beside those of ByzFL, where it is installed: ``pip install byzfl``."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch

from fedlightning.channel import (
    CenteredClipping,
    GeometricMedian,
    Krum,
    Mean,
    Median,
    MultiKrum,
    NearestNeighbourMixing,
    TrimmedMean,
)
from tests.support.rules import aggregated, drawn

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    byzfl = pytest.importorskip("byzfl", reason="ByzFL is not installed: pip install byzfl")


class AllRows(Mean):
    """Gives all rows, one after the other."""

    def aggregate(self, rows):
        return torch.cat(list(rows.blocks()), dim=1).flatten()


PAIRS = {
    "median": (Median(), lambda: byzfl.Median()),
    "trimmed mean": (TrimmedMean(3 / 11), lambda: byzfl.TrMean(3)),
    "Krum": (Krum(3), lambda: byzfl.Krum(4)),  # counts S - f - 1 neighbours, the paper S - f - 2
    "Multi-Krum": (MultiKrum(3, 7), lambda: byzfl.MultiKrum(4)),
    "geometric median": (GeometricMedian(), lambda: byzfl.GeometricMedian(nu=1e-8, T=2000)),
    "centred clipping": (CenteredClipping(2.0, 4), lambda: byzfl.CenteredClipping(L=4, tau=2.0)),
    "mixing": (NearestNeighbourMixing(AllRows(), 3), lambda: byzfl.NNM(3)),
}


@pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS)
@pytest.mark.parametrize("attack", [None, 30.0])
@pytest.mark.parametrize("seed", range(5))
def test_rules_agree_with_byzfl(pair, attack, seed):
    rule, make = pair
    rows = drawn(seed=seed)
    if attack is not None:
        rows[:3] += attack * (1 + torch.arange(3)[:, None])
    expected = np.asarray(make()(rows.numpy())).flatten()
    np.testing.assert_allclose(aggregated(rule, rows).numpy(), expected, rtol=1e-6, atol=1e-6)
