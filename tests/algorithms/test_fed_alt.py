"""FedAlt: personal block first, then the shared one."""

from __future__ import annotations

import pytest
import torch

from fedlightning import algorithms as fl
from tests.support.federations import loop_for, personal_quadratic, rounds_of, run
from tests.support.personal import assert_blocks_follow, distance_at_the_start, over_cohorts
from tests.support.references.personal import fed_alt


def test_fed_alt_and_fed_sim_miss_the_solution():
    for algorithm in (fl.FedAlt(0.15), fl.FedSim(0.15)):
        task = personal_quadratic(algorithm, num_clients=10)
        points = run(loop_for(task), rounds_of(algorithm, 60, num_clients=10, local_steps=6))
        torch.testing.assert_close(points[-1], points[-2], rtol=1e-9, atol=1e-9)
        assert 1e-2 < (points[-1] - task.solution[0]).norm() < 0.5 * distance_at_the_start(task)


@over_cohorts
def test_both_blocks_follow_the_numpy_reference(size):
    assert_blocks_follow(fed_alt, fl.FedAlt, {"lr": 0.05, "personal_passes": 2}, size)


def test_passes_below_one_are_refused():
    with pytest.raises(ValueError, match=r"FedAlt\(personal_passes=0\)"):
        fl.FedAlt(0.1, personal_passes=0)
