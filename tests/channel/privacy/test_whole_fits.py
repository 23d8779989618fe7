"""Noise and adaptive clipping in whole fits: what resumes, what is skipped, and what is refused on the way."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedlightning import FederatedLightningModule
from fedlightning import algorithms as fl
from fedlightning.channel import AdaptiveClip, Channel, Clip, DistributedGaussianNoise, FixedPoint, GaussianNoise
from fedlightning.participation import Devices, FirstResponders, Poisson, ResponseShare, WaitForAll
from fedlightning.tasks import ClientNumbers, QuadraticSaddle
from tests.support.small import Line, Normed, regression_data, trainer

ADAPTIVE = Channel(client=[AdaptiveClip(0.5, count_noise=1.0)], server=[GaussianNoise(1.0)])
SERVER = Channel(client=[Clip(0.1)], server=[GaussianNoise(1.0)])
SHARED = Channel(client=[Clip(0.1), DistributedGaussianNoise(1.0)])
MASKED = Channel(client=SHARED.client, aggregate=FixedPoint(32, largest=2.0, clients=30))


def fit(folder, channel, rounds=6, ckpt_path=None, num_clients=30, rate=0.5, algorithm=None):
    run = trainer(folder, max_steps=rounds)
    task = QuadraticSaddle(algorithm or fl.SCAFFOLD(lr=0.05), num_clients=num_clients, channel=channel)
    run.fit(task, ClientNumbers(num_clients, local_steps=2, participation=Poisson(rate)), ckpt_path=ckpt_path)
    return run, task


def kept(task):
    return task.run.simulation.server.reception.kept


@pytest.mark.parametrize("channel", [ADAPTIVE, SERVER, SHARED, MASKED])
def test_a_resumed_fit_ends_with_the_same_bits(tmp_path, channel):
    _, whole = fit(tmp_path, channel)
    first, _ = fit(tmp_path, channel, rounds=3)
    first.save_checkpoint(tmp_path / "last.ckpt")
    _, second = fit(tmp_path, channel, ckpt_path=tmp_path / "last.ckpt")
    assert torch.equal(whole.server_state.z, second.server_state.z)
    assert torch.equal(whole.server_state.c, second.server_state.c)
    assert kept(whole).releases == kept(second).releases == {"0": 6}
    for name, value in kept(whole).public.items():
        assert torch.equal(value, kept(second).public[name])


def test_the_norm_moves_from_round_to_round(tmp_path):
    _, task = fit(tmp_path, ADAPTIVE, rounds=3)
    (norm,) = kept(task).public.values()
    assert float(norm) != pytest.approx(0.1, rel=1e-3)
    assert 0.1 * 0.8**3 < float(norm) < 0.1 * 1.25**3


class Slope(FederatedLightningModule):
    """A number with a gradient of 1 everywhere, for every client."""

    def __init__(self, **federation):
        super().__init__(fl.FedAvg(lr=1.0), **federation)
        self.w = nn.Parameter(torch.zeros(()))

    def objective(self, batch):
        return self.w


@pytest.mark.parametrize(
    ("participation", "divisor"),
    [
        (FirstResponders(8, ResponseShare(0.1, 1.0)), 8),
        (FirstResponders(10, ResponseShare(0.5, 1.0), first=4), 4),
        (FirstResponders(10, Devices(low=0.2, high=0.4), at_least=4, retries=0), 10),
        (WaitForAll(Poisson(0.1)), 4),
    ],
    ids=["who answers", "the first", "often too few", "waits for all"],
)
@pytest.mark.filterwarnings("ignore:Round .* was skipped")
def test_noisy_sums_are_divided_by_one_number_in_every_round(participation, divisor):
    """Each client moves the point by -1, so that it ends at the number of all answers over the divisor."""
    task = Slope(channel=Channel(client=[Clip(10.0)], server=[GaussianNoise(1e-9)]))
    trainer(max_steps=6).fit(task, ClientNumbers(40, local_steps=1, participation=participation, seed=3))
    answers = [len(participation.cohort(40, 3, t, 0)) for t in range(6)]
    assert len(set(answers)) > 1 or divisor == 4
    assert -task.w.item() == pytest.approx(sum(answers) / divisor, rel=1e-5)


@pytest.mark.parametrize("channel", [SERVER, MASKED])
def test_an_empty_cohort_releases_nothing(tmp_path, channel):
    with pytest.warns(RuntimeWarning, match=r"was skipped: nobody was drawn\. Raise the rate"):
        run, task = fit(tmp_path, channel, rounds=12, num_clients=3, rate=0.3, algorithm=fl.FedAvg(0.05))
    empty = sum(not Poisson(0.3).cohort(3, 0, index, 0) for index in range(12))
    assert 0 < empty < 12
    assert run.global_step == 12
    assert kept(task).releases == {"0": 12 - empty}


@pytest.mark.filterwarnings("ignore:Round .* was skipped")
def test_a_round_that_is_undone_has_released_what_it_has_released(tmp_path):
    """Where the cohort of the second phase is empty, the first one's sum is out already."""
    _, task = fit(tmp_path, SERVER, rounds=12, num_clients=3, rate=0.5, algorithm=fl.CDMA_ONE(lr=0.05))
    there = [[bool(Poisson(0.5).cohort(3, 0, index, phase)) for phase in (0, 1)] for index in range(12)]
    first, both = sum(one for one, _ in there), sum(one and two for one, two in there)
    assert both < first
    assert kept(task).releases == {"0": first, "1": both}


@pytest.mark.parametrize("channel", [SERVER, SHARED, MASKED])
def test_averaged_statistics_are_refused(tmp_path, channel):
    with pytest.raises(ValueError, match=r"buffers='average': with noise, .*buffers='local'"):
        trainer(tmp_path, max_steps=1).fit(Normed(channel=channel), regression_data())
    trainer(tmp_path, max_steps=1).fit(Normed(channel=channel, buffers="local"), regression_data())


@pytest.mark.parametrize("channel", [SERVER, SHARED, MASKED])
def test_counts_that_differ_are_refused(tmp_path, channel):
    unequal = regression_data(local_steps=None, local_epochs=1)
    with pytest.raises(ValueError, match=r"sent 'steps' from .*local_steps"):
        trainer(tmp_path, max_steps=1).fit(Line(fl.CODAPlus(lr=0.01), channel=channel), unequal)
