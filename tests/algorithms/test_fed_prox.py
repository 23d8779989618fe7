"""FedProx: the proximal points that local steps lead to."""

from __future__ import annotations

import pytest
import torch

from fedlightning import algorithms as fl
from tests.support.federations import close, start_of, train


def test_many_local_steps_end_at_the_proximal_points():
    """On quadratics w_i solves (M_i + mu I) w = mu z - q_i; the round's point is their mean."""
    task, _, trajectory = train(fl.FedProx(lr=0.1, mu=2.0), rounds=1, local_steps=400)
    z, identity = torch.from_numpy(start_of(task)), torch.eye(task.matrix.shape[1], dtype=torch.float64)
    points = torch.linalg.solve(task.matrix + 2.0 * identity, 2.0 * z - task.offset)
    close(trajectory[-1], points.mean(0), 1e-9)


def test_without_pull_it_is_fed_avg():
    close(train(fl.FedProx(lr=0.05, mu=0.0), size=4)[2], train(fl.FedAvg(lr=0.05), size=4)[2])


def test_a_negative_weight_is_refused():
    with pytest.raises(ValueError, match=r"FedProx\(mu=-1.0\): expected >= 0"):
        fl.FedProx(lr=0.1, mu=-1.0)
