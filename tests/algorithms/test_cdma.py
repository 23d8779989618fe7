"""CDMA: what its variants have in common with other methods, what they remember, and that randomness is shared."""

from __future__ import annotations

import pytest
import torch

from fedlightning import algorithms as fl
from fedlightning.oracle import Autocast
from tests.support.federations import CLIENTS, close, loop_for, quadratic, rounds_of, train
from tests.support.small import Line, regression_data, trainer


def test_ada_whose_weight_stays_one_is_one():
    close(train(fl.CDMA_ADA(0.05, alpha=1.0, rho=0.0), size=4)[2], train(fl.CDMA_ONE(0.05), size=4)[2])


def test_no_correction_is_fed_avg():
    close(train(fl.CDMA_NC(0.05), size=4)[2], train(fl.FedAvg(0.05), size=4)[2])


def test_one_with_one_step_is_parallel_sgda():
    """The cohort of the first phase gives the operator, that of the second only means a step along it."""
    cdma, sgda = fl.CDMA_ONE(0.05), fl.ParallelSGDA(0.05)
    close(train(cdma, size=4, local_steps=1)[2], train(sgda, size=4)[2])


def test_parallel_sgda_on_all_data_is_one_step_of_one(tmp_path):
    """Remark 1 of the paper, where clients have several samples: the full gradient, not that of a minibatch."""
    ends = []
    for algorithm in (fl.CDMA_ONE(0.05), fl.ParallelSGDA(0.05)):
        task = Line(algorithm, dropout=0.0)
        torch.manual_seed(0)
        for parameter in task.parameters():
            torch.nn.init.normal_(parameter, std=0.3)
        one = isinstance(algorithm, fl.CDMA)
        data = regression_data(local_steps=1, batch_size=2 if one else None)
        trainer(tmp_path, max_steps=5).fit(task, data)
        ends.append(torch.cat([p.detach().flatten() for p in task.parameters()]))
    torch.testing.assert_close(ends[0], ends[1], rtol=1e-5, atol=1e-6)


def test_ada_remembers_under_the_same_random_numbers():
    """Where the point stands still, the upload of the second round is alpha_t times one noisy operator."""
    still = 1e-30
    first, second = (train(fl.CDMA_ONE(still), noise=3.0, rounds=n, local_steps=1)[1].state.u for n in (1, 2))
    remembering = train(fl.CDMA(still, alpha=0.3), noise=3.0, rounds=2, local_steps=1)[1].state.u
    torch.testing.assert_close(remembering, 0.3 * second + 0.7 * first, rtol=1e-9, atol=1e-9)
    assert (second - first).norm() > 0.5


def test_with_one_client_the_correction_is_nothing():
    close(train(fl.CDMA_ONE(0.05), num_clients=1)[2], train(fl.FedAvg(0.05), num_clients=1)[2])


def test_ada_asks_for_the_point_before_only_when_it_remembers():
    algorithm = fl.CDMA(0.05, alpha=2.0, rho=0.5)
    assert [algorithm.weight(t) for t in range(4)] == [1.0, 1.0, 2 / 3, 0.5]
    task = quadratic(algorithm)
    loop = loop_for(task)
    batches = rounds_of(algorithm, 4)
    floats = []
    for batch in batches:
        before = loop.download
        loop.run(batch, Autocast("cpu"))
        floats.append((loop.download - before) // (CLIENTS * 8))
    assert floats == [3, 3, 4, 4]  # z, then z and u; from the third round on the point before, too


@pytest.mark.parametrize("algorithm", [fl.CDMA_ONE(0.05), fl.CatalystScaffoldS(0.05, p=1.0)], ids=["CDMA", "Catalyst"])
def test_both_operators_draw_the_same_noise(algorithm):
    """At w = z the noise of g_i(w) - g_i(z) cancels: after one step only that of the collected operators is left."""
    task, loop, _ = train(algorithm, noise=3.0, rounds=1, local_steps=1)
    collected = loop.state.u if isinstance(algorithm, fl.CDMA) else loop.state.g
    start = torch.cat([task.x, task.y]).detach()
    torch.testing.assert_close(loop.state.z, start - 0.05 * collected, rtol=1e-9, atol=1e-9)
    exact = task.matrix.mean(0) @ start + task.offset.mean(0)
    assert (collected - exact).norm() > 0.5


def test_dropout_masks_are_shared(tmp_path):
    task = Line(fl.CDMA_ONE(0.05), dropout=0.5)
    data = regression_data(local_steps=1, batch_size=None)
    before = torch.cat([p.detach().flatten() for p in task.parameters()])
    trainer(tmp_path, max_steps=1).fit(task, data)
    moved = torch.cat([p.detach().flatten() for p in task.parameters()])
    torch.testing.assert_close(moved, before - 0.05 * task.server_state.u, rtol=1e-5, atol=1e-6)
