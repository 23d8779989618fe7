"""FedBABU: a head that stays where it began, and is fine-tuned on each client where a model is used."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from fedlightning import algorithms as fl
from fedlightning.channel import Channel, Clip, GaussianNoise
from fedlightning.local import Adam
from tests.support.evaluated import held_out_data
from tests.support.federations import (
    K,
    close,
    cohorts_of,
    loop_for,
    numpy_operators,
    quadratic,
    rounds_of,
    run,
    start_of,
)
from tests.support.measured import MeasuredLine, quietly
from tests.support.references.personal import fed_babu
from tests.support.small import clients, trainer

WHOLE = {"batch_size": None, "local_steps": 2}


def fitted(algorithm, rounds=3, **options):
    torch.manual_seed(0)
    task, fit, data = MeasuredLine(algorithm, 0.0, **options), trainer(max_steps=rounds), held_out_data(**WHOLE)
    start = {name: p.detach().clone() for name, p in task.named_parameters()}
    quietly(fit.fit, task, data)
    return task, fit, data, start


@pytest.mark.parametrize(
    "optimizer",
    [None, partial(torch.optim.AdamW, weight_decay=0.1), Adam(weight_decay=0.1)],
    ids=["plain", "AdamW", "Adam"],
)
def test_only_the_body_is_trained(optimizer):
    task, _, _, start = fitted(fl.FedBABU(0.05, "head", local_optimizer=optimizer))
    for name, parameter in task.named_parameters():
        assert torch.equal(parameter, start[name]) == name.startswith("head"), name


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"weighting": "samples", "server_optimizer": partial(torch.optim.Adam, lr=0.03)},
        {"channel": Channel(client=[Clip(1.0)], server=[GaussianNoise(0.1)])},
    ],
    ids=["Adam of rounding errors", "noise"],
)
def test_the_server_leaves_the_head_as_it_is(options):
    task, _, _, start = fitted(fl.FedBABU(0.05, "head"), rounds=20, **options)
    for name, parameter in task.named_parameters():
        assert torch.equal(parameter, start[name]) == name.startswith("head"), name


def test_the_head_alone_is_fine_tuned_on_each_clients_data():
    task, fit, data, _ = fitted(fl.FedBABU(0.05, "head", lr_own=0.2, personal_passes=3))
    losses = []
    for client, samples in enumerate(clients()):
        x, y = samples.tensors
        features = task.body(x).detach()
        weight, bias = (p.detach().clone().requires_grad_() for p in task.head.parameters())
        for _ in range(3 * WHOLE["local_steps"]):
            gradients = torch.autograd.grad(F.mse_loss((features @ weight.T + bias).squeeze(1), y), (weight, bias))
            weight, bias = (
                (p - 0.2 * g).detach().requires_grad_() for p, g in zip((weight, bias), gradients, strict=True)
            )
        own = task.personalize(client)
        torch.testing.assert_close(own.head.weight, weight)
        torch.testing.assert_close(own.head.bias, bias)
        assert torch.equal(own.body[0].weight, task.body[0].weight)
        losses.append(own.objective(clients(seed=7)[client].tensors)["loss"])
    logged = quietly(fit.validate, task, data, verbose=False)[0]
    assert logged["val_loss"] == pytest.approx(torch.stack(losses).mean().item(), rel=1e-5)
    assert logged["val_loss"] != pytest.approx(logged["val_global_loss"], rel=1e-3)


def test_a_body_under_a_fixed_head_follows_the_numpy_reference():
    algorithm = fl.FedBABU(0.05, "y")
    task, batches = quadratic(algorithm), rounds_of(algorithm, 5, size=4)
    expected = fed_babu(numpy_operators(task), start_of(task), cohorts_of(batches), K, 0.05, "y")
    close(run(loop_for(task), batches), torch.from_numpy(np.stack(expected)), 1e-10)


def test_wrong_heads_are_named():
    with pytest.raises(TypeError, match=r"FedBABU\(head=3\): expected the name"):
        fl.FedBABU(0.1, head=3)
    with pytest.raises(ValueError, match=r"FedBABU\(head=\.\.\.\): 'network\.head' matches no trainable parameter"):
        loop_for(quadratic(fl.FedBABU(0.1)))
    with pytest.raises(ValueError, match=r"FedBABU\(head='x'\): all shared parameters are in the head.*personal_p"):
        loop_for(quadratic(fl.FedBABU(0.1, head="x"), dim_y=0))


def test_a_run_goes_on_with_another_head():
    first, second = (loop_for(quadratic(fl.FedBABU(0.05, head=head))) for head in ("x", "y"))
    start = run(first, rounds_of(first.algorithm, 2, size=3))[-1]
    second.load_state_dict(first.state_dict())
    end = run(second, rounds_of(second.algorithm, 1, size=3))[-1]
    assert torch.equal(end[-3:], start[-3:])
    assert not torch.isclose(end[:-3], start[:-3]).any()
