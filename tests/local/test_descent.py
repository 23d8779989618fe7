"""Local steps: optimizers of which one over a matrix is one a client, and clipping of clients' gradients."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import optim

from fedlightning import FederatedDataModule
from fedlightning.algorithms import Ditto, FedALA, FedAlt, FedAvg, FedDR, FedMM, FedProx, FedSkip
from fedlightning.local import LocalSteps
from fedlightning.local.descent import gradient_step, optimizer_step, require_elementwise
from fedlightning.oracle import Sequential, Vectorized
from fedlightning.tasks import ClientNumbers, QuadraticSaddle
from tests.support.federations import K, loop_for, numpy_operators, quadratic, rounds_of, run, start_of
from tests.support.small import Line, Personal, clients, fitted, regression_data, trainer

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
            Line(FedAvg(0.05, local_optimizer=watched), oracle=Vectorized()), regression_data()
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


CLIP = 0.3


def whole(sets, **options):
    """Every step sees all of a client's data, so that a plain loop needs to know nothing of the dealing."""
    return FederatedDataModule.from_datasets(sets, batch_size=None, local_steps=4, rounds_per_epoch=2, **options)


def plain_loop(task, x, y, lr, clip, steps=4):
    """Local steps of one client as anybody would write them."""
    task = deepcopy(task)
    optimizer = torch.optim.SGD(task.parameters(), lr=lr)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = task.objective((x, y))
        (loss["loss"] if isinstance(loss, dict) else loss).backward()
        torch.nn.utils.clip_grad_norm_(task.parameters(), clip)
        optimizer.step()
    return task


@pytest.mark.parametrize("oracle", [Sequential(), Vectorized(), Vectorized(chunk_size=2)], ids=str)
def test_one_round_is_a_plain_loop_with_clip_grad_norm_on_every_client(oracle):
    sets = clients()
    task = Line(FedAvg(0.1, local_clip=CLIP), dropout=0.0, oracle=oracle).double()
    locals_ = [plain_loop(task, *(t.double() for t in own.tensors), 0.1, CLIP) for own in sets]
    free = [plain_loop(task, *(t.double() for t in own.tensors), 0.1, 1e9) for own in sets]
    trainer(max_steps=1, precision="64-true").fit(task, whole(sets))
    for name, value in task.named_parameters():
        mean = torch.stack([dict(own.named_parameters())[name] for own in locals_]).mean(0)
        torch.testing.assert_close(value, mean, rtol=1e-10, atol=1e-10)
    assert not torch.allclose(locals_[0].head.weight, free[0].head.weight, rtol=1e-2)  # it does clip


def test_the_personal_block_counts_in_the_norm():
    sets = clients()
    task = Personal(FedAvg(0.1, local_clip=CLIP), oracle=Vectorized()).double()
    locals_ = [plain_loop(task, *(t.double() for t in own.tensors), 0.1, CLIP) for own in sets]
    trainer(max_steps=1, precision="64-true").fit(task, whole(sets))
    mean = torch.stack([own.line.weight for own in locals_]).mean(0)
    torch.testing.assert_close(task.line.weight, mean, rtol=1e-10, atol=1e-10)
    for i, own in enumerate(locals_):
        torch.testing.assert_close(task.personalize(i).double().offset, own.offset, rtol=1e-10, atol=1e-10)


def clipped_gradient(g, clip):
    return g * min(1.0, clip / (np.linalg.norm(g) + 1e-6))


def test_the_gradient_is_clipped_before_the_correction():
    task = quadratic(FedProx(0.05, mu=0.4, local_clip=CLIP))
    z, operators = start_of(task), numpy_operators(task)
    ends = []
    for operator in operators:
        w = z
        for _ in range(K):
            w = w - 0.05 * (clipped_gradient(operator(w), CLIP) + 0.4 * (w - z))
        ends.append(w)
    trajectory = run(loop_for(task), rounds_of(task.algorithm, 1))
    torch.testing.assert_close(trajectory[0], torch.from_numpy(np.mean(ends, axis=0)), rtol=1e-10, atol=1e-10)


def test_local_steps_of_a_solver_are_clipped_before_the_subproblems_terms():
    eta, lr = 0.2, 0.06
    algorithm = FedDR(eta, alpha=1.0, solver=LocalSteps(lr=lr, clip=CLIP))
    free = FedDR(eta, alpha=1.0, solver=LocalSteps(lr=lr))
    task = quadratic(algorithm)
    z = start_of(task)
    ends = []
    for operator in numpy_operators(task):
        w = z
        for _ in range(K):
            w = w - lr * (clipped_gradient(operator(w), CLIP) + (w - z) / eta)
        ends.append(2 * w - z)  # of y_i = z
    batches = rounds_of(algorithm, 1)
    first = run(loop_for(task), batches)[0]
    torch.testing.assert_close(first, torch.from_numpy(np.mean(ends, axis=0)), rtol=1e-10, atol=1e-10)
    assert not torch.allclose(first, run(loop_for(quadratic(free)), batches)[0], rtol=1e-3)


@pytest.mark.parametrize("make", [FedAlt, Ditto, FedALA], ids=lambda make: make.__name__)
def test_no_client_moves_further_than_its_clipped_steps(make):
    lr, clip = 0.05, 1e-3
    task = Personal(make(lr, local_clip=clip), oracle=Vectorized())
    before = {name: p.detach().clone() for name, p in task.named_parameters()}
    trainer(max_steps=1).fit(task, whole(clients()))
    for i in range(4):
        own = dict(task.personalize(i).named_parameters())
        for name, start in before.items():
            moved = (own[name] - start).norm()
            assert 0 < moved < 4 * lr * clip * 1.3, (i, name)  # Ditto also pulls towards the global model


def test_a_clip_of_nothing_is_refused():
    with pytest.raises(ValueError, match=r"FedAvg\(local_clip=0\.0\): expected > 0, or null"):
        FedAvg(0.1, local_clip=0.0)
    with pytest.raises(ValueError, match=r"LocalSteps\(clip=-1\): expected > 0"):
        LocalSteps(clip=-1)


@pytest.mark.parametrize("active", [None, torch.tensor([True, False])])
def test_a_step_size_beyond_the_dtype_leads_to_infinity(active):
    """torch refuses such a factor; the round is then rejected in the words of the package."""
    w = gradient_step(1e200)(torch.zeros(2, 3), torch.ones(2, 3), active)
    assert w.tolist() == [[-torch.inf] * 3, [-torch.inf if active is None else 0.0] * 3]
