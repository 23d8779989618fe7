"""Local steps on one matrix: clipping of clients' gradients, and step sizes."""

from __future__ import annotations

from copy import deepcopy

import numpy as np
import pytest
import torch

from fedlightning import FederatedDataModule
from fedlightning.algorithms import Ditto, FedALA, FedAlt, FedAvg, FedDR, FedProx
from fedlightning.local import LocalSteps
from fedlightning.local.descent import gradient_step
from fedlightning.oracle import Sequential, Vectorized
from tests.support.federations import K, loop_for, numpy_operators, quadratic, rounds_of, run, start_of
from tests.support.small import Line, Personal, clients, trainer

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
