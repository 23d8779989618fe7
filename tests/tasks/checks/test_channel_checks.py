"""Cohorts too small for a rule, and adversaries that cannot be simulated, are refused before the first round."""

from __future__ import annotations

import pytest
from torch import nn

from fedlightning.algorithms import FedAvg
from fedlightning.channel import Channel, Clip, FixedPoint, Krum, Median, PerPhase, RandK, SignFlip
from fedlightning.data import RemoteClients
from fedlightning.participation import FirstResponders, Full, Poisson, Uniform
from fedlightning.tasks.checks.channel_checks import require_suitable_cohorts
from tests.support.small import Line, regression_data, trainer

KRUM = Channel(aggregate=Krum(1))


def test_a_fit_is_refused_before_its_first_round():
    data = regression_data(participation=Uniform(3))
    task = Line(FedAvg(0.05), channel=KRUM)
    with pytest.raises(ValueError, match=r"Krum\(adversaries=1\) needs the updates of 5 clients or more"):
        trainer(max_steps=1).fit(task, data)
    assert not task.run.exists


@pytest.mark.parametrize(
    ("participation", "text"),
    [
        (Uniform(4), r"a round may have 4 with Uniform\(size=4"),
        (FirstResponders(10), r"a round may have 1 with FirstResponders\(size=10"),
    ],
)
def test_the_smallest_cohort_has_to_be_large_enough(participation, text):
    with pytest.raises(ValueError, match=text + r".*Choose a participation in which as many answer"):
        require_suitable_cohorts(KRUM, 1, RemoteClients(10, participation))


def test_large_cohorts_pass():
    for participation in (Full(), Uniform(5), FirstResponders(10, at_least=5)):
        require_suitable_cohorts(KRUM, 1, RemoteClients(10, participation))
    require_suitable_cohorts(Channel(aggregate=Median()), 1, RemoteClients(10, Uniform(1)))


def test_cohorts_may_be_empty_where_the_rule_is_a_mean():
    require_suitable_cohorts(Channel(aggregate=FixedPoint(16, 1.0, 10)), 1, RemoteClients(10, Poisson(0.5)))
    with pytest.raises(ValueError, match="a round may have 0"):
        require_suitable_cohorts(Channel(aggregate=Median()), 1, RemoteClients(10, Poisson(0.5)))


def test_each_phase_is_looked_at():
    require_suitable_cohorts(PerPhase([None, KRUM]), 1, RemoteClients(3))
    with pytest.raises(ValueError, match="needs the updates of 5 clients"):
        require_suitable_cohorts(PerPhase([None, KRUM]), 2, RemoteClients(3))


def test_adversaries_are_simulated_clients():
    attacked = Channel(adversary=SignFlip(share=0.5))
    with pytest.raises(ValueError, match=r"Channel\(adversary=SignFlip\(.*machines of their own. Leave adversary out"):
        require_suitable_cohorts(attacked, 1, RemoteClients(10))
    require_suitable_cohorts(attacked, 1, regression_data())


def test_adversaries_are_clients_of_the_federation():
    with pytest.raises(ValueError, match=r"SignFlip\(clients=...\): the federation has \d+ clients"):
        require_suitable_cohorts(Channel(adversary=SignFlip(clients=[1000])), 1, regression_data())


class Normed(Line):
    def __init__(self, **federation):
        super().__init__(FedAvg(0.05), **federation)
        self.norm = nn.BatchNorm1d(6)

    def objective(self, batch):
        x, y = batch
        return super().objective((self.norm(0.1 * x), y))  # variances fall from 1


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"channel": Channel([RandK(0.1)])}, True),
        ({"channel": Channel([RandK(0.1)]), "buffers": "local"}, False),
        ({"channel": Channel([Clip(1.0)])}, False),
        ({}, False),
    ],
)
def test_variances_that_a_channel_brings_below_zero_are_told(options, told, recwarn):
    trainer(max_steps=5, limit_val_batches=0).fit(Normed(**options), regression_data(participation=Uniform(1)))
    assert any("running variance of 'norm' is below zero" in str(each.message) for each in recwarn) == told
