"""CODA+: when its stages begin and what they refer to."""

from __future__ import annotations

from fedlightning import algorithms as fl
from tests.support.federations import close, train
from tests.support.stages import assert_stages_begin_at_the_model, under_server_optimizers


@under_server_optimizers
def test_stages_begin_at_the_model_a_server_optimizer_moved_to(server):
    assert_stages_begin_at_the_model(fl.CODAPlus(lr=0.1, theta=1.0, stage_steps=4), server)


def test_stages_last_as_many_local_updates_as_said_and_divide_the_step_size_by_three():
    """Rounds of 5 local updates and stages of 10: two rounds a stage."""
    algorithm = fl.CODAPlus(lr=0.1, stage_steps=10)
    states = [train(algorithm, rounds=rounds)[1].state for rounds in range(1, 6)]
    assert [state.stage for state in states] == [0, 1, 1, 2, 2]
    assert [float(state.steps) for state in states] == [5, 0, 5, 0, 5]
    assert [algorithm.step_scale(state) for state in states] == [1, 1 / 3, 1 / 3, 1 / 9, 1 / 9]


def test_one_endless_stage_without_pull_is_fed_avg():
    close(train(fl.CODAPlus(lr=0.05, theta=0.0, stage_steps=10**9), size=4)[2], train(fl.FedAvg(0.05), size=4)[2])
