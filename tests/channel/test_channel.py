"""Channels say what happens in which phase, and refuse what is none."""

from __future__ import annotations

import pytest

from fedlightning.channel import (
    AdaptiveClip,
    ByField,
    Channel,
    Clip,
    DistributedGaussianNoise,
    FixedPoint,
    PerPhase,
    SignFlip,
)
from fedlightning.channel.chain import Chain
from fedlightning.core.serialisation import from_config, to_config
from tests.support.transforms import Halved, Jitter, Middle, Shift


def test_one_channel_is_that_of_all_phases():
    channel = Channel(client=[Clip(1.0)])
    assert channel.of(0) is channel.of(1) is channel
    channel.require_phases("CDMA", 2)
    assert channel.transform.transforms == (Clip(1.0),)


def test_phases_have_their_own():
    channel = Channel(client=[Clip(1.0)])
    channels = PerPhase([None, channel])
    assert (channels.of(0), channels.of(1)) == (None, channel)
    channels.require_phases("CDMA", 2)
    with pytest.raises(ValueError, match=r"PerPhase has 2 channels, but a round of FedAvg has 1 phase\. "):
        channels.require_phases("FedAvg", 1)


def test_what_a_channel_presupposes():
    assert not Channel(client=[Clip(1.0)]).counts_clients_alike
    assert all(each.counts_clients_alike for each in (Channel(aggregate=Middle()), Channel(server=[Shift()])))
    robust, attacked = Channel(aggregate=Middle()), Channel(adversary=SignFlip(share=0.5))
    masked, shared = Channel(aggregate=FixedPoint(32, 1.0, 4)), Channel(client=[DistributedGaussianNoise(1.0)])
    kinds = (robust, attacked, masked, shared, Channel())
    assert [each.needs_rows for each in kinds] == [True, True, True, False, False]
    assert [each.averages for each in kinds] == [False, True, True, True, True]
    assert [each.acts_on_cohort for each in kinds] == [True, True, True, True, False]
    assert [each.counts_clients_alike for each in kinds] == [True, True, False, True, False]


def test_whether_clients_are_remembered():
    assert not Channel(client=[Clip(1.0), Jitter()], server=[Shift()]).remembers
    assert not Channel(client=[ByField({"z": Clip(1.0)})]).remembers
    assert Channel(client=[Clip(1.0), Halved()]).remembers
    assert Channel(client=[ByField({"z": Chain([Halved()])})]).remembers


@pytest.mark.parametrize(
    "wrong",
    [
        {"client": Clip(1.0)},
        {"client": [Clip]},
        {"server": [Clip(1.0)]},
        {"aggregate": Clip(1.0)},
        {"download": "Clip"},
        {"adversary": 0.2},
    ],
)
def test_what_is_none_is_refused_by_name(wrong):
    with pytest.raises(TypeError, match=rf"Channel\({next(iter(wrong))}=.*expected"):
        Channel(**wrong)


@pytest.mark.parametrize(
    "useless",
    [
        DistributedGaussianNoise(1.0),
        AdaptiveClip(0.5, 1.0),
        ByField({"z": AdaptiveClip(0.5, 1.0)}),
        ByField({"z": DistributedGaussianNoise(1.0)}),
    ],
)
def test_what_would_do_nothing_to_a_broadcast_is_refused(useless):
    with pytest.raises(ValueError, match=r"Channel\(download=\[.*would do nothing to a broadcast"):
        Channel(download=[Clip(1.0), useless])


@pytest.mark.parametrize("wrong", [[], Clip(1.0), [Clip(1.0)], "x"])
def test_phases_without_channels_are_refused(wrong):
    with pytest.raises(TypeError, match=r"PerPhase\(channels="):
        PerPhase(wrong)


def test_channels_are_written_into_files_and_read_back():
    channels = PerPhase([Channel(client=[Clip(1.0)], download=[Clip(2.0)]), None])
    assert from_config(to_config(channels)) == channels
