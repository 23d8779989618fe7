"""Closed-form gaps against best responses, structure, noise, and what the methods make of it."""

from __future__ import annotations

import pytest
import torch

from fedlightning.algorithms import FedAvg, FedSGDA, FeDualEx
from fedlightning.oracle import Vectorized
from fedlightning.tasks import BilinearL1, BilinearNuclear, ClientNumbers
from tests.support.small import trainer


def l1(**options):
    torch.manual_seed(0)
    return BilinearL1(FeDualEx(0.03), dim_x=12, dim_y=7, **options).double()


def nuclear(**options):
    torch.manual_seed(0)
    task = BilinearNuclear(FeDualEx(0.03), dim_x=9, dim_y=7, columns=4, **options).double()
    for block in (task.x, task.y):
        block.data = task.ball.project(block.data)  # in double precision
    return task


def phi(task, x, y):
    return ((task.matrix @ x - task.offset) * y).sum() + task.ball.value(x) - task.ball.value(y)


@pytest.mark.parametrize("make", [l1, nuclear], ids=["l1", "nuclear"])
def test_gap_is_that_of_the_best_responses(make):
    """The best y' maximises <c, y'> - psi(y'): far along c the proximal step ends at it."""
    task = make()
    x, y = task.x.detach(), task.y.detach()
    best_y = task.ball.prox(1e7 * (task.matrix @ x - task.offset), 1e7)
    best_x = task.ball.prox(-1e7 * task.matrix.mT @ y, 1e7)
    torch.testing.assert_close(task.duality_gap(x, y), phi(task, x, best_y) - phi(task, best_x, y), rtol=1e-6, atol=0)
    draw = torch.Generator().manual_seed(1)
    for _ in range(50):
        other_x = task.ball.project(torch.randn(x.shape, dtype=x.dtype, generator=draw))
        other_y = task.ball.project(torch.randn(y.shape, dtype=x.dtype, generator=draw))
        assert task.duality_gap(x, y) >= phi(task, x, other_y) - phi(task, other_x, y) - 1e-9


def test_zero_is_a_saddle_where_the_price_exceeds_the_offset():
    task = l1(weight=1.5)
    assert task.duality_gap(torch.zeros(12).double(), torch.zeros(7).double()) == 0
    assert task.duality_gap(task.x, task.y) > 0


def test_start_is_feasible_and_the_offset_of_matrices_has_half_rank():
    for task in (l1(), nuclear()):
        assert torch.isfinite(task.ball.value(task.x.detach()))
        assert torch.isfinite(task.ball.value(task.y.detach()))
    assert torch.linalg.matrix_rank(task.offset) == 2
    for start in (l1().x, l1().y):
        assert start.min() < -0.5 * l1().radius
        assert start.max() > 0.5 * l1().radius
    assert set(task.structure()) == {"rank_x", "rank_y"}


def test_noise_has_its_deviation():
    task = l1(noise=0.5)
    torch.manual_seed(0)
    gradients = []
    for _ in range(400):
        task.objective(torch.zeros(1, dtype=torch.long)).backward()
        gradients.append(torch.cat([task.x.grad, task.y.grad]))
        task.x.grad = task.y.grad = None
    assert torch.stack(gradients).std(0).mean() == pytest.approx(0.5, rel=0.05)


@pytest.mark.slow
@pytest.mark.parametrize("make", [BilinearL1, BilinearNuclear])
def test_fe_dual_ex_closes_the_gap(make, tmp_path):
    torch.manual_seed(0)
    task = make(FeDualEx(0.05), dim_x=20, dim_y=10, noise=0.01, oracle=Vectorized())
    run = trainer(tmp_path, max_steps=200, limit_val_batches=1)
    data = ClientNumbers(8, local_steps=1, rounds_per_epoch=100)
    run.validate(task, data, verbose=False)
    before = run.callback_metrics["gap"]
    run.fit(task, data)
    assert run.callback_metrics["gap"] < 0.1 * before
    assert run.callback_metrics["regularization"] >= 0


@pytest.mark.parametrize("make", [BilinearL1, BilinearNuclear])
def test_gaps_of_half_precision_are_computed_in_float32(make, tmp_path):
    task = make(FeDualEx(0.05), dim_x=20, dim_y=10, noise=0.01, oracle=Vectorized())
    run = trainer(tmp_path, max_steps=2, limit_val_batches=1, precision="bf16-true")
    run.fit(task, ClientNumbers(4, local_steps=1, rounds_per_epoch=2))
    assert task.x.dtype == torch.bfloat16
    exact = task.double()
    assert run.callback_metrics["gap"] == pytest.approx(exact.duality_gap(exact.x, exact.y).item(), rel=1e-4)


def test_refuses_methods_without_regularisers():
    with pytest.raises(ValueError, match="FedAvg takes no regularizer"):
        BilinearL1(FedAvg(0.1))
    BilinearL1(FedSGDA(0.1))
