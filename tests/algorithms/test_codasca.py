"""CODASCA: stages as in CODA+, control variates as in SCAFFOLD."""

from __future__ import annotations

from fedlightning import algorithms as fl
from tests.support.federations import close, train
from tests.support.stages import assert_stages_begin_at_the_model, under_server_optimizers


@under_server_optimizers
def test_stages_begin_at_the_model_a_server_optimizer_moved_to(server):
    assert_stages_begin_at_the_model(fl.CODASCA(lr=0.1, theta=1.0, stage_steps=4), server)


def test_one_endless_stage_without_pull_is_scaffold():
    endless = fl.CODASCA(lr=0.05, theta=0.0, stage_steps=10**9, lr_server=0.9)
    close(train(endless, size=4)[2], train(fl.SCAFFOLD(lr=0.05, lr_server=0.9), size=4)[2])


def test_control_variates_are_kept_across_stages_and_their_mean_is_exact():
    _, loop, _ = train(fl.CODASCA(lr=0.05, stage_steps=10), rounds=5, size=3)
    assert loop.state.stage == 2
    close(loop.state.c, loop.clients.all("state.c").mean(0))
    assert loop.state.c.norm() > 1e-2
