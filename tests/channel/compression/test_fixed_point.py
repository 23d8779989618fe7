"""Sums of whole numbers: their error, their masks, and what is refused."""

from __future__ import annotations

import re

import pytest
import torch

from fedlightning.channel.compression import FixedPoint
from fedlightning.core.errors import InvalidTypeError, InvalidValueError


class Blocks:
    """Rows in blocks of three columns."""

    def __init__(self, values):
        self.values = values
        self.count = len(values)

    def blocks(self):
        return iter(self.values.split(3, dim=1))


def uniform(clients, length, largest, seed=0, dtype=torch.float64):
    draw = torch.Generator().manual_seed(seed)
    return largest * (2 * torch.rand(clients, length, generator=draw, dtype=dtype) - 1)


@pytest.mark.parametrize("clients", [1, 7, 100])
@pytest.mark.parametrize("bits", [8, 16, 32, 53])
def test_the_mean_is_off_by_half_a_step_at_most(bits, clients):
    rule, rows = FixedPoint(bits, largest=2.0, clients=clients), uniform(clients, 1000, 2.0)
    off = (rule.aggregate(Blocks(rows)) - rows.mean(0)).abs().max()
    assert off <= rule.step / 2 + 1e-15
    assert rule.step == 2.0 / ((2 ** (bits - 1) - 1) // clients)
    if clients == 1:
        assert off > 0.45 * rule.step


def test_bits_set_the_error_by_hand():
    """8 bits for 10 clients: 127 // 10 = 12 levels, so 0.3 of 1 is 3.6 of 12 and becomes 4."""
    rows = torch.full((10, 1), 0.3, dtype=torch.float64)
    torch.testing.assert_close(FixedPoint(8, 1.0, 10).aggregate(Blocks(rows)), torch.tensor([4 / 12]).double())


@pytest.mark.parametrize("entry", [torch.nan, torch.inf])
def test_an_entry_that_is_no_number_is_refused_with_what_it_may_come_from(entry):
    rows = torch.tensor([[0.5, entry]], dtype=torch.float64)
    with pytest.raises(ValueError, match=r"entry of (nan|inf).*buffers='local'"):
        FixedPoint(16, 1.0, 1).aggregate(Blocks(rows))


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_the_largest_sum_does_not_wrap_around(sign):
    for bits in (2, 3, 8, 20, 53):
        for clients in range(1, min(2 ** (bits - 1) - 1, 40) + 1):
            rows = torch.full((clients, 4), sign * 0.7, dtype=torch.float64)
            mean = FixedPoint(bits, 0.7, clients).aggregate(Blocks(rows))
            torch.testing.assert_close(mean, rows[0], rtol=1e-12, atol=0.0)


def test_masks_that_cancel_change_nothing_and_hide_everything():
    rule, rows = FixedPoint(16, 1.0, 5), uniform(5, 2000, 1.0)
    draw = torch.Generator().manual_seed(1)
    pairs = torch.randint(2**16, (5, 5, 2000), generator=draw)
    masked = (rule.encode(rows) + pairs.sum(1) - pairs.sum(0)).remainder(2**16)
    assert torch.equal(rule.decode(masked.sum(0).remainder(2**16)) / 5, rule.aggregate(Blocks(rows)))
    spread = torch.bincount(masked[0] // 2**12, minlength=16).double()
    assert ((spread - 125) ** 2 / 125).sum() < 37.7  # 99.9 % of chi-squared with 15 degrees: as good as uniform


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_mean_has_the_dtype_of_the_rows(dtype):
    rows = uniform(4, 10, 0.9).to(dtype)
    mean = FixedPoint(32, 1.0, 4).aggregate(Blocks(rows))
    assert mean.dtype == dtype
    torch.testing.assert_close(mean.double(), rows.double().mean(0), rtol=0.0, atol=torch.finfo(dtype).eps)


def test_bits_on_the_wire_are_those_of_every_entry():
    assert FixedPoint(24, 1.0, 10).wire_bits(1000) == 24_000


@pytest.mark.parametrize("bad", [1.01, -5.0])
def test_an_entry_that_would_wrap_around_is_refused(bad):
    rows = uniform(3, 7, 1.0)
    rows[1, 4] = bad
    with pytest.raises(InvalidValueError, match=r"FixedPoint\(largest=1\): .*Put Clip\(norm=1\) before it"):
        FixedPoint(16, 1.0, 3).aggregate(Blocks(rows))


def test_there_is_room_for_noise_within_the_range_and_above_the_grid():
    """2^15 - 1 = 4 * 8191 + 3, so a step is 10 / 8191."""
    rule = FixedPoint(16, largest=10.0, clients=4)
    assert rule.lacks_room(bound=2.0, noise=1.0) is None
    assert rule.lacks_room(bound=2.0, noise=2.1 * rule.step) is None
    assert re.search(r"largest=10\).*entries up to 10\.8\. Set largest to 10\.9", rule.lacks_room(2.0, 1.1))
    coarse = rule.lacks_room(2.0, 0.002)
    bits = int(re.search(r"less than 2 steps of the grid.*Set bits to (\d+)", coarse)[1])
    assert FixedPoint(bits, 10.0, 4).lacks_room(2.0, 0.002) is None
    assert FixedPoint(bits - 1, 10.0, 4).lacks_room(2.0, 0.002) is not None


@pytest.mark.parametrize(("steps", "most"), [(2.0, 1e-15), (0.3, None)])
def test_two_steps_of_noise_hide_all_but_the_sum(steps, most):
    """Of two clients: the sum of their rounded Gaussians, for the same sum of their updates."""

    def chances(update):
        edges = torch.arange(-60.5, 61.0, dtype=torch.float64)
        return torch.special.ndtr((edges - update) / steps).diff()

    def of_sum(one, other):
        return torch.nn.functional.conv1d(chances(one)[None, None], chances(other).flip(0)[None, None], padding=120)

    off = max(float((of_sum(0.1 + d, 0.2 - d) - of_sum(0.1, 0.2)).abs().max()) for d in (0.1, 0.25, 0.4))
    assert off > 0.01 if most is None else off < most


def test_more_clients_than_fit_are_refused():
    with pytest.raises(InvalidValueError, match=r"FixedPoint\(clients=3\): 4 clients answered"):
        FixedPoint(16, 1.0, 3).aggregate(Blocks(uniform(4, 7, 1.0)))


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ((1, 1.0, 1), InvalidValueError, r"FixedPoint\(bits=1\): expected >= 2 and <= 53, because"),
        ((64, 1.0, 1), InvalidValueError, r"FixedPoint\(bits=64\)"),
        ((8.0, 1.0, 1), InvalidTypeError, r"FixedPoint\(bits=8.0\): expected a whole number"),
        ((8, 0.0, 1), InvalidValueError, r"FixedPoint\(largest=0.0\): expected > 0"),
        ((8, 1.0, 0), InvalidValueError, r"FixedPoint\(clients=0\): expected >= 1"),
        ((8, 1.0, 128), InvalidValueError, r"FixedPoint\(bits=8, clients=128\): expected bits >= 9"),
    ],
)
def test_what_makes_no_sense_is_refused(options, error, message):
    with pytest.raises(error, match=message):
        FixedPoint(*options)
    assert FixedPoint(9, 1.0, 128).top == 1
