"""A fit whose empty cohorts use up delta is refused with figures that hold."""

from __future__ import annotations

import re

import pytest

from fedlightning.channel.privacy import RDP, EveryClient, PoissonSampling
from fedlightning.channel.privacy.empty_cohorts import check_empty_cohorts, leaves_delta
from fedlightning.core.requirements import how_to_install

pytest.importorskip("dp_accounting", reason=how_to_install("dp_accounting"))

ONCE, DELTA = {3.0: 1}, 1e-5


def check(rate, rounds, before=()):
    check_empty_cohorts(RDP(), before, PoissonSampling(80, rate), ONCE, rounds, DELTA)


def test_the_figures_of_the_message_hold():
    with pytest.raises(ValueError, match=r"Poisson\(rate=0\.17\) with 80 clients") as caught:
        check(0.17, 500)
    rounds = int(re.search(r"(\d+) rounds are possible", str(caught.value))[1])
    rate = float(re.search(r"take Poisson\(rate=(0\.\d+)\)", str(caught.value))[1])
    assert 0 < rounds < 500
    check(0.17, rounds)
    check(rate, 500)
    for wrong in ((0.17, rounds + 1), (rate - 0.001, 500)):
        with pytest.raises(ValueError, match="epsilon would be infinite"):
            check(*wrong)


def test_what_was_released_before_counts():
    check(0.2, 10)
    with pytest.raises(ValueError, match="0 rounds are possible"):
        check(0.2, 10, [(PoissonSampling(80, 0.1), {3.0: 10})])


def test_cohorts_of_all_clients_are_never_empty():
    check_empty_cohorts(RDP(), (), EveryClient(2), ONCE, 10, DELTA)
    assert leaves_delta(RDP(), [(EveryClient(2), {3.0: 10})], DELTA)
