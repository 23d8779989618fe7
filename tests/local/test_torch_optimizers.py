"""Optimizers of torch over a matrix of clients: those are found that are not one a client."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
from torch import optim

from fedlightning.algorithms import Ditto, FedAvg, FedDR, FedMM, FedSkip
from fedlightning.local import LocalSteps
from fedlightning.local.torch_optimizers import optimizer_step, require_elementwise
from fedlightning.oracle import Sequential, Vectorized
from fedlightning.tasks import ClientNumbers, QuadraticSaddle
from tests.support.federations import loop_for, quadratic
from tests.support.small import Line, fitted, regression_data, trainer

ELEMENTWISE = {
    "SGD": optim.SGD,
    "momentum": partial(optim.SGD, momentum=0.9),
    "Nesterov, decay": partial(optim.SGD, momentum=0.9, nesterov=True, weight_decay=0.01),
    "Adam": optim.Adam,
    "AMSGrad": partial(optim.Adam, amsgrad=True),
    "AdamW": optim.AdamW,
    "Adagrad": optim.Adagrad,
    "RMSprop": partial(optim.RMSprop, centered=True, momentum=0.9),
    "NAdam": optim.NAdam,
    "RAdam": optim.RAdam,
    "Adamax": optim.Adamax,
    "Rprop": optim.Rprop,
    "ASGD": optim.ASGD,
    "Adadelta": optim.Adadelta,
}


class Own(optim.Optimizer):
    """An optimizer of a user's own: plain steps, but for what ``change`` makes of a gradient in step t."""

    def __init__(self, parameters, change, lr=0.1):
        super().__init__(parameters, {"lr": lr})
        self.change = change
        self.t = 0

    @torch.no_grad()
    def step(self, closure=None):
        self.t += 1
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter -= group["lr"] * self.change(parameter.grad, self.t)


def clipped(g, t):
    return g / g.norm().clamp(min=100.0)


def whitened(g, t):  # Shampoo's idea
    values, vectors = torch.linalg.eigh(g @ g.T + 0.01 * torch.eye(len(g)).to(g))
    return vectors @ (values.clamp(min=0.01) ** -0.25).diag() @ vectors.T @ g


def late(g, t):
    return g if t <= 10 else g - g.mean(0)


def of_large_matrices(g, t):
    return g if min(g.shape) < 128 else g / g.mean()


def noisy(g, t):
    return g + torch.randn_like(g)


MIXED = {
    "Adafactor": optim.Adafactor,
    "Muon": optim.Muon,
    **{f.__name__: partial(Own, change=f) for f in (clipped, whitened, late, of_large_matrices, noisy)},
}


@pytest.mark.parametrize("name", ELEMENTWISE)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_elementwise_optimizers_pass_and_are_one_a_client(name, dtype):
    make = ELEMENTWISE[name]
    state = torch.get_rng_state()
    require_elementwise(make, torch.zeros(1, dtype=dtype), "local_optimizer")
    assert torch.equal(torch.get_rng_state(), state)
    start, g = torch.randn(3, 7), torch.randn(5, 3, 7)

    def walk(w, gradients):
        step = optimizer_step(w, 0.05, make)
        for gradient in gradients:
            step(w, gradient.clone(), None)
        return w.detach()

    together = walk(start.clone(), g)
    alone = torch.cat([walk(start[i : i + 1].clone(), g[:, i : i + 1]) for i in range(3)])
    torch.testing.assert_close(together, alone)


@pytest.mark.parametrize("name", [n for n in ELEMENTWISE if n not in ("Rprop", "ASGD")])
def test_a_vector_of_step_sizes_moves_each_number_as_its_own_step_size_does(name):
    make, start, g = ELEMENTWISE[name], torch.randn(3, 7).double(), torch.randn(5, 3, 7).double()

    def walk(w, lr):
        step = optimizer_step(w, lr, make)
        for gradient in g:
            step(w, gradient.clone(), None)
        return w.detach()

    lr = torch.linspace(0, 0.3, 7).double()
    each = torch.stack([walk(start.clone(), float(lr[i]))[:, i] for i in range(7)], dim=1)
    torch.testing.assert_close(walk(start.clone(), lr), each)


@pytest.mark.parametrize("make", [optim.Rprop, partial(optim.Rprop, step_sizes=(1e-6, 1.0)), optim.ASGD])
def test_optimizers_whose_moves_are_not_proportional_take_one_step_size(make):
    optimizer_step(torch.zeros(2, 7), 0.1, make)
    name = getattr(make, "func", make).__name__
    with pytest.raises(ValueError, match=rf"{name}: its moves are not proportional to lr.* Give one lr"):
        optimizer_step(torch.zeros(2, 7), torch.full((7,), 0.1), make)
    with pytest.raises(ValueError, match=f"{name}: its moves"):
        fitted(Line(FedAvg({"body": 0.2, "head": 0.1}, local_optimizer=make)))


