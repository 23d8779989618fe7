"""Rounds with answers that are not finite, and rounds that are rejected or interrupted."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

from fedlightning import FederatedDataModule
from fedlightning.algorithms import FIAELT, SCAFFOLD, FedAvg, FedDualAvg, FedMM
from fedlightning.callbacks import LastCheckpoint
from fedlightning.federation.protocol import Answer, Stamp
from fedlightning.federation.server import RoundRejectedError, in_order
from fedlightning.local import GradientDescent
from fedlightning.oracle import Autocast, Sequential, Vectorized
from fedlightning.participation import Uniform
from fedlightning.proximal import L1, compose
from fedlightning.schedules import Exponential, Milestones
from tests.support.federations import loop_for, quadratic, rounds_of, run, space_of
from tests.support.small import Line, clients, fitted, regression_data, trainer


def poisoned(bad):
    sets = clients()
    for i in bad:
        sets[i].tensors[1].fill_(float("nan"))
    return FederatedDataModule.from_datasets(sets, batch_size=4, local_steps=2, rounds_per_epoch=5)


@pytest.mark.parametrize("oracle", [Vectorized(), Sequential(), Vectorized(chunk_size=2)])
def test_a_client_with_nan_is_left_out_and_counted(oracle):
    task = Line(SCAFFOLD(0.05), oracle=oracle)
    with pytest.warns(RuntimeWarning, match="NaN or infinite numbers came from client 2"):
        fit = fitted(task, poisoned([2]), max_steps=1)
    assert fit.callback_metrics["clients"] == 3
    assert fit.callback_metrics["left_out"] == 1
    assert torch.isfinite(task.server_state.z).all()
    moved = task.client_states.c.norm(dim=1) > 0
    assert moved.tolist() == [True, True, False, True]


def test_a_client_left_out_changes_nothing_for_the_others():
    data = FederatedDataModule.from_datasets(
        [c for i, c in enumerate(clients()) if i != 2], batch_size=None, local_steps=2, rounds_per_epoch=5
    )
    sets = clients()
    sets[2].tensors[1].fill_(float("nan"))
    sick = FederatedDataModule.from_datasets(sets, batch_size=None, local_steps=2, rounds_per_epoch=5)
    tasks = [Line(FedAvg(0.05), dropout=0.0).double() for _ in range(2)]
    tasks[1].load_state_dict(tasks[0].state_dict())
    fitted(tasks[0], data, precision="64-true")
    with pytest.warns(RuntimeWarning, match="NaN or infinite numbers came from client 2"):
        fitted(tasks[1], sick, precision="64-true")
    torch.testing.assert_close(tasks[1].server_state.z, tasks[0].server_state.z, rtol=1e-12, atol=1e-12)


def test_a_round_of_nan_only_stops_and_saves_the_state_before_it(tmp_path):
    class Turning(Line):
        def objective(self, batch):
            loss = super().objective(batch)["loss"]
            return {"loss": loss * float("nan") if self.trainer.global_step >= 3 else loss}

    task = Turning(FedMM(0.05, mu=1.0), oracle=Sequential())
    fit = trainer(tmp_path, enable_checkpointing=True, callbacks=[ModelCheckpoint(tmp_path, every_n_epochs=100)])
    with pytest.raises(RoundRejectedError, match=r"Round 4: All 4 clients .*before-rejected-round-4\.ckpt"):
        fit.fit(task, regression_data())
    state = torch.load(tmp_path / "before-rejected-round-4.ckpt", weights_only=True)
    assert state["federation"]["server"]["t"] == 3
    assert torch.isfinite(state["federation"]["server"]["z"]).all()


@dataclass(frozen=True)
class Rooted(FedAvg):
    """Draws the root of the mean at the server, of which there is none in the third round."""

    def server_update(self, server, update):
        self.rounds.append(None)
        return replace(update, z=(update.z.abs() - 10.0 * (len(self.rounds) == 3)).sqrt())


def test_a_server_whose_model_is_not_finite_is_named_in_its_own_round(tmp_path, monkeypatch):
    monkeypatch.setattr(Rooted, "rounds", [], raising=False)
    task = Line(Rooted(0.05), oracle=Sequential())
    message = (
        r"^Round 3: Rooted\.server_update returned a global model with NaN or infinite numbers, although the clients' "
        r"answers are finite\. The round was rejected: .* look at what it computes\..*before-rejected-round-3\.ckpt"
    )
    with pytest.raises(RoundRejectedError, match=message):
        trainer(tmp_path, enable_checkpointing=True, callbacks=[ModelCheckpoint(tmp_path, every_n_epochs=100)]).fit(
            task, regression_data()
        )
    state = torch.load(tmp_path / "before-rejected-round-3.ckpt", weights_only=True)
    assert torch.isfinite(state["federation"]["server"]["z"]).all()


def test_an_interrupt_in_the_middle_of_a_round_saves_the_rounds_before(tmp_path):
    class Stop(Line):
        calls = 0

        def objective(self, batch):
            Stop.calls += 1
            if Stop.calls > 4:  # two in each round; those before the first round are put back
                raise KeyboardInterrupt
            return super().objective(batch)

    task = Stop(SCAFFOLD(0.05), oracle=Sequential())
    last = LastCheckpoint(str(tmp_path), every_n_seconds=1e9)
    data = regression_data(participation=Uniform(1), local_steps=2)
    with pytest.raises((KeyboardInterrupt, SystemExit)):
        fitted(task, data, callbacks=[last], enable_checkpointing=True, num_sanity_val_steps=0)
    stored = torch.load(tmp_path / "last.ckpt", weights_only=True)
    assert stored["global_step"] == 2
    weight = stored["state_dict"]["body.0.weight"].flatten()
    assert torch.equal(stored["federation"]["server"]["z"][: len(weight)], weight)


def test_answers_are_added_up_in_the_order_of_the_invitations():
    """Whoever was first: an answer waits for those invited before it, clients that never answer for the end."""
    answers = [Answer(Stamp(0, 0), [client], None, torch.empty(1, 0)) for client in (7, 3, 9, 5)]
    for arrival in ([0, 1, 2, 3], [3, 2, 1, 0], [2, 0, 3, 1]):
        came = in_order([answers[place] for place in arrival], invited=[5, 3, 4, 9, 7])
        assert [answer.client_ids[0] for answer in came] == [5, 3, 9, 7]


def test_answers_in_order_do_not_wait():
    taken = []

    def stream():
        for client in (2, 0, 1):
            taken.append(client)
            yield Answer(Stamp(0, 0), [client], None, torch.empty(1, 0))

    first = next(in_order(stream(), invited=[2, 0, 1]))
    assert first.client_ids == [2]
    assert taken == [2]


def sparse(algorithm):
    """A loop on a quadratic problem with an l1 norm."""
    task = quadratic(algorithm)
    return loop_for(task, regularizer=compose(space_of(task).shared, L1(0.05), L1(0.05), personal=()))


def test_thresholds_of_dual_averaging_are_sums_of_steps_that_vary():
    """lr_server * lr * steps is the sum of all steps taken, whatever size they had."""
    algorithm = FedDualAvg(Exponential(0.05, gamma=0.7), lr_server=0.9)
    loop = sparse(algorithm)
    batches = rounds_of(algorithm, 4)
    taken = 0.0
    for index, batch in enumerate(batches):
        run(loop, [batch])
        taken += 0.9 * 0.05 * 0.7**index * 5
        now = loop.algorithm
        torch.testing.assert_close(float(now.lr * now.lr_server * loop.state.steps), taken, rtol=1e-12, atol=0.0)
        prox = L1(0.05).prox(loop.state.dual, taken)
        torch.testing.assert_close(loop.point, prox, rtol=1e-12, atol=1e-15)


def test_a_new_penalty_moves_neither_the_point_nor_the_means():
    algorithm = FIAELT(Milestones({0: 8.0, 3: 12.0}), r=0.05, solver=GradientDescent(max_steps=30))
    loop = loop_for(quadratic(algorithm))
    run(loop, rounds_of(algorithm, 3, size=4))
    before = loop.state
    loop.server.begin_round(3)
    assert loop.state.beta == loop.algorithm.beta == 12.0
    assert torch.equal(loop.state.y, before.y)
    assert torch.equal(loop.state.z, before.z)
    mean = loop.runner.mean_state().x
    torch.testing.assert_close(loop.state.bx, 12.0 * mean, rtol=1e-12, atol=1e-12)


def test_a_state_that_cannot_follow_a_schedule_is_refused_in_the_round():
    loop = sparse(FedDualAvg([Milestones({0: 0.05, 2: 0.01}), 0.05]))
    batches = rounds_of(loop.algorithm, 3)
    run(loop, batches[:2])
    point = loop.point.clone()
    with pytest.raises(
        ValueError, match=r"FedDualAvg: after 2 rounds lr goes from \[0.05, 0.05\] to \[0.01, 0.05\]. .*cannot be made"
    ):
        run(loop, batches[2:])
    assert torch.equal(loop.point, point)


def test_a_round_that_was_interrupted_after_its_hyper_parameters_came_into_force_is_repeated_bitwise():
    algorithm = FedDualAvg(Exponential(0.05, gamma=0.7))
    batches = rounds_of(algorithm, 4)
    whole = sparse(algorithm)
    trajectory = run(whole, batches)
    first = sparse(algorithm)
    run(first, batches[:2])

    class Interrupted(Exception):
        pass

    def stop(*_):
        raise Interrupted
        yield

    asking, first.loop.transport.ask = first.loop.transport.ask, stop
    with pytest.raises(Interrupted):
        first.run(batches[2], Autocast("cpu"))
    first.loop.transport.ask = asking
    second = sparse(algorithm)
    second.load_state_dict(first.state_dict())
    torch.testing.assert_close(second.point, trajectory[1], rtol=1e-12, atol=1e-15)
    assert torch.equal(run(second, batches[2:]), trajectory[2:])
    assert torch.equal(run(first, batches[2:]), trajectory[2:])
