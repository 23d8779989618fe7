"""Noise at the server: its variance by statistics, and what it needs to know."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from fedlightning.channel.base import Aggregated
from fedlightning.channel.privacy import GaussianNoise
from fedlightning.channel.privacy.gaussian import multiplier_beside_counts
from tests.support.transforms import exchange

N = 20_000


def aggregated(**changes):
    found = Aggregated(exchange(), divisors={"dz": 4.0, "dc": 10.0}, bound=0.5, purpose=1)
    return replace(found, **changes)


def released(noise, **changes):
    return noise.apply({"dz": torch.ones(N), "dc": torch.ones(N)}, aggregated(**changes))


def test_the_sum_of_each_field_gets_noise_of_multiplier_times_bound():
    after = released(GaussianNoise(multiplier=3.0))
    for name, divisor in (("dz", 4.0), ("dc", 10.0)):
        noise = (after[name] - 1) * divisor
        assert float(noise.std()) == pytest.approx(3.0 * 0.5, rel=4 / math.sqrt(2 * N))
        assert abs(float(noise.mean())) < 4 * 1.5 / math.sqrt(N)
    joint = torch.stack([after["dz"], after["dc"]])
    assert abs(float(torch.corrcoef(joint)[0, 1])) < 4 / math.sqrt(N)


def test_the_noise_is_a_function_of_seed_and_place():
    one, again = (released(GaussianNoise(1.0))["dz"] for _ in range(2))
    assert torch.equal(one, again)
    assert not torch.equal(one, released(GaussianNoise(1.0), purpose=2)["dz"])
    assert not torch.equal(one, released(GaussianNoise(1.0), exchange=exchange(seed=6))["dz"])


def test_a_small_cohort_stands_for_a_large_one():
    small, own = released(GaussianNoise(2.0, noise_cohort_size=400)), released(GaussianNoise(2.0))
    assert torch.allclose(small["dz"] - 1, (own["dz"] - 1) * 4 / 400, atol=1e-6)


def test_a_poisson_cohort_stands_for_the_large_one_by_its_mean():
    given = exchange(expected=8.0, cohort=3)
    small, own = (released(noise, exchange=given) for noise in (GaussianNoise(2.0, 80), GaussianNoise(2.0)))
    assert torch.allclose(small["dz"] - 1, (own["dz"] - 1) / 10, atol=1e-6)


def test_secure_noise_differs_every_time_and_has_the_same_spread():
    one, two = (released(GaussianNoise(3.0, secure=True))["dz"] for _ in range(2))
    assert not torch.equal(one, two)
    assert float((one - 1).std()) == pytest.approx(3.0 * 0.5 / 4, rel=6 / math.sqrt(2 * N))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sums_of_few_digits_are_refused(dtype):
    with pytest.raises(ValueError, match=r"'dz' is torch\.b?float16: sums are rounded .* 32 bits"):
        GaussianNoise(1.0).apply({"dz": torch.ones(3, dtype=dtype)}, aggregated())


def test_a_count_beside_the_update_takes_its_part_of_the_noise():
    z, count_noise = 1.0, 5.0
    update = multiplier_beside_counts(z, (2 * count_noise) ** -2)
    assert update == pytest.approx((1 - 0.01) ** -0.5)
    # the two releases together: squared sensitivities in units of their noise add up to those of z
    assert (1 / update) ** 2 + (0.5 / count_noise) ** 2 == pytest.approx(1 / z**2)
    noisier = released(GaussianNoise(z), spent=(2 * count_noise) ** -2)["dz"] - 1
    assert torch.allclose(noisier, (released(GaussianNoise(z))["dz"] - 1) * update, atol=1e-6)


def test_noise_without_a_bound_is_refused():
    with pytest.raises(ValueError, match=r"GaussianNoise\(multiplier=1.0\): nothing bounds .* Put Clip\(norm=...\)"):
        released(GaussianNoise(1.0), bound=None)


def test_a_count_that_tells_too_much_is_refused():
    with pytest.raises(ValueError, match=r"multiplier=4\.0\).*count_noise above 2"):
        released(GaussianNoise(4.0), spent=(2 * 1.5) ** -2)
    with pytest.raises(ValueError, match="count_noise"):
        released(GaussianNoise(4.0), spent=math.inf)


@pytest.mark.parametrize(
    "wrong", [{"multiplier": 0.0}, {"multiplier": -1.0}, {"multiplier": 1.0, "noise_cohort_size": 0}]
)
def test_wrong_arguments_are_named(wrong):
    with pytest.raises(ValueError, match=r"GaussianNoise\("):
        GaussianNoise(**wrong)
