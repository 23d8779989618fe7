"""Local SGDA+: when its snapshots are taken, and FedAvg without a max block."""

from __future__ import annotations

from fedlightning import algorithms as fl
from tests.support.federations import close, train
from tests.support.stages import assert_stages_begin_at_the_model, under_server_optimizers


@under_server_optimizers
def test_stages_begin_at_the_model_a_server_optimizer_moved_to(server):
    assert_stages_begin_at_the_model(
        fl.LocalSGDAPlus(lr=0.1, refresh=2), server, "snapshot", lambda state: state.t % 2 == 0
    )


def test_without_a_max_block_it_is_fed_avg():
    plus, plain = (train(algorithm, size=4, dim_y=0)[2] for algorithm in (fl.LocalSGDAPlus(0.05), fl.FedAvg(0.05)))
    close(plus, plain)
