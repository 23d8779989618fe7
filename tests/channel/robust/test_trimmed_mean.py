"""The mean of every coordinate without its extremes."""

from __future__ import annotations

import pytest
import torch
from scipy.stats import trim_mean

from fedlightning.channel import TrimmedMean
from tests.support.references import robust as references
from tests.support.rules import aggregated, drawn


@pytest.mark.parametrize(("share", "count", "trimmed"), [(0.1, 10, 1), (0.2, 14, 2), (0.49, 9, 4), (0.29, 100, 29)])
def test_the_share_is_left_out_at_each_end(share, count, trimmed):
    rows = drawn(count)
    expected = torch.from_numpy(references.trimmed_mean(rows.numpy(), trimmed))
    torch.testing.assert_close(aggregated(TrimmedMean(share), rows), expected, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(torch.from_numpy(trim_mean(rows.numpy(), trimmed / count + 1e-9, axis=0)), expected)


def test_huge_values_leave_no_trace_in_the_sum():
    rows = torch.tensor([[1.0], [2.0], [3.0], [3e38], [-3e38]])
    assert aggregated(TrimmedMean(0.2), rows).tolist() == [2.0]


@pytest.mark.parametrize(("share", "fewest"), [(0.1, 10), (0.2, 5), (0.34, 3), (0.45, 3), (0.07, 15)])
def test_cohorts_of_whom_nobody_would_be_left_out_are_refused(share, fewest):
    rule = TrimmedMean(share)
    assert rule.fewest == fewest
    aggregated(rule, drawn(fewest))
    with pytest.raises(ValueError, match=rf"TrimmedMean\(share={share}\) needs the updates of {fewest} clients"):
        aggregated(rule, drawn(fewest - 1))


@pytest.mark.parametrize("share", [0.0, 0.5, -0.1, 1.0, float("nan")])
def test_shares_are_below_half(share):
    with pytest.raises(ValueError, match="TrimmedMean\\(share"):
        TrimmedMean(share)


def test_coordinates_stay_among_the_honest_ones_up_to_the_share():
    honest = drawn(8)
    for value in (1e30, -1e30):
        found = aggregated(TrimmedMean(0.2), torch.cat([honest, torch.full((2, 37), value, dtype=torch.float64)]))
        assert (found >= honest.amin(dim=0)).all()
        assert (found <= honest.amax(dim=0)).all()
    beyond = torch.cat([honest[:7], torch.full((3, 37), 1e30, dtype=torch.float64)])
    assert (aggregated(TrimmedMean(0.2), beyond) > 1e28).all()