@pytest.mark.parametrize("name", MIXED)
def test_optimizers_that_mix_clients_are_found_by_trial(name):
    with pytest.raises(ValueError, match=r"x=\w+ is not elementwise: on the matrix of several clients it mixes .*Adam"):
        require_elementwise(MIXED[name], torch.zeros(1), "x")


def centralised(g, t):
    return g - g.mean(-1, keepdim=True) if g.dim() == 2 and len(g) == 3 else g


def of_convolutions(g, t):
    return 2 * g if g.dim() == 4 else g


@pytest.mark.parametrize(("change", "shape"), [(centralised, "3, 3"), (of_convolutions, "3, 3, 3, 3")])
def test_optimizers_to_which_shapes_matter_are_found_by_trial(change, shape):
    with pytest.raises(ValueError, match=rf"x=Own is not elementwise: a parameter of shape \[{shape}\] is stepped"):
        require_elementwise(partial(Own, change=change), torch.zeros(1), "x")


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (optim.LBFGS, r"TypeError: .*closure"),
        (optim.SparseAdam, "RuntimeError: .*dense"),
        (Own, r"TypeError: .*change"),
    ],
)
def test_optimizers_that_cannot_step_on_gradients_are_named(make, error):
    with pytest.raises(ValueError, match=rf"{make.__name__} is not elementwise: .*alone failed \({error}"):
        require_elementwise(make, torch.zeros(1), "local_optimizer")


@dataclass
class Unhashable:
    """Makes an optimizer; equal by value, so it cannot be a key."""

    options: Any

    def __call__(self, parameters):
        return optim.Adam(parameters, **self.options)


def test_a_maker_that_cannot_be_remembered_is_tried_anew():
    require_elementwise(Unhashable({"amsgrad": True}), torch.zeros(1), "local_optimizer")
    with pytest.raises(ValueError, match=r"local_optimizer=Unhashable.* failed"):
        require_elementwise(Unhashable({"no": 1}), torch.zeros(1), "local_optimizer")


@pytest.mark.parametrize(
    "algorithm",
    [
        FedAvg(0.05, local_optimizer=optim.Muon),
        FedMM(0.05, local_optimizer=optim.Adafactor),
        Ditto(0.05, local_optimizer=optim.Adafactor),
        FedSkip(0.05, local_optimizer=optim.LBFGS),
        FedDR(0.2, solver=LocalSteps(lr=0.05, optimizer=optim.Muon)),
    ],
    ids=lambda a: type(a).__name__,
)
def test_every_place_for_a_local_optimizer_is_looked_at_before_the_first_round(algorithm):
    with pytest.raises(ValueError, match=r"optimizer=.* is not elementwise"):
        loop_for(quadratic(algorithm))
    task = Line(algorithm)
    with pytest.raises(ValueError, match=r"optimizer=.* is not elementwise"):
        trainer().fit(task, regression_data())
    assert task.round_metrics == {}


_MADE: list[torch.Size] = []


def watched(parameters):
    parameters = list(parameters)
    _MADE.append(parameters[0].shape)
    return optim.Adam(parameters)


def test_the_trial_is_made_once_a_fit():
    for rounds in (1, 4):
        _MADE.clear()
        trainer(max_steps=rounds).fit(
            Line(FedAvg(0.05, local_optimizer=watched), oracle=Vectorized(), self_check="off"), regression_data()
        )
        _MADE.remove(torch.Size([1]))  # was asked for its step size
        trials = [shape for shape in _MADE if shape[-1] != 41]  # as many parameters has the task
        assert len(trials) == (12 if rounds == 1 else 0)  # the second fit knows
        assert len(_MADE) - len(trials) == rounds


def test_results_with_a_local_optimizer_do_not_depend_on_the_chunking():
    points = []
    for oracle in (Sequential(), Vectorized(), Vectorized(chunk_size=2)):
        torch.manual_seed(0)
        task = Line(FedAvg(0.01, local_optimizer=optim.Rprop), dropout=0.0, oracle=oracle)
        trainer(max_steps=3, precision="64-true").fit(task, regression_data())
        points.append(task.server_state.z)
    for other in points[1:]:
        torch.testing.assert_close(other, points[0], rtol=1e-10, atol=1e-10)


def test_local_optimizer_is_one_optimizer_a_client():
    algorithm = FedAvg(0.05, local_optimizer=partial(torch.optim.SGD, momentum=0.9))
    task = QuadraticSaddle(algorithm)
    z, matrix, offset = torch.cat([task.x, task.y]).detach(), task.matrix, task.offset
    fitted(task, ClientNumbers(local_steps=4), max_steps=1)
    ends = []
    for i in range(8):
        w = z.clone().requires_grad_()
        optimizer = torch.optim.SGD([w], lr=0.05, momentum=0.9)
        for _ in range(4):
            w.grad = matrix[i] @ w.detach() + offset[i]
            optimizer.step()
        ends.append(w.detach())
    torch.testing.assert_close(task.server_state.z, torch.stack(ends).mean(0))
