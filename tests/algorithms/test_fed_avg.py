"""FedAvg: one local step is no drift; with a personal block it is FedSim."""

from __future__ import annotations

from fedlightning import algorithms as fl
from tests.support.federations import close, train
from tests.support.personal import assert_blocks_follow, over_cohorts
from tests.support.references.personal import fed_sim


def test_one_local_step_is_a_step_of_parallel_sgda():
    """With all clients and one full-batch step the mean of the local points is a step along the mean operator."""
    close(train(fl.FedAvg(0.05), local_steps=1)[2], train(fl.FedSGDA(0.05), local_steps=1)[2])


@over_cohorts
def test_fed_sim_follows_the_numpy_reference_in_both_blocks(size):
    assert_blocks_follow(fed_sim, fl.FedSim, {"lr": 0.05}, size)
