"""Buffers that clients keep beside their states, and those that are averaged."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedlightning.algorithms import Ditto, FedAvg
from fedlightning.oracle import Sequential, Vectorized
from tests.support.small import Normed, clients, fitted, regression_data


def test_batch_norm_statistics_are_averaged():
    task = Normed().double()
    data = regression_data(batch_size=None, local_steps=1)
    expected = []
    with torch.no_grad():
        for client in clients():
            x = task.net[0](client.tensors[0].double())
            expected.append(0.9 * 0.0 + 0.1 * x.mean(0))
    fitted(task, data, max_steps=1, precision="64-true")
    torch.testing.assert_close(task.net[1].running_mean, torch.stack(expected).mean(0))
    assert task.net[1].num_batches_tracked == 1
    d = sum(p.numel() for p in task.parameters())
    assert task.traffic == (4 * (d + 17), 4 * (d + 17))  # 8 means, 8 variances, one count


def test_local_batch_norm_statistics_stay_on_the_client():
    task = Normed(buffers="local").double()
    fitted(task, regression_data(), max_steps=3, precision="64-true")
    assert torch.equal(task.net[1].running_mean, torch.zeros(8))
    first, second = (task.personalize(i).net[1].running_mean for i in (0, 1))
    assert first.norm() > 0
    assert not torch.equal(first, second)
    d = sum(p.numel() for p in task.parameters())
    assert task.traffic == (3 * 4 * d, 3 * 4 * d)


class NormedTwice(Normed):
    """The first BatchNorm is the client's own, the second is shared."""

    personal_parameters = ("net.1",)

    def __init__(self, algorithm=None, **federation):
        super().__init__(algorithm, **federation)
        self.net = nn.Sequential(
            nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3), nn.BatchNorm1d(3), nn.Linear(3, 2)
        )


def test_statistics_of_personal_layers_stay_on_the_client_and_those_of_shared_ones_travel(tmp_path):
    task = NormedTwice().double()
    run = fitted(task, regression_data(), max_steps=3, precision="64-true")
    assert torch.equal(task.net[1].running_mean, torch.zeros(8))
    first, second = (task.personalize(i) for i in (0, 1))
    assert not torch.equal(first.net[1].running_mean, second.net[1].running_mean)
    assert first.net[1].running_mean.norm() > 0
    assert torch.equal(first.net[4].running_mean, second.net[4].running_mean)
    assert torch.equal(first.net[4].running_mean, task.net[4].running_mean)
    shared = sum(p.numel() for name, p in task.named_parameters() if not name.startswith("net.1."))
    assert task.traffic == (3 * 4 * (shared + 7), 3 * 4 * (shared + 7))  # 3 means, 3 variances, one count
    run.save_checkpoint(tmp_path / "end.ckpt")
    loaded = NormedTwice.load_from_checkpoint(tmp_path / "end.ckpt", weights_only=True)
    torch.testing.assert_close(loaded.personalize(1).double().net[1].running_mean, second.net[1].running_mean)


def test_a_layer_is_personal_as_well_if_its_parameters_are_named_one_by_one():
    class OneByOne(NormedTwice):
        personal_parameters = ("net.1.weight", "net.1.bias", "net.4.weight")

    task = OneByOne().double()
    fitted(task, regression_data(), max_steps=3, precision="64-true")
    first, second = (task.personalize(i) for i in (0, 1))
    assert not torch.equal(first.net[1].running_mean, second.net[1].running_mean)
    assert torch.equal(first.net[4].running_mean, second.net[4].running_mean)  # its bias is shared


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Ditto keeps a model of each client")
def test_a_personal_model_keeps_its_own_statistics_where_they_stay_on_the_client():
    task = Normed(Ditto(0.05, lam=0.0, lr_own=0.1), buffers="local").double()
    fitted(task, regression_data(batch_size=None, local_steps=1), max_steps=60, precision="64-true")
    for i, data in enumerate(clients()):
        own = task.personalize(i).eval()
        hidden = own.net[0](data.tensors[0].double())
        torch.testing.assert_close(own.net[1].running_mean, hidden.mean(0), rtol=0.1, atol=0.1)


@pytest.mark.filterwarnings("ignore:Ditto keeps a model of each client")
def test_a_personal_model_leaves_the_global_statistics_alone():
    tasks = [Normed(algorithm).double() for algorithm in (FedAvg(0.05), Ditto(0.05, lam=0.0))]
    tasks[1].load_state_dict(tasks[0].state_dict())
    for task in tasks:
        fitted(task, regression_data(), max_steps=2, precision="64-true")
    for name, value in tasks[0].state_dict().items():
        torch.testing.assert_close(value, tasks[1].state_dict()[name])


def test_vectorized_and_sequential_agree_on_batch_norm():
    tasks = [Normed(oracle=oracle).double() for oracle in (Vectorized(), Sequential())]
    tasks[1].load_state_dict(tasks[0].state_dict())
    for task in tasks:
        fitted(task, regression_data(), max_steps=3, precision="64-true")
    for one, other in zip(tasks[0].state_dict().values(), tasks[1].state_dict().values(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-11)
