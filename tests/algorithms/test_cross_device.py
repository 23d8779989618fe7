"""CDMA's identities, shared randomness, first responders and skipped rounds."""

from __future__ import annotations

import warnings
from functools import partial

import pytest
import torch

from fedlightning import algorithms as fl
from fedlightning.oracle import Autocast
from fedlightning.participation import FirstResponders, ResponseShare, Selection
from fedlightning.tasks import ClientNumbers
from tests.support.federations import CLIENTS, K, loop_for, quadratic, rounds_of, run, train
from tests.support.small import Line, regression_data, trainer


def close(a, b):
    torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


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


def test_the_coin_is_geometric():
    algorithm = fl.CatalystScaffoldS(0.05, p=0.2)
    steps = torch.tensor([algorithm.steps_of(t) for t in range(10_000)], dtype=torch.float64)
    for k in (1, 2, 5, 10):
        share = 0.2 * 0.8 ** (k - 1)
        assert abs(float((steps == k).double().mean()) - share) < 4 * (share * (1 - share) / 10_000) ** 0.5
    assert abs(float(steps.mean()) - 5) < 4 * (0.8 / 0.04 / 10_000) ** 0.5


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


def responders(**rule):
    return ClientNumbers(30, local_steps=K, participation=FirstResponders(**rule), rounds_per_epoch=60)


def test_most_invited_are_silent_and_training_goes_on(tmp_path):
    """70 % silence ends where a run with as many answers ends, within the spread over seeds."""
    ends = {}
    for share, size in ((0.3, 10), (1.0, 3)):
        distances = []
        for seed in range(4):
            task = quadratic(fl.CDMA_ONE(0.02), num_clients=30, heterogeneity=0.3)
            data = responders(size=size, responses=ResponseShare(share, share))
            data.seed = seed
            trainer(tmp_path, max_steps=40, precision="64-true").fit(task, data)
            assert task.traffic[0] == 40 * 2 * 3 * 8  # three answers in each of two phases
            distances.append((task.server_state.z - task.solution).norm())
        ends[share] = torch.stack(distances)
    gap = (ends[0.3].mean() - ends[1.0].mean()).abs()
    assert gap < ends[0.3].std() + ends[1.0].std()


def test_a_round_nobody_answers_is_skipped_with_a_warning(tmp_path):
    task = quadratic(fl.SCAFFOLD(0.05), num_clients=30)
    before = torch.cat([task.x, task.y]).detach().clone()
    data = responders(size=5, responses=ResponseShare(0.0, 0.0), retries=1)
    run_ = trainer(tmp_path, max_steps=2, precision="64-true")
    with pytest.warns(RuntimeWarning, match=r"Round \d was skipped: of 10 clients invited, too few answered"):
        run_.fit(task, data)
    assert run_.global_step == 2
    assert torch.equal(torch.cat([task.x, task.y]), before)
    assert task.traffic == (0, 2 * 10 * 16)
    assert run_.callback_metrics["skipped"] == 1


class OnlyTheFirstRound(ResponseShare):
    """Then nobody answers."""

    def arrivals(self, ids, round_index, draw):
        return ids if round_index == 0 else []


def test_a_skipped_round_does_not_move_a_server_optimizer(tmp_path):
    ends = []
    for rounds in (1, 2):
        task = quadratic(
            fl.FedAvg(0.05), num_clients=30, server_optimizer=partial(torch.optim.SGD, lr=0.5, momentum=0.9)
        )
        data = responders(size=5, responses=OnlyTheFirstRound(), retries=0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            trainer(tmp_path, max_steps=rounds, precision="64-true").fit(task, data)
        ends.append(torch.cat([task.x, task.y]).detach())
    assert torch.equal(*ends)


class SecondPhaseUnheard(FirstResponders):
    """Nobody answers the second invitation of a round."""

    def select(self, num_clients, seed, round_index, phase):
        heard = super().select(num_clients, seed, round_index, phase)
        return heard if phase == 0 else Selection([], 15)


def test_a_round_skipped_in_its_second_phase_counts_what_was_sent_before():
    algorithm = fl.CDMA_ONE(0.05)
    data = responders(size=5, responses=ResponseShare(0.6, 0.6))
    object.__setattr__(data, "participation", SecondPhaseUnheard(5, ResponseShare(0.6, 0.6)))
    from fedlightning.data.module import RoundLoader

    batch = next(iter(RoundLoader(data, algorithm.phases))).place(torch.device("cpu"), torch.float64)
    loop = loop_for(quadratic(algorithm, num_clients=30))
    before = loop.point.clone()
    with pytest.warns(RuntimeWarning, match=r"Round 0 was skipped: of 15 clients invited in phase 2 of 2, too few"):
        result = loop.run(batch, Autocast("cpu"))
    assert result.metrics["skipped"] == 1
    assert torch.equal(loop.point, before)
    assert loop.upload == 3 * 8  # the mean operator of those who answered, used by nobody
    assert loop.download == 5 * 8 + 15 * 16  # the point; then the point and the mean operator


def test_unanswered_invitations_cost_their_download():
    algorithm = fl.FedAvg(0.05)
    data = responders(size=10, responses=ResponseShare(0.3, 0.3))
    from fedlightning.data.module import RoundLoader

    batch = next(iter(RoundLoader(data, algorithm.phases))).place(torch.device("cpu"), torch.float64)
    loop = loop_for(quadratic(algorithm, num_clients=30))
    result = loop.run(batch, Autocast("cpu"))
    assert (loop.upload, loop.download) == (3 * 8, 10 * 8)
    assert result.metrics["upload_bytes"] == 3 * 8 * 8
    assert result.metrics["round_download"] == 80


def test_first_responders_resume_bitwise(tmp_path):
    algorithm = fl.CDMA_ADA(0.05)

    def loop_and_batches():
        from fedlightning.data.module import RoundLoader

        data = responders(size=10)
        batches = [b.place(torch.device("cpu"), torch.float64) for b in RoundLoader(data, algorithm.phases)]
        return loop_for(quadratic(algorithm, num_clients=30)), batches[:6]

    whole, batches = loop_and_batches()
    trajectory = run(whole, batches)
    first, _ = loop_and_batches()
    run(first, batches[:3])
    second, _ = loop_and_batches()
    second.load_state_dict(first.state_dict())
    assert torch.equal(run(second, batches[3:]), trajectory[3:])
