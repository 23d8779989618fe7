"""Calibration against the account it inverts, and against a closed form."""

from __future__ import annotations

import pytest

from fedlightning.channel.privacy import PLD, RDP, EveryClient, PoissonSampling, noise_multiplier
from tests.support.accounts import needs_dp_accounting

pytestmark = needs_dp_accounting


@pytest.mark.parametrize(("epsilon", "releases"), [(1.0, 100), (8.0, 100), (0.1, 1), (30.0, 1)])
def test_the_multiplier_is_the_smallest_of_its_digits(epsilon, releases):
    sampling = PoissonSampling(1000, 0.1)
    found = noise_multiplier(RDP(), sampling, releases, epsilon, 1e-5)
    assert RDP().epsilon(sampling, {found: releases}, 1e-5) <= epsilon
    assert RDP().epsilon(sampling, {found * 0.99: releases}, 1e-5) > epsilon
    assert float(f"{found:.3g}") == found


def test_one_release_of_all_clients_needs_the_analytic_gaussian():
    """Balle and Wang (ICML 2018): epsilon = 1 and delta = 1e-5 take 3.7306 times the sensitivity."""
    assert noise_multiplier(PLD(), EveryClient(10), 1, 1.0, 1e-5) == 3.74


def test_two_phases_are_twice_the_releases():
    sampling = PoissonSampling(1000, 0.1)
    one, two = (noise_multiplier(RDP(), sampling, releases, 2.0, 1e-5) for releases in (50, 100))
    assert one < two
    assert RDP().epsilon(sampling, {two: 50 + 50}, 1e-5) <= 2.0


def test_a_budget_that_no_noise_keeps_is_refused():
    with pytest.raises(ValueError, match=r"epsilon=1e-09, delta=1e-300: no noise keeps 5 releases"):
        noise_multiplier(RDP(), EveryClient(10), 5, 1e-9, 1e-300)
