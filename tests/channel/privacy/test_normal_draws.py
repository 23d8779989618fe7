"""Normal numbers: those of the operating system against the normal distribution, those of a seed against themselves."""

from __future__ import annotations

import math

import pytest
import torch
from scipy import stats

from fedlightning.channel.privacy import normal_draws
from fedlightning.channel.privacy.normal_draws import normal_like, secure_normal


@pytest.fixture
def seeded_bytes(monkeypatch):
    """Make the operating system's bytes those of a seed, so that a statistical test gives the same result for ever."""
    generator = torch.Generator().manual_seed(7)
    monkeypatch.setattr(
        normal_draws.os,
        "urandom",
        lambda n: bytes(torch.randint(0, 256, (n,), generator=generator, dtype=torch.uint8).tolist()),
    )


def test_secure_numbers_are_normal(seeded_bytes):
    draws = secure_normal(20_000)
    assert draws.dtype == torch.float64
    assert stats.kstest(draws.numpy(), "norm").pvalue > 0.01
    assert abs(draws.mean()) < 4 / math.sqrt(20_000)
    assert abs(draws.var() - 1) < 4 * math.sqrt(2 / 20_000)
    assert abs((draws[1:] * draws[:-1]).mean()) < 4 / math.sqrt(20_000)
    assert draws.abs().max() > 3.5


def test_secure_numbers_differ_every_time():
    assert not torch.equal(secure_normal(10), secure_normal(10))


def test_many_secure_numbers_are_drawn_in_blocks(monkeypatch):
    monkeypatch.setattr(normal_draws, "AT_ONCE", 3)
    draws = secure_normal(8)
    assert draws.shape == (8,)
    assert draws.unique().numel() == 8
    assert secure_normal(0).shape == (0,)


def test_seeded_numbers_repeat_and_fields_differ():
    like = {"a": torch.zeros(3, dtype=torch.bfloat16), "b": torch.zeros(3, dtype=torch.float64)}
    one, two = (normal_like(like, torch.Generator().manual_seed(1)) for _ in range(2))
    assert one["a"].dtype == torch.float32  # 8 bits of mantissa would make noise coarse
    assert one["b"].dtype == torch.float64
    assert all(torch.equal(one[name], two[name]) for name in like)
    assert not torch.equal(one["a"].double(), one["b"])


def test_secure_numbers_take_shape_and_dtype():
    draws = normal_like({"a": torch.zeros(2, 3)}, None)["a"]
    assert draws.shape == (2, 3)
    assert draws.dtype == torch.float32
