"""Random entries: expectation over all subsets, and bits."""

from __future__ import annotations

from itertools import combinations
from types import SimpleNamespace

import pytest
import torch

from fedlightning.channel.compression import RandK
from fedlightning.core.errors import InvalidValueError
from tests.support.compression import exchange_of, rows_of, transformed


@pytest.mark.parametrize("kept", [1, 2, 4, 6])
def test_it_is_unbiased_with_its_variance_over_all_subsets(kept):
    """Mean and mean squared error over all subsets are those of the definition, E C(x) = x and ω ‖x‖² exactly."""
    subsets = torch.tensor(list(combinations(range(6), kept)))
    compressor, row = RandK(kept / 6), rows_of(1, 6)
    every = SimpleNamespace(subsets=lambda size, of: subsets)
    found = compressor.compress(row.expand(len(subsets), -1), every).values
    torch.testing.assert_close(found.mean(0), row[0], rtol=1e-14, atol=1e-14)
    error = (found - row).square().sum(1).mean()
    torch.testing.assert_close(error, compressor.variance(6) * row.square().sum(), rtol=1e-13, atol=1e-13)
    assert compressor.variance(6) == pytest.approx(6 / kept - 1)


def test_as_many_entries_as_asked_for_are_kept_each_scaled():
    values = rows_of(30, 40)
    found = transformed(RandK(0.25), values)[0]
    chosen = found != 0
    assert chosen.sum(1).tolist() == [10] * 30
    torch.testing.assert_close(found[chosen], 4 * values[chosen])
    assert len({tuple(row) for row in chosen.tolist()}) > 25  # every client draws its own


@pytest.mark.parametrize(
    ("fraction", "length", "bits"),
    [
        (0.02, 100, 2 * 32 + 2 * 7),  # two indices are shorter than a seed
        (0.3, 100, 30 * 32 + 64),
        (0.5, 40, 20 * 32 + 40),  # a bitmap is shorter than a seed
        (1.0, 100, 100 * 32),
    ],
)
def test_bits_by_hand(fraction, length, bits):
    assert transformed(RandK(fraction), rows_of(2, length, dtype=torch.float32))[1].tolist() == [bits, bits]


def test_rows_may_become_longer():
    assert RandK(0.1).bound(2.0, ["z"], exchange_of([0])) is None


def test_a_fraction_is_a_share():
    with pytest.raises(InvalidValueError, match=r"RandK\(fraction=2\): expected > 0 and <= 1"):
        RandK(2)
