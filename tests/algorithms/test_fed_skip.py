"""FedSkip: rounds of means and rounds in which models change hands."""

from __future__ import annotations

import pytest
import torch

from fedlightning import algorithms as fl
from fedlightning.algorithms.base import PerClient
from fedlightning.algorithms.fed_skip import Upload
from tests.support.federations import loop_for, quadratic, rounds_of, run


def test_fed_skip_with_a_mean_in_every_round_is_fed_avg():
    skip, avg = fl.FedSkip(lr=0.05, period=1), fl.FedAvg(lr=0.05)
    batches = rounds_of(avg, 5, size=4)
    assert torch.equal(run(loop_for(quadratic(skip)), batches), run(loop_for(quadratic(avg)), batches))


def test_fed_skip_hands_every_model_to_one_client():
    algorithm = fl.FedSkip(lr=0.05, period=100, seed=3)
    ids = [4, 0, 7, 2]
    routes = [algorithm.shuffled(torch.tensor(ids), t).tolist() for t in range(5)]
    assert all(sorted(route) == sorted(ids) for route in routes)
    assert len({tuple(route) for route in routes}) > 1
    server = algorithm.init_server(torch.zeros(1))
    models = PerClient(torch.zeros(1), torch.tensor(ids), torch.tensor([[4.0], [0.5], [7.0], [2.0]]))
    after = algorithm.server_update(server, Upload(models))
    assert dict(zip(after.clients.tolist(), after.models[:, 0].tolist(), strict=True)) == dict(
        zip(routes[0], [4.0, 0.5, 7.0, 2.0], strict=True)
    )
    later = algorithm.server_update(after, Upload(PerClient(torch.zeros(1), torch.tensor([4]), torch.tensor([[9.0]]))))
    assert sorted(later.clients.tolist()) == sorted(ids)
    assert PerClient(later.z, later.clients, later.models).of([4, 5]).flatten().tolist() == [9.0, 0.0]


def test_a_period_of_nothing_is_refused():
    with pytest.raises(ValueError, match=r"FedSkip\(period=0\): expected >= 1"):
        fl.FedSkip(lr=0.1, period=0)
