"""FedPD: communication that is skipped, and what it needs to be exact."""

from __future__ import annotations

import pytest
import torch

from fedlightning import algorithms as fl
from fedlightning.local import LocalSteps
from fedlightning.oracle import Autocast
from tests.support.federations import loop_for, quadratic, rounds_of, train


def test_skipped_communication_costs_nothing():
    algorithm = fl.FedPD(eta=0.5, p=0.5, seed=1)
    task = quadratic(algorithm)
    loop, d = loop_for(task), 8
    up = down = 0
    for t, batch in enumerate(rounds_of(algorithm, 12)):
        before = loop.point
        loop.run(batch, Autocast("cpu"))
        down += 0 if t and algorithm.skips(t - 1) else 6 * d
        up += 0 if algorithm.skips(t) else 6 * d
        assert (loop.upload, loop.download) == (up, down)
        assert torch.equal(before, loop.point) == algorithm.skips(t)
    assert 0 < sum(algorithm.skips(t) for t in range(12)) < 12


def test_fed_pd_is_exact_with_all_clients_only():
    """With half of them a round z follows the cohorts: a mean over those who answered."""
    fed_pd = fl.FedPD(eta=0.5, solver=LocalSteps(lr=0.1))
    ends = []
    for size in (None, 3):
        task, loop, _ = train(fed_pd, rounds=20, size=size, local_steps=10)
        ends.append(float((loop.point - task.solution).norm()))
    assert ends[0] < 0.02
    assert ends[1] > 0.5
    assert "FedADMM does" in fed_pd.partial_cohorts


def test_a_certain_skip_is_refused():
    with pytest.raises(ValueError, match=r"FedPD\(p=1.0\): expected >= 0 and < 1"):
        fl.FedPD(eta=1.0, p=1.0)
