"""The audit's bound against the binomial distribution, and against simulated runs of known privacy."""

from __future__ import annotations

import math
import random

import pytest
import torch
from scipy import optimize, stats
from torch import nn
from torch.utils.data import TensorDataset

from fedlightning import FederatedDataModule, FederatedLightningModule
from fedlightning.algorithms import FedAvg
from fedlightning.channel import Channel, Clip, DistributedGaussianNoise, GaussianNoise
from fedlightning.channel.privacy import correct_guesses, epsilon_at_least
from fedlightning.channel.privacy.audit import p_value
from tests.support.small import trainer


def test_pure_privacy_is_the_tail_of_a_binomial():
    for epsilon in (0.0, 0.5, 3.0, 60.0):
        tail = stats.binom.sf(74, 100, 1 / (1 + math.exp(-epsilon)))
        assert p_value(75, 100, 1000, epsilon, 0.0) == pytest.approx(tail, rel=1e-9, abs=1e-300)


def test_delta_adds_what_the_theorem_says():
    chance, delta, m = 1 / (1 + math.exp(-1.0)), 1e-5, 1000
    cdf = lambda v: stats.binom.cdf(v, 100, chance)  # noqa: E731
    worst = max((cdf(74) - cdf(74 - i)) / i for i in range(1, 76))
    expected = stats.binom.sf(74, 100, chance) + 2 * m * delta * worst
    assert p_value(75, 100, m, 1.0, delta) == pytest.approx(expected, rel=1e-9)
    assert p_value(75, 100, m, 1.0, 1.0) == 1.0


def test_the_bound_is_where_the_p_value_crosses():
    bound = epsilon_at_least(80, 100, 500, 1e-6)
    assert p_value(80, 100, 500, bound, 1e-6) == pytest.approx(0.05, rel=1e-4)
    assert epsilon_at_least(50, 100, 500, 1e-6) == 0.0
    assert epsilon_at_least(90, 100, 500, 1e-6, confidence=0.99) < epsilon_at_least(90, 100, 500, 1e-6)


def test_randomised_response_is_found_but_not_exceeded():
    """Each coin is told rightly with probability e^2 / (1 + e^2): 2-private, and no mechanism tells more."""
    draw = random.Random(3)
    coins = [draw.random() < 0.5 for _ in range(2000)]
    told = [coin if draw.random() < 1 / (1 + math.exp(-2.0)) else not coin for coin in coins]
    correct = correct_guesses([float(each) for each in told], coins, 2000)
    assert 1.5 < epsilon_at_least(correct, 2000, 2000, 0.0) < 2.0


def test_guesses_are_the_extremes():
    assert correct_guesses([5.0, 1.0, 3.0, 2.0], [True, False, False, True], 2) == 2
    assert correct_guesses([5.0, 1.0, 3.0, 2.0], [True, False, False, True], 4) == 2
    for wrong in (0, 3, 6):
        with pytest.raises(ValueError, match=f"guesses={wrong}: expected an even number from 2 to 4"):
            correct_guesses([5.0, 1.0, 3.0, 2.0], [True] * 4, wrong)


class Canaries(FederatedLightningModule):
    """Each client pulls the parameter that its only sample names, as hard as it can; number -1 pulls none."""

    def __init__(self, count, **federation):
        super().__init__(FedAvg(1.0), **federation)
        self.pulled = nn.Parameter(torch.zeros(count))

    def objective(self, batch):
        (number,) = batch
        wanted = torch.arange(len(self.pulled), device=number.device) == number
        return -100 * (self.pulled * wanted).sum()


def audited(channel, folder, seed, count=600, rounds=4, delta=1e-5):
    """What an audit of one whole fit makes of epsilon."""
    coins = random.Random(seed)
    took_part = [coins.random() < 0.5 for _ in range(count)]
    clients = [TensorDataset(torch.tensor([[k if present else -1]])) for k, present in enumerate(took_part)]
    data = FederatedDataModule.from_datasets(train=clients, batch_size=1, local_steps=1, seed=seed)
    task = Canaries(count, channel=channel)
    trainer(folder, max_steps=rounds).fit(task, data)
    right = correct_guesses(task.pulled.detach().tolist(), took_part, count // 2)
    return epsilon_at_least(right, count // 2, count, delta)


def claimed(multiplier, rounds=4, delta=1e-5):
    """Epsilon of Gaussian releases by the closed form (Balle and Wang, ICML 2018)."""
    sigma, cdf = multiplier / math.sqrt(rounds), stats.norm.cdf

    def excess(epsilon):
        return cdf(0.5 / sigma - epsilon * sigma) - math.exp(epsilon) * cdf(-0.5 / sigma - epsilon * sigma) - delta

    return optimize.brentq(excess, 0.0, 100.0)


@pytest.mark.slow
@pytest.mark.parametrize("multiplier", [2.0, 6.0])
@pytest.mark.parametrize("noise", [GaussianNoise, DistributedGaussianNoise])
def test_a_fit_tells_no_more_than_it_claims(tmp_path, noise, multiplier):
    added = noise(multiplier)
    at_server = Channel(client=[Clip(1.0)], server=[added]) if noise is GaussianNoise else None
    channel = at_server or Channel(client=[Clip(1.0), added])
    bounds = [audited(channel, tmp_path, seed) for seed in range(3)]
    assert max(bounds) < claimed(multiplier)
    if multiplier == 2.0:
        assert max(bounds) > 0.2  # the canaries are seen


def test_a_channel_without_noise_is_caught(tmp_path):
    assert audited(Channel(client=[Clip(1.0)]), tmp_path, 0) > claimed(6.0)


def test_noise_of_the_mean_in_place_of_the_sum_is_caught(tmp_path):
    """Divided by the number of clients once too often, as a server might that adds it to the mean."""
    channel = Channel(client=[Clip(1.0)], server=[GaussianNoise(6.0 / 600)])
    assert audited(channel, tmp_path, 0) > claimed(6.0)
