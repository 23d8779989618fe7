"""Channels and algorithms that noise does not cover are refused, each with its reason."""

from __future__ import annotations

import pytest

from fedlightning import algorithms as fl
from fedlightning.channel import Channel, Clip, FixedPoint, Mean, PerPhase, SignFlip
from fedlightning.channel.by_field import ByField
from fedlightning.channel.chain import Chain
from fedlightning.channel.privacy import AdaptiveClip, DistributedGaussianNoise, GaussianNoise, noises_of
from tests.support.transforms import Middle, Shift

NOISE = GaussianNoise(1.0)
SHARES = DistributedGaussianNoise(1.0)
AVG = fl.FedAvg(lr=0.1)
MASKED = FixedPoint(32, largest=10.0, clients=4)


def test_the_noise_of_each_phase():
    channel = Channel(client=[Clip(1.0)], server=[NOISE])
    assert noises_of(channel, AVG) == (NOISE,)
    assert noises_of(channel, fl.CDMA_ADA(lr=0.1)) == (NOISE, NOISE)
    two = PerPhase([channel, Channel(client=[Clip(0.5), SHARES])])
    assert noises_of(two, fl.CDMA_ADA(lr=0.1)) == (NOISE, SHARES)


def test_the_noise_beside_aggregates_that_are_means():
    assert noises_of(Channel(client=[Clip(1.0), SHARES], aggregate=MASKED), AVG) == (SHARES,)
    assert noises_of(Channel(client=[Clip(1.0)], aggregate=Mean(), server=[NOISE]), AVG) == (NOISE,)


def test_without_noise_there_is_none():
    assert noises_of(None, AVG) == ()
    assert noises_of(Channel(client=[Clip(1.0)]), AVG) == ()
    assert noises_of(Channel(aggregate=Middle()), AVG) == ()
    assert noises_of(Channel(), fl.FedSkip(lr=0.1)) == ()
    assert noises_of(PerPhase([None, None]), fl.CDMA_ADA(lr=0.1)) == ()


@pytest.mark.parametrize(
    ("channel", "message"),
    [
        (Channel(aggregate=Middle(), server=[NOISE]), "may move it by more than a mean"),
        (Channel(aggregate=MASKED, server=[NOISE]), r"clients round what .*DistributedGaussianNoise at the end"),
        (Channel(adversary=SignFlip(share=0.5), server=[NOISE]), "attackers send what no clipping has bounded"),
        (Channel(client=[SHARES], server=[NOISE]), "in one channel; an account knows one"),
        (Channel(server=[NOISE, NOISE]), "in one channel; an account knows one"),
        (Channel(server=[Shift()]), "Shift: no account of privacy knows this noise"),
        (
            Channel(client=[AdaptiveClip(0.5, 2.0)], server=[GaussianNoise(1.0, noise_cohort_size=1000)]),
            r"AdaptiveClip\(noise_cohort_size=None\) beside GaussianNoise\(noise_cohort_size=1000\)",
        ),
        (
            Channel(client=[AdaptiveClip(0.5, 1.0), SHARES]),
            "AdaptiveClip beside Distributed.* learns how",
        ),
        (Channel(client=[SHARES, Clip(1.0)]), r"Clip comes after DistributedGaussianNoise.*Put the noise last"),
        (Channel(client=[ByField({"z": SHARES})]), "noise inside another transform"),
        (Channel(client=[Chain([Clip(1.0), SHARES])]), "noise inside another transform"),
    ],
)
def test_channels_that_noise_does_not_cover(channel, message):
    with pytest.raises(ValueError, match=message):
        noises_of(channel, AVG)


def test_a_phase_without_noise():
    for channels in (PerPhase([Channel(server=[NOISE]), None]), PerPhase([Channel(server=[NOISE]), Channel()])):
        with pytest.raises(ValueError, match=r"CDMA_ADA: the updates of phase 2 of 2 pass without noise"):
            noises_of(channels, fl.CDMA_ADA(lr=0.1))


@pytest.mark.parametrize("channel", [Channel(server=[NOISE]), Channel(client=[Clip(1.0), SHARES])])
@pytest.mark.parametrize(
    ("algorithm", "message"),
    [
        (fl.FedSkip(lr=0.1), "FedSkip keeps something of single clients"),
        (fl.Scaffnew(lr=0.1), "Scaffnew keeps something of single clients"),
        (fl.FedExP(lr=0.1), "FedExP: the server steps by squared norms"),
        (fl.FIAELT(), r"FIAELT\(beta=None\).*Give beta a number"),
    ],
)
def test_algorithms_that_noise_does_not_cover(channel, algorithm, message):
    with pytest.raises(ValueError, match=message):
        noises_of(channel, algorithm)


def test_an_algorithm_of_means_is_covered():
    assert noises_of(Channel(server=[NOISE]), fl.FIAELT(beta=10.0)) == (NOISE,)
