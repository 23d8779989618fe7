"""Numbers that travel are counted, whoever answers."""

from __future__ import annotations

import torch

from fedlightning import algorithms as fl
from fedlightning.data import RoundLoader
from fedlightning.oracle import Autocast
from fedlightning.participation import ResponseShare
from tests.support.federations import loop_for, quadratic, responders


def test_unanswered_invitations_cost_their_download():
    algorithm = fl.FedAvg(0.05)
    data = responders(size=10, responses=ResponseShare(0.3, 0.3))

    batch = next(iter(RoundLoader(data, algorithm.phases))).place(torch.device("cpu"), torch.float64)
    loop = loop_for(quadratic(algorithm, num_clients=30))
    result = loop.run(batch, Autocast("cpu"))
    assert (loop.upload, loop.download) == (3 * 8, 10 * 8)
    assert result.metrics["upload_bytes"] == 3 * 8 * 8
    assert result.metrics["round_download"] == 80
