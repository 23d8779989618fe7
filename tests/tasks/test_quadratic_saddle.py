"""The quadratic problem: its answers in closed form, and what methods make of it."""

from __future__ import annotations

import pytest
import torch

from fedlightning.algorithms import FedAvg, FedMM
from fedlightning.oracle import Vectorized
from fedlightning.tasks import ClientNumbers, PersonalQuadratic, QuadraticSaddle
from tests.support.small import trainer


def test_quadratic_solution_and_drift_point_are_what_they_say():
    task = QuadraticSaddle(FedAvg(0.05), num_clients=4).double()
    z = task.solution.clone().requires_grad_()
    with torch.no_grad():
        task.x.copy_(z[:5])
        task.y.copy_(z[5:])
    mean = sum(task.objective(torch.tensor([i])) for i in range(4)) / 4
    for g in torch.autograd.grad(mean, [task.x, task.y]):
        assert g.norm() < 1e-10
    drift = task.drift_fixed_point(0.05, 6)
    ends = []
    for matrix, offset in zip(task.matrix, task.offset, strict=True):
        w = drift
        for _ in range(6):
            w = w - 0.05 * (matrix @ w + offset)
        ends.append(w)
    torch.testing.assert_close(torch.stack(ends).mean(0), drift, rtol=1e-10, atol=1e-10)
    assert (drift - task.solution).norm() > 0.1


def test_fed_avg_gda_ends_at_its_drift_point_and_fed_mm_at_the_saddle():
    def end(algorithm, rounds, local_steps):
        task = QuadraticSaddle(algorithm, oracle=Vectorized())
        trainer(max_steps=rounds, precision="64-true", limit_val_batches=0).fit(
            task, ClientNumbers(local_steps=local_steps, rounds_per_epoch=rounds)
        )
        return task

    drifted = end(FedAvg(0.05), 30, 10)
    torch.testing.assert_close(drifted.server_state.z, drifted.drift_fixed_point(0.05, 10), rtol=0, atol=1e-9)
    assert (drifted.server_state.z - drifted.solution).norm() > 0.1
    exact = end(FedMM(0.05, mu=3.0, eta3=1.0), 65, 5)
    assert (exact.server_state.z - exact.solution).norm() < 1e-9


@pytest.mark.parametrize("kind", [QuadraticSaddle, PersonalQuadratic])
@pytest.mark.parametrize(("mine", "theirs"), [(4, 6), (6, 4)])
def test_data_of_another_number_of_clients_are_refused(kind, mine, theirs):
    with pytest.raises(ValueError) as error:  # noqa: PT011
        trainer(max_steps=1).fit(kind(FedAvg(0.05), num_clients=mine), ClientNumbers(theirs))
    assert str(error.value) == (
        f"{kind.__name__}(num_clients={mine}): the data have {theirs} clients. Give the task num_clients={theirs} "
        f"(--model.num_clients={theirs}), or the data num_clients={mine} (--data.num_clients={mine})."
    )


def test_the_quadratic_task_logs_its_distance():
    task = QuadraticSaddle(FedMM(0.05))
    fit = trainer(max_steps=3)
    fit.fit(task, ClientNumbers(rounds_per_epoch=3))
    z = torch.cat([task.x, task.y]).detach()
    torch.testing.assert_close(fit.callback_metrics["distance"], (z - task.solution.float()).norm())
