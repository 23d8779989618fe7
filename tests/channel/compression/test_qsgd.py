"""Random rounding to levels: expectation, variance, and a code that can be read."""

from __future__ import annotations

from math import sqrt

import pytest
import torch

from fedlightning.channel.compression import QSGD
from fedlightning.core.errors import InvalidTypeError, InvalidValueError
from tests.support.compression import EvenDraws, rows_of, transformed

DRAWS = 4000


@pytest.mark.parametrize("bucket_size", [None, 4, 7])
@pytest.mark.parametrize("levels", [1, 4, 100])
def test_it_is_unbiased_with_at_most_its_variance(levels, bucket_size):
    """Means over evenly spaced draws are integrals, to 1 / (2 * 4000) of a level."""
    compressor, row = QSGD(levels, bucket_size), rows_of(1, 12, seed=2)
    found = compressor.compress(row.expand(DRAWS, -1), EvenDraws(DRAWS)).values
    level = float(row.norm()) / levels
    torch.testing.assert_close(found.mean(0), row[0], rtol=0.0, atol=level / DRAWS)
    error = float((found - row).square().sum(1).mean() / row.square().sum())
    assert error <= compressor.variance(12)
    size = 12 if bucket_size is None else bucket_size
    assert compressor.variance(12) == pytest.approx(min(size / levels**2, sqrt(size) / levels))


def test_entries_are_multiples_of_the_norm_between_their_neighbours():
    values = rows_of(5, 30)
    found = transformed(QSGD(8), values)[0]
    levels = found / (values.norm(dim=1, keepdim=True) / 8)
    torch.testing.assert_close(levels, levels.round(), rtol=0.0, atol=1e-12)
    exact = values / (values.norm(dim=1, keepdim=True) / 8)
    assert bool(((levels - exact).abs() < 1).all())
    assert bool((found * values >= 0).all())


def test_a_single_entry_is_exact():
    values = torch.tensor([[0.0, 0.1, 0.0], [0.0, 0.0, -1e-30]])
    torch.testing.assert_close(transformed(QSGD(3), values)[0], values, rtol=1e-6, atol=0.0)


def test_buckets_have_norms_of_their_own():
    values = torch.tensor([[3.0, 4.0, 0.0, 100.0, 6.0]])
    found = transformed(QSGD(1, bucket_size=2), values)[0][0]
    assert set(found[:2].tolist()) <= {0.0, 5.0}
    assert found[2:].tolist() == [0.0, 100.0, 6.0]


def fixed_code(levels, top):
    width = (2 * top).bit_length()
    return "".join(f"{level + top:0{width}b}" for level in levels)


def gamma_code(levels):
    parts = []
    for level in levels:
        digits = f"{abs(level) + 1:b}"
        parts.append("0" * (len(digits) - 1) + digits + ("" if level == 0 else "01"[level < 0]))
    return "".join(parts)


def read_gamma_code(text):
    levels, place = [], 0
    while place < len(text):
        zeros = text.index("1", place) - place
        end = place + 2 * zeros + 1
        size = int(text[place:end], 2) - 1
        place = end + (size > 0)
        levels.append(-size if size and text[end] == "1" else size)
    return levels


@pytest.mark.parametrize(("levels", "bucket_size"), [(1, None), (4, None), (4, 16), (63, None)])
def test_bits_are_those_of_a_code_that_can_be_read(levels, bucket_size):
    values = torch.cat([rows_of(4, 50, dtype=torch.float32), torch.ones(1, 50), torch.zeros(1, 50)])
    found, bits, _ = transformed(QSGD(levels, bucket_size), values)
    size = bucket_size or 50
    for row, sent, length in zip(values, found, bits.tolist(), strict=True):
        norms = torch.stack([part.norm() for part in row.split(size)])
        units = (norms / levels).repeat_interleave(size)[:50]
        whole = torch.where(units > 0, sent / units, 0.0).round().int().tolist()
        codes = fixed_code(whole, levels), gamma_code(whole)
        assert read_gamma_code(codes[1]) == whole
        assert length == 32 * len(norms) + 1 + min(map(len, codes))


def test_bits_by_hand():
    zeros = torch.zeros(1, 100)
    assert transformed(QSGD(1), zeros)[1].tolist() == [32 + 1 + 100]  # gamma: one bit a zero
    ones = torch.ones(1, 100)  # every level is 10 of 100: 11 takes 7 bits and a sign; 201 values take 8
    assert transformed(QSGD(100), ones)[1].tolist() == [32 + 1 + 800]


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"levels": 0}, InvalidValueError, r"QSGD\(levels=0\): expected >= 1"),
        ({"levels": 2.5}, InvalidTypeError, r"QSGD\(levels=2.5\): expected a whole number"),
        ({"levels": 2, "bucket_size": 0}, InvalidValueError, r"QSGD\(bucket_size=0\): expected >= 1, or null"),
    ],
)
def test_what_makes_no_sense_is_refused(options, error, message):
    with pytest.raises(error, match=message):
        QSGD(**options)
