"""Per-FedAvg: the gradient after a personal step, and the step that clients take when they use the model."""

from __future__ import annotations

import pytest
import torch
from torch.func import grad

from fedlightning import FederatedDataModule, FederatedLightningModule
from fedlightning import algorithms as fl
from tests.support.federations import K as STEPS
from tests.support.federations import close, cohorts_of, loop_for, numpy_operators, quadratic, rounds_of, run, start_of
from tests.support.references.personal import per_fed_avg
from tests.support.small import trainer

ALPHA = 0.1


def test_the_first_order_version_follows_the_numpy_reference():
    hyper = {"lr": 0.05, "lr_own": 0.03, "hessian": "ignored"}
    algorithm = fl.PerFedAvg(**hyper)
    task, batches = quadratic(algorithm), rounds_of(algorithm, 5, size=4)
    expected = per_fed_avg(numpy_operators(task), start_of(task), cohorts_of(batches), STEPS, **hyper)
    close(run(loop_for(task), batches)[-1], torch.from_numpy(expected[-1]), 1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("dim_y", [3, 0], ids=["minimax", "minimisation"])
@pytest.mark.parametrize("hessian", ["free", "ignored"])
def test_with_single_steps_it_ends_where_the_mean_after_a_personal_step_is_best(dim_y, hessian):
    """M g_i(M z - alpha q) with M = I - alpha G_i, without the outer M in the first-order version, is zero on average.

    On quadratics g_i(w) = G_i w + q_i, and the operator of f_i(w - alpha g_i(w)) is M (G_i M z + M q_i).
    """
    algorithm = fl.PerFedAvg(0.3, ALPHA, hessian)
    task = quadratic(algorithm, dim_y=dim_y)
    loop = loop_for(task)
    run(loop, rounds_of(algorithm, 250, local_steps=1))
    matrix = task.matrix
    after = torch.eye(len(matrix[0]), dtype=torch.float64) - ALPHA * matrix
    outer = after if hessian == "free" else torch.eye(len(matrix[0]), dtype=torch.float64)
    mean = (outer @ matrix @ after).mean(0), (outer @ after @ task.offset[..., None]).mean(0)[:, 0]
    close(loop.point, torch.linalg.solve(mean[0], -mean[1]), 1e-9)


class Curved(FederatedLightningModule):
    """A saddle function that is no quadratic, with a personal step of its own by autograd."""

    max_parameters = ("y",)

    def __init__(self, algorithm):
        super().__init__(algorithm)
        draw = torch.Generator().manual_seed(3)
        self.x = torch.nn.Parameter(torch.randn(3, generator=draw))
        self.y = torch.nn.Parameter(torch.randn(2, generator=draw))

    @staticmethod
    def value(x, y, data):
        return (data[:, :3] @ x).sin().mean() + (x[:2] * y).sum() - (y - data[:, 3:]).cosh().mean()

    def objective(self, batch):
        return self.value(self.x, self.y, batch[0])

    @classmethod
    def after_a_personal_step(cls, x, y, data):
        """f_i where both players have taken the step."""
        return cls.value(x - ALPHA * grad(cls.value, 0)(x, y, data), y + ALPHA * grad(cls.value, 1)(x, y, data), data)


def one_client():
    samples = torch.randn(6, 5, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    sets = [torch.utils.data.TensorDataset(samples)]
    return FederatedDataModule.from_datasets(sets, batch_size=None, local_steps=1, rounds_per_epoch=1), samples


def test_a_step_of_both_players_goes_along_the_operator_after_both_have_moved():
    found = {}
    for delta in (1e-4, 0.5):
        task = Curved(fl.PerFedAvg(1.0, ALPHA, delta=delta))
        x, y = (p.detach().double() for p in (task.x, task.y))
        data, samples = one_client()
        trainer(max_steps=1, precision="64-true").fit(task, data)
        found[delta] = torch.cat([x - task.x.detach(), task.y.detach() - y])
    exact = torch.cat([grad(Curved.after_a_personal_step, place)(x, y, samples) for place in (0, 1)])
    torch.testing.assert_close(found[1e-4], exact, rtol=1e-6, atol=1e-8)
    assert not torch.allclose(found[0.5], exact, rtol=1e-6)
    plain = torch.cat([grad(Curved.value, place)(x, y, samples) for place in (0, 1)])
    assert (plain - exact).norm() > 0.05


def test_wrong_hyper_parameters_are_named():
    with pytest.raises(ValueError, match=r"PerFedAvg\(hessian='exact'\): expected 'free' or 'ignored'"):
        fl.PerFedAvg(0.1, hessian="exact")
    with pytest.raises(ValueError, match=r"PerFedAvg\(delta=0"):
        fl.PerFedAvg(0.1, delta=0)
