"""Noise that clients share: the sum carries what a server's would, and missing shares are noticed."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from fedlightning.algorithms import FedAvg
from fedlightning.channel import Channel, Clip, FixedPoint
from fedlightning.channel.chain import Chain
from fedlightning.channel.privacy import AdaptiveClip, DistributedGaussianNoise
from fedlightning.channel.robust.rows import ClientRows
from tests.support.federations import quadratic, rounds_of
from tests.support.nodes import NODES, NUMBERS, assert_same, both
from tests.support.transforms import exchange, sent

N = 20_000


def shared(noise, *clients, **changes):
    given = exchange(*clients, **{"bound": 0.5, **changes})
    after, memory = noise.apply(sent(dz=torch.ones(len(clients), N), dc=torch.ones(len(clients), 2)), {}, given, 1)
    assert memory == {}
    return after


def test_the_shares_of_a_cohort_add_up():
    after = shared(DistributedGaussianNoise(multiplier=3.0), 0, 1, 4, 7)
    each = after.values["dz"] - 1
    assert float(each.sum(0).std()) == pytest.approx(3.0 * 0.5, rel=4 / math.sqrt(2 * N))
    assert torch.allclose(each.std(1), torch.full((4,), 1.5 / 2), rtol=0.03)
    assert (torch.corrcoef(each) - torch.eye(4)).abs().max() < 5 / math.sqrt(N)


def test_fewer_answers_are_enough_where_each_share_is_larger():
    after = shared(DistributedGaussianNoise(3.0, answering=0.5), 0, 1)
    assert float((after.values["dz"] - 1).sum(0).std()) == pytest.approx(1.5, rel=4 / math.sqrt(2 * N))


def test_a_masked_sum_carries_the_noise():
    """On the coarsest grid that is taken, of two steps a share: rounding adds 1 / 48 of the variance."""
    clients = (0, 1, 4, 7)
    rule = FixedPoint(16, largest=(2**15 // 4 - 1) * 0.75 / 2, clients=4)
    assert rule.step == 0.75 / 2
    rows = shared(DistributedGaussianNoise(3.0), *clients, aggregate=rule).values["dz"]
    total = 4 * rule.aggregate(ClientRows([rows], clients)) - 4
    assert float(total.std()) == pytest.approx(1.5 * math.sqrt(1 + 1 / 48), rel=4 / math.sqrt(2 * N))
    assert abs(float(total.mean())) < 4 * 1.5 / math.sqrt(N)


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (FixedPoint(32, 6.0, 4), r"FixedPoint\(largest=6\): .*Set largest to 6\.57 or more"),
        (FixedPoint(7, 10.0, 4), r"FixedPoint\(bits=7\): a client's noise .*Set bits to 8 or more"),
    ],
)
def test_a_masked_sum_without_room_for_it_is_refused(rule, message):
    with pytest.raises(ValueError, match=message):
        shared(DistributedGaussianNoise(3.0), 0, aggregate=rule)


def test_chunks_change_nothing():
    together = shared(DistributedGaussianNoise(1.0), 3, 5)
    for place, client in enumerate((3, 5)):
        alone = shared(DistributedGaussianNoise(1.0), client)
        for name, value in together.values.items():
            assert torch.equal(value[place], alone.values[name][0])


def test_what_came_in_is_not_written_into():
    given = sent(dz=torch.ones(1, 3))
    DistributedGaussianNoise(1.0).apply(given, {}, exchange(0, bound=1.0), 0)
    assert torch.equal(given.values["dz"], torch.ones(1, 3))


def test_noise_is_dense_again():
    given = sent(dz=torch.zeros(2, 3))
    few = replace(given, bits={"dz": torch.tensor([1.0, 2.0], dtype=torch.float64)})
    after, _ = DistributedGaussianNoise(1.0).apply(few, {}, exchange(0, 1, bound=1.0), 0)
    assert torch.equal(after.bits["dz"], given.bits["dz"])


def test_secure_shares_differ_every_time():
    one, two = (shared(DistributedGaussianNoise(1.0, secure=True), 0).values["dz"] for _ in range(2))
    assert not torch.equal(one, two)


def test_the_clip_before_it_says_how_large_shares_are():
    chain = Chain([Clip(2.0), DistributedGaussianNoise(1.0)])
    after, _ = chain.apply(sent(dz=torch.zeros(1, N)), {}, exchange(0), 0)
    assert float(after.values["dz"].std()) == pytest.approx(2.0 / 2, rel=4 / math.sqrt(2 * N))
    assert chain.bound(None, ["dz"], exchange()) == 2.0


def test_a_count_beside_it_takes_its_part():
    clip = AdaptiveClip(0.5, count_noise=1.0, initial=2.0)
    chain = Chain([clip, DistributedGaussianNoise(1.0)])
    after, _ = chain.apply(sent(dz=torch.zeros(1, N)), {}, exchange(0, public=chain.public()), 0)
    expected = 2.0 / 2 * (1 - 0.25) ** -0.5
    assert float(after.values["dz"].std()) == pytest.approx(expected, rel=4 / math.sqrt(2 * N))


def test_without_a_bound_it_is_refused():
    with pytest.raises(ValueError, match=r"DistributedGaussianNoise\(multiplier=1.0\): nothing bounds"):
        shared(DistributedGaussianNoise(1.0), 0, bound=None)


def test_updates_of_few_digits_are_refused():
    with pytest.raises(ValueError, match=r"'dz' is torch\.bfloat16: sums are rounded .* 32 bits"):
        DistributedGaussianNoise(1.0).apply(sent(dz=torch.ones(1, 2).bfloat16()), {}, exchange(0, bound=0.5), 1)


def test_too_few_answers_end_the_fit():
    noise = DistributedGaussianNoise(1.0, answering=0.75)
    enough = {"answered": torch.tensor(3 / 4)}
    assert noise.publish({}, enough, exchange(), 1) == {}
    with pytest.raises(ValueError, match=r"answering=0.75\): 2 of 4 clients answered .* the noise needs 3"):
        noise.publish({}, {"answered": torch.tensor(2 / 4)}, exchange(), 1)


def test_answers_of_a_poisson_cohort_are_counted_by_its_own_size():
    noise = DistributedGaussianNoise(1.0)
    assert noise.publish({}, {"answered": torch.tensor(4 / 10)}, exchange(expected=10.0), 1) == {}


@pytest.mark.parametrize("wrong", [{"multiplier": 0.0}, {"multiplier": 1.0, "answering": 0.0}])
def test_wrong_arguments_are_named(wrong):
    with pytest.raises(ValueError, match=r"DistributedGaussianNoise\("):
        DistributedGaussianNoise(**wrong)


def test_answers_of_nodes_count_though_noise_makes_them_longer_than_the_clip(tmp_path):
    channel, algorithm = Channel(client=[Clip(0.1), DistributedGaussianNoise(2.0)]), FedAvg(lr=0.05)
    here, there, results = both(
        lambda: quadratic(algorithm), NUMBERS, rounds_of(algorithm, 2, size=4), NODES, tmp_path, channels=channel
    )
    assert_same(here, there, results, tmp_path, NODES)
    assert all(float(result.metrics["left_out"]) == 0 for pair in results for result in pair)
