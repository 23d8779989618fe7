"""Percentiles over clients, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedlightning.callbacks import EvaluateClients
from fedlightning.callbacks.percentiles import PERCENTILES, percentiles


@pytest.mark.parametrize("count", [1, 2, 7, 1000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_percentiles_are_those_of_numpy(count, dtype):
    values = torch.randn(count, generator=torch.Generator().manual_seed(0)).to(dtype)
    which = [0, 2.5, 10, 50, 90, 100]
    expected = np.percentile(values.double().numpy(), which)
    found = percentiles(values, which)
    assert list(found) == ["_p0", "_p2.5", "_p10", "_p50", "_p90", "_p100"]
    assert list(found.values()) == pytest.approx(list(expected), rel=1e-12)


def test_a_result_that_is_not_finite_is_seen():
    found = percentiles(torch.tensor([1.0, torch.nan, 3.0]), PERCENTILES)
    assert list(found) == ["_p10", "_p50", "_p90"]
    assert all(value != value for value in found.values())
    found = percentiles(torch.tensor([1.0, 2.0, torch.inf]), [20, 50, 60, 90, 100])
    assert list(found.values()) == pytest.approx([1.4, 2.0, torch.inf, torch.inf, torch.inf])
    assert list(percentiles(torch.tensor([-torch.inf, 2.0]), [10, 60]).values()) == [-torch.inf, -torch.inf]


def test_of_nobody_there_are_none():
    assert percentiles(torch.empty(0), PERCENTILES) == percentiles(torch.ones(2), []) == {}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([10, 101], r"EvaluateClients\(percentiles=101\): expected >= 0 and <= 100"),
        ([-1], "expected >= 0 and <= 100"),
        (["half"], "expected a number"),
        ([50, 50.0], r"percentiles=\[50, 50.0\]\): expected each percentile once"),
    ],
)
def test_percentiles_out_of_range_are_refused(given, message):
    with pytest.raises((ValueError, TypeError), match=message):
        EvaluateClients(percentiles=given)
