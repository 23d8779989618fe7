"""Operators of several clients at once from one backward pass, against their closed form."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedlightning.core.parameter_space import ParameterSpace
from fedlightning.oracle import Autocast
from fedlightning.oracle.differentiation import collected, differentiate
from fedlightning.oracle.objective import Objective

W, V = torch.tensor([1.0, -2.0, 3.0]), torch.tensor([0.5])
X = torch.tensor([2.0, 1.0, 4.0])


class Saddle(nn.Module):
    """f(a, b, c) = (a'x + c) b, minimised over a of two numbers and the personal c, maximised over b."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = (
            nn.Parameter(torch.zeros(2)),
            nn.Parameter(torch.zeros(1)),
            nn.Parameter(torch.zeros(1)),
        )

    def objective(self, batch):
        loss = ((self.a @ batch[:2] + self.c) * self.b * batch[2]).squeeze()
        return {"loss": loss, "inner": self.a @ batch[:2]}


def objective(scale=1.0, cls=Saddle):
    task = cls()
    space = ParameterSpace(task, max_parameters=("b",), personal_parameters=("c",))
    return Objective(task, space, Autocast("cpu", scale=scale))


@pytest.mark.parametrize("scale", [1.0, 1024.0])
def test_the_operator_is_the_gradient_with_the_sign_of_the_max_block_turned(scale):
    of = objective(scale)
    found = differentiate(of, of, W, V, torch.empty(0), X)
    inner = 1 * 2 + -2 * 1
    torch.testing.assert_close(found.loss, torch.tensor([(inner + 0.5) * 3 * 4]))
    torch.testing.assert_close(found.g, torch.tensor([[3 * 4 * 2.0, 3 * 4 * 1.0, -(inner + 0.5) * 4]]))
    torch.testing.assert_close(found.g_personal, torch.tensor([[3 * 4.0]]))
    torch.testing.assert_close(found.scalars["inner"], torch.tensor([float(inner)]))
    assert found.buffers.shape == (1, 0)


def test_a_block_that_is_not_asked_for_costs_nothing():
    of = objective()
    shared = differentiate(of, of, W, V, torch.empty(0), X, "shared")
    personal = differentiate(of, of, W, V, torch.empty(0), X, "personal")
    assert (shared.g.shape, shared.g_personal.shape) == ((1, 3), (1, 0))
    assert (personal.g.shape, personal.g_personal.shape) == ((1, 0), (1, 1))


def test_gradients_by_parameter_join_in_the_order_of_the_layout():
    of = objective(scale=2.0)
    shared = [torch.tensor([[2.0, 4.0], [6.0, 8.0]]), torch.tensor([[10.0], [12.0]])]
    g, g_personal = collected(of, shared, [], torch.zeros(2, 3), 2)
    assert g.tolist() == [[1.0, 2.0, -5.0], [3.0, 4.0, -6.0]]
    assert g_personal.shape == (2, 0)


def test_a_loss_of_the_data_alone_is_refused():
    of = objective()

    def of_data(w, v, b, data):
        return data.sum(), {}, []

    with pytest.raises(RuntimeError, match="the loss does not depend on the parameters that are trained"):
        differentiate(of, of_data, W, V, torch.empty(0), X)


def test_a_parameter_that_is_frozen_while_the_objective_runs_is_named():
    class Freezing(Saddle):
        def objective(self, batch):
            self.b.requires_grad_(False)
            return super().objective(batch)

    evaluated = objective(cls=Freezing)
    with pytest.raises(RuntimeError, match=r"^it froze parameter 'b' .* freeze before the fit"):
        differentiate(evaluated, evaluated, W, V, torch.zeros(0), X)
