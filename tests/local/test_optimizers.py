"""Local optimizers act as one torch optimizer for each client, with moments that can be kept."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn

from fedlightning.core.parameter_space import ParameterSpace
from fedlightning.local import SGD, Adam
from fedlightning.local.optimizers import OptimizerSteps

S, D, STEPS = 3, 5, 7

PAIRS = {
    "SGD": (SGD(), partial(torch.optim.SGD)),
    "momentum": (SGD(momentum=0.9), partial(torch.optim.SGD, momentum=0.9)),
    "dampening": (
        SGD(momentum=0.8, dampening=0.3, weight_decay=0.1),
        partial(torch.optim.SGD, momentum=0.8, dampening=0.3, weight_decay=0.1),
    ),
    "nesterov": (
        SGD(momentum=0.7, weight_decay=0.1, nesterov=True),
        partial(torch.optim.SGD, momentum=0.7, weight_decay=0.1, nesterov=True),
    ),
    "Adam": (
        Adam(beta1=0.8, beta2=0.95, eps=1e-3, weight_decay=0.1),
        partial(torch.optim.Adam, betas=(0.8, 0.95), eps=1e-3, weight_decay=0.1),
    ),
    "AdamW": (Adam(weight_decay=0.2, decoupled=True), partial(torch.optim.AdamW, weight_decay=0.2)),
}


def space_and_like():
    module = nn.Linear(D - 1, 1).double()
    return ParameterSpace(module), next(module.parameters())


def draws(count=STEPS):
    draw = torch.Generator().manual_seed(0)
    return torch.randn(S, D, generator=draw).double(), torch.randn(count, S, D, generator=draw).double()


def by_torch(make, start, gradients, lr):
    w = start.clone().requires_grad_()
    optimizer = make([w], lr=lr)
    for gradient in gradients:
        w.grad = gradient.clone()
        optimizer.step()
    return w.detach()


@pytest.mark.parametrize("name", PAIRS)
def test_each_client_steps_as_with_a_torch_optimizer_of_its_own(name):
    ours, theirs = PAIRS[name]
    start, gradients = draws()
    steps, w = OptimizerSteps(ours.bind(*space_and_like()), 0.1), start
    for gradient in gradients:
        w = steps(w, gradient, None)
    for client in range(S):
        torch.testing.assert_close(w[client], by_torch(theirs, start[client], gradients[:, client], 0.1))


@pytest.mark.parametrize("name", PAIRS)
def test_kept_moments_continue_where_a_round_ended(name):
    ours, _ = PAIRS[name]
    start, gradients = draws()
    bound = ours.bind(*space_and_like())
    whole, part = OptimizerSteps(bound, 0.1), OptimizerSteps(bound, 0.1)
    w, v = start, start
    for number, gradient in enumerate(gradients):
        part = OptimizerSteps(bound, 0.1, part.moments) if number == 3 else part
        w, v = whole(w, gradient, None), part(v, gradient, None)
    assert torch.equal(w, v)


@pytest.mark.parametrize("name", PAIRS)
def test_clients_that_are_done_keep_points_and_moments(name):
    ours, theirs = PAIRS[name]
    start, gradients = draws()
    steps, w = OptimizerSteps(ours.bind(*space_and_like()), 0.1), start
    counts = [7, 2, 4]
    for number, gradient in enumerate(gradients):
        w = steps(w, gradient, torch.tensor([number < count for count in counts]))
    for client, count in enumerate(counts):
        torch.testing.assert_close(w[client], by_torch(theirs, start[client], gradients[:count, client], 0.1))
    assert steps.moments is not None
    assert steps.moments.steps.tolist() == counts


def test_hyper_parameters_by_prefix_are_those_of_parameter_groups():
    module = nn.Linear(D - 1, 1).double()
    space, like = ParameterSpace(module), module.weight
    start, gradients = draws()
    lr = torch.tensor([0.1] * 4 + [0.02], dtype=torch.float64)
    ours = Adam(beta1={"weight": 0.9, "bias": 0.5}, weight_decay={"weight": 0.3, "default": 0.0}, decoupled=True)
    steps, w = OptimizerSteps(ours.bind(space, like), lr), start
    for gradient in gradients:
        w = steps(w, gradient, None)
    weight = by_torch(partial(torch.optim.AdamW, weight_decay=0.3), start[0, :4], gradients[:, 0, :4], 0.1)
    bias = by_torch(
        partial(torch.optim.AdamW, weight_decay=0.0, betas=(0.5, 0.999)), start[0, 4:], gradients[:, 0, 4:], 0.02
    )
    torch.testing.assert_close(w[0], torch.cat([weight, bias]))


def test_the_personal_block_has_its_own_hyper_parameters():
    module = nn.Linear(4, 1)
    space = ParameterSpace(module, personal_parameters=("bias",))
    bound = SGD(momentum={"weight": 0.9, "bias": 0.2}).bind(space, module.weight)
    torch.testing.assert_close(bound.momentum, torch.full((4,), 0.9))
    torch.testing.assert_close(bound.personal.momentum, torch.full((1,), 0.2))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (partial(SGD, momentum=-0.1), r"SGD\(momentum=-0.1\): expected >= 0"),
        (partial(SGD, dampening=1.0), r"SGD\(dampening=1.0\): expected < 1"),
        (partial(SGD, nesterov=True), "nesterov needs a momentum above 0"),
        (partial(Adam, beta1=1.0), r"Adam\(beta1=1.0\): expected >= 0 and < 1"),
        (partial(Adam, eps=0.0), r"Adam\(eps=0.0\): expected > 0"),
        (partial(Adam, weight_decay=-1.0), r"Adam\(weight_decay=-1.0\): expected >= 0"),
    ],
)
def test_hyper_parameters_out_of_range_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_an_unknown_prefix_is_refused():
    with pytest.raises(ValueError, match=r"momentum: 'wight' matches no trainable parameter\. Did you mean 'weight'"):
        SGD(momentum={"wight": 0.9, "default": 0.0}).bind(*space_and_like())


def test_dampening_without_momentum_is_left_out_as_in_torch():
    w, g = torch.ones(1, 3, dtype=torch.float64), torch.full((1, 3), 0.5, dtype=torch.float64)
    plain = torch.ones(3, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.SGD([plain], lr=0.1, dampening=0.5, weight_decay=0.1)
    ours = SGD(dampening=0.5, weight_decay=0.1)
    moments = ours.start(w)
    for _ in range(3):
        plain.grad = g[0].clone()
        optimizer.step()
        move, moments = ours.move(w, g, moments)
        w = w - 0.1 * move
    torch.testing.assert_close(w[0], plain.detach())


@pytest.mark.parametrize("beta", [0.0, 0.9, 0.999, 0.99999, 0.9999999])
@pytest.mark.parametrize("by_prefix", [False, True])
def test_a_long_memory_costs_no_digits_in_single_precision(beta, by_prefix):
    space = ParameterSpace(nn.Linear(D, 1, bias=False))
    betas = {"weight": beta} if by_prefix else beta
    optimizer = Adam(beta1=0.0, beta2=betas, eps=1e-12).bind(space, torch.zeros(1))
    w = torch.zeros(1, D)
    moments = optimizer.start(w)
    for _ in range(5):
        move, moments = optimizer.move(w, torch.full((1, D), 0.3), moments)
        torch.testing.assert_close(move, torch.ones(1, D), rtol=1e-6, atol=0)
