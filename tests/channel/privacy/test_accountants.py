"""Accounts against dp-accounting's own calls, closed forms, integrals and published figures."""

from __future__ import annotations

import math
import sys

import pytest
from scipy import integrate, optimize, stats

from fedlightning.channel.privacy import PLD, RDP, EveryClient, FixedSizeSampling, PoissonSampling
from tests.support.accounts import needs_dp_accounting

try:
    import dp_accounting
except ModuleNotFoundError:
    dp_accounting = None


def gaussian_delta(epsilon, sigma):
    """Delta of one release with sensitivity 1 (Balle and Wang, ICML 2018, Theorem 8)."""
    cdf = stats.norm.cdf
    return cdf(0.5 / sigma - epsilon * sigma) - math.exp(epsilon) * cdf(-0.5 / sigma - epsilon * sigma)


def sampled_delta(epsilon, sigma, q):
    """Delta of one release of a Poisson sample, by integrals over the densities; the worse of adding and removing."""

    def excess(p, r):
        return integrate.quad(lambda x: max(p(x) - math.exp(epsilon) * r(x), 0.0), -12 * sigma, 12 * sigma, limit=400)[
            0
        ]

    def without(x):
        return stats.norm.pdf(x, scale=sigma)

    def mixed(x):
        return (1 - q) * without(x) + q * stats.norm.pdf(x, loc=1, scale=sigma)

    return max(excess(mixed, without), excess(without, mixed))


def root(function, low=1e-6, high=60.0):
    return optimize.brentq(function, low, high)


@needs_dp_accounting
def test_rdp_of_poisson_cohorts_over_two_phases_is_the_librarys():
    own = dp_accounting.rdp.RdpAccountant()
    for multiplier, rounds in ((1.1, 40), (2.0, 40)):
        own.compose(dp_accounting.PoissonSampledDpEvent(0.1, dp_accounting.GaussianDpEvent(multiplier)), rounds)
    found = RDP().epsilon(PoissonSampling(1000, 0.1), {1.1: 40, 2.0: 40}, 1e-5)
    assert found == pytest.approx(own.get_epsilon(1e-5), rel=1e-12)


@needs_dp_accounting
def test_rdp_of_fixed_size_cohorts_is_the_librarys_for_a_sensitivity_of_two():
    own = dp_accounting.rdp.RdpAccountant(neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_ONE)
    own.compose(dp_accounting.SampledWithoutReplacementDpEvent(1000, 50, dp_accounting.GaussianDpEvent(4.0 / 2)), 30)
    found = RDP().epsilon(FixedSizeSampling(1000, 50), {4.0: 30}, 1e-5)
    assert found == pytest.approx(own.get_epsilon(1e-5), rel=1e-12)


@needs_dp_accounting
def test_pld_of_poisson_cohorts_is_the_librarys():
    own = dp_accounting.pld.PLDAccountant()
    own.compose(dp_accounting.PoissonSampledDpEvent(0.1, dp_accounting.GaussianDpEvent(1.5)), 20)
    found = PLD().epsilon(PoissonSampling(1000, 0.1), {1.5: 20}, 1e-5)
    assert found == pytest.approx(own.get_epsilon(1e-5), rel=1e-9)


@needs_dp_accounting
def test_orders_of_ones_own():
    few = RDP(orders=[2.0, 8.0])
    own = dp_accounting.rdp.RdpAccountant([2.0, 8.0])
    own.compose(dp_accounting.GaussianDpEvent(2.0), 3)
    assert few.epsilon(EveryClient(10), {2.0: 3}, 1e-5) == pytest.approx(own.get_epsilon(1e-5), rel=1e-12)
    assert RDP().epsilon(EveryClient(10), {2.0: 3}, 1e-5) < few.epsilon(EveryClient(10), {2.0: 3}, 1e-5)


@needs_dp_accounting
def test_all_clients_against_the_closed_form():
    rounds, z = 16, 12.0
    exact = root(lambda epsilon: gaussian_delta(epsilon, z / math.sqrt(rounds)) - 1e-5)
    assert PLD().epsilon(EveryClient(10), {z: rounds}, 1e-5) == pytest.approx(exact, rel=1e-3)
    assert exact < RDP().epsilon(EveryClient(10), {z: rounds}, 1e-5) < 1.15 * exact


@needs_dp_accounting
def test_one_poisson_release_against_an_integral():
    exact = root(lambda epsilon: sampled_delta(epsilon, 1.0, 0.2) - 1e-3, high=5.0)
    assert PLD().epsilon(PoissonSampling(10_000, 0.2), {1.0: 1}, 1e-3) == pytest.approx(exact, rel=1e-3)


@needs_dp_accounting
def test_one_fixed_size_release_has_the_divergence_of_theorem_27():
    """Wang, Balle and Kasiviswanathan (AISTATS 2019) at order 2, for a sum that one client moves by 2 C."""
    q, z = 0.1, 3.0
    exponent = 2 * (2 / z) ** 2 / 2  # order times squared sensitivity over twice the variance
    second = math.log(1 + q**2 * min(4 * math.expm1(exponent), 2 * math.exp(exponent)))
    epsilon = second + math.log1p(-1 / 2) - math.log(1e-5 * 2)  # the library's conversion, at this order alone
    assert RDP(orders=[2]).epsilon(FixedSizeSampling(1000, 100), {z: 1}, 1e-5) == pytest.approx(epsilon, rel=1e-9)


