"""Noise of the size of the update, drawn by each client for itself."""

from __future__ import annotations

import pytest
import torch

from fedlightning.channel import GaussianAttack
from tests.support.exchanges import exchange
from tests.support.rules import drawn


def sent(rows, ids=(0, 1, 2), purpose=0, seed=5, **options):
    return GaussianAttack(clients=[1, 2], **options).act([rows], list(ids), exchange(seed=seed), purpose)[0]


def test_noise_is_normal_in_units_of_the_own_update():
    rows = drawn(3, 20_000) * torch.tensor([[1.0], [2.0], [30.0]], dtype=torch.float64)
    noise = sent(rows, scale=5.0)[1:]
    size = rows[1:].square().mean(dim=1).sqrt()
    torch.testing.assert_close(noise.std(dim=1) / size, torch.full((2,), 5.0, dtype=torch.float64), rtol=0.02, atol=0)
    assert (noise.mean(dim=1).abs() < 0.1 * size).all()
    assert torch.corrcoef(torch.cat([noise, rows[1:]])).fill_diagonal_(0).abs().max() < 0.03


def test_draws_depend_on_exchange_client_and_field():
    noise = sent(drawn(3))[1]
    assert torch.equal(sent(drawn(3)[[2, 1]], ids=(2, 1))[1], noise)
    assert not torch.equal(sent(drawn(3), purpose=1)[1], noise)
    assert not torch.equal(sent(drawn(3), seed=6)[1], noise)


def test_updates_of_zero_stay():
    assert torch.equal(sent(torch.zeros(3, 4)), torch.zeros(3, 4))


def test_sixteen_bit_updates_get_noise_of_their_dtype():
    rows = drawn(3, 1000, dtype=torch.bfloat16)
    assert sent(rows).dtype == torch.bfloat16
    assert 8 < sent(rows)[1].float().std() < 12


def test_the_scale_is_positive():
    with pytest.raises(ValueError, match=r"GaussianAttack\(scale=-1\)"):
        GaussianAttack(share=0.1, scale=-1)