@needs_dp_accounting
def test_the_published_figure_of_dp_sgd():
    """Abadi et al. (CCS 2016, Section 5.1 and Figure 2): q = 0.01, sigma = 4, 10,000 steps, delta = 1e-5: 1.26."""
    of_one = dp_accounting.rdp.RdpAccountant(list(range(2, 64)))
    of_one.compose(dp_accounting.PoissonSampledDpEvent(0.01, dp_accounting.GaussianDpEvent(4.0)), 10_000)
    theirs = min(r + math.log(1e5) / (a - 1) for a, r in zip(of_one.orders, of_one.rdp, strict=True))
    assert theirs == pytest.approx(1.26, abs=0.005)
    sampling = PoissonSampling(10_000, 0.01)
    rdp = RDP().epsilon(sampling, {4.0: 10_000}, 1e-5)
    assert PLD(1e-3).epsilon(sampling, {4.0: 10_000}, 1e-5) < rdp < 1.26  # newer conversions are tighter


@needs_dp_accounting
def test_the_two_accountants_of_the_library_read_replacement_differently():
    """Why only RDP gets events of replacement: its noise is in units of what one client moves, that of PLD is not."""
    relation = dp_accounting.NeighboringRelation.REPLACE_ONE
    rdp = dp_accounting.rdp.RdpAccountant(neighboring_relation=relation).compose(dp_accounting.GaussianDpEvent(2.0))
    pld = dp_accounting.pld.PLDAccountant(relation).compose(dp_accounting.GaussianDpEvent(2.0))
    exact = [root(lambda epsilon, s=sigma: gaussian_delta(epsilon, s) - 1e-5) for sigma in (2.0, 1.0)]
    assert exact[0] < rdp.get_epsilon(1e-5) < 1.15 * exact[0]
    assert pld.get_epsilon(1e-5) == pytest.approx(exact[1], rel=1e-3)


@needs_dp_accounting
def test_nothing_released_is_nothing_spent():
    assert RDP().epsilon(PoissonSampling(3, 0.01), {}, 1e-5) == 0.0
    assert PLD().epsilon(PoissonSampling(3, 0.01), {1.0: 0}, 1e-5) == 0.0


@needs_dp_accounting
@pytest.mark.parametrize("accountant", [RDP(), PLD()])
def test_parts_with_cohorts_of_their_own_are_composed(accountant):
    import dp_accounting

    own = dp_accounting.pld.PLDAccountant() if isinstance(accountant, PLD) else dp_accounting.rdp.RdpAccountant()
    for rate, count in ((0.9, 4), (0.05, 20)):
        event = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(2.0))
        own.compose(event, count)
    own.compose(dp_accounting.GaussianDpEvent(3.0), 2)
    parts = [
        (PoissonSampling(10_000, 0.9), {2.0: 4}),
        (PoissonSampling(10_000, 0.05), {2.0: 20}),
        (EveryClient(10_000), {3.0: 2}),
    ]
    assert accountant.epsilon_of(parts, 1e-5) == pytest.approx(own.get_epsilon(1e-5), rel=1e-9)


@needs_dp_accounting
def test_parts_that_hide_different_changes_are_not_composed():
    parts = [(FixedSizeSampling(100, 10), {2.0: 4}), (EveryClient(100), {2.0: 4})]
    with pytest.raises(ValueError, match=r"FixedSizeSampling\(.*EveryClient\(.*one epsilon cannot stand for both"):
        RDP().epsilon_of(parts, 1e-5)


@needs_dp_accounting
def test_empty_cohorts_are_charged_to_delta():
    sampling = PoissonSampling(80, 0.2)  # empty with a probability of 2e-8
    whole = RDP().curve([(sampling, {3.0: 10})])
    charge = 10 * 0.8**79 * (1 + math.exp(whole(1e-5 / 2)))
    assert 1e-7 < charge < 5e-6
    assert RDP().epsilon(sampling, {3.0: 10}, 1e-5) == whole(1e-5 - charge) > whole(1e-5)


@needs_dp_accounting
def test_cohorts_that_are_often_empty_are_refused():
    with pytest.raises(
        ValueError,
        match=r"Poisson\(rate=0\.1\) with 10 clients: a cohort is empty with a probability of 0\.39.*higher rate",
    ):
        RDP().epsilon(PoissonSampling(10, 0.1), {5.0: 1}, 1e-5)


@needs_dp_accounting
def test_noise_that_hides_nothing_is_worth_nothing():
    assert RDP().epsilon(PoissonSampling(1000, 0.1), {0.05: 1000}, 1e-5) == math.inf


def test_pld_knows_no_cohorts_of_a_fixed_size():
    with pytest.raises(ValueError, match=r"fixed size \(10 of 100 clients\). Use RDP\(\), or Poisson\(rate=0.1\)"):
        PLD().epsilon(FixedSizeSampling(100, 10), {1.0: 1}, 1e-5)


@needs_dp_accounting
def test_the_librarys_lines_about_orders_are_hidden(caplog):
    RDP().epsilon(PoissonSampling(1000, 0.123), {0.987: 1}, 1e-5)
    assert not caplog.records


def test_without_the_library_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(ModuleNotFoundError, match=r"fedlightning\[privacy\]"):
        PLD().epsilon(EveryClient(10), {1.0: 1}, 1e-5)


def test_wrong_arguments_are_named():
    with pytest.raises(ValueError, match=r"RDP\(orders=\(1,\)\)"):
        RDP(orders=[1])
    with pytest.raises(ValueError, match=r"PLD\(interval=0.0\)"):
        PLD(interval=0.0)
