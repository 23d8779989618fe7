"""Objectives that do in Python what no batched evaluation may, and short runs with them."""

from __future__ import annotations

import random

import numpy as np
import torch

from fedlightning.algorithms import FedAvg
from tests.support.federations import loop_for, quadratic, rounds_of, run

STEPS = 25  # enough to be replayed


def trained(oracle, change=None, rounds=2, **options):
    """Points of a quadratic problem whose objective ``change`` replaces, the loop and what it said."""
    said = []
    options = {"self_check": "first", **options}
    algorithm = FedAvg(0.05)
    task = quadratic(algorithm)
    original = task.objective
    if change is not None:
        task.objective = lambda batch: change(task, original, batch)
    loop = loop_for(task, oracle, report=said.append, **options)
    return run(loop, rounds_of(algorithm, rounds, local_steps=STEPS)), loop, said


def counts(task, original, batch):
    task.calls = getattr(task, "calls", 0) + 1
    return original(batch) * (1 + 0.1 * task.calls)


class Everywhere:
    """State that no attribute of the task shows."""

    calls = 0


def counts_elsewhere(task, original, batch):
    Everywhere.calls += 1
    return original(batch) * (1 + 0.1 * (Everywhere.calls % 7))


def draws_in_python(task, original, batch):
    return original(batch) * (1 + random.random() + np.random.rand())


def draws_from_its_own(task, original, batch):
    noise = torch.rand((), generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    return original(batch) * (1 + noise)


def draws_again_and_again_the_same(task, original, batch):
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return original(batch) * (1 + torch.rand((), dtype=torch.float64))


def reads_a_value(task, original, batch):
    loss = original(batch)
    return loss * 2 if loss.item() > 0 else loss


def writes_into_a_constant(task, original, batch):
    penalty = torch.tensor(0.0, dtype=torch.float64)
    penalty += task.x.square().sum()
    return original(batch) + penalty


def adds_to_a_constant(task, original, batch):
    penalty = torch.tensor(0.0, dtype=torch.float64)
    for k in range(3):
        penalty += 0.1 * k
    return original(batch) * (1 + penalty)


def caches(task, original, batch):
    loss = original(batch)
    before, task.before = getattr(task, "before", None), loss.detach()
    return loss if before is None else loss * (1 + 0.01 * before)


def is_differentiated_inside(task, original, batch):
    slope = torch.func.grad(lambda x: (x * task.x).square().sum())(task.x)
    return original(batch) + slope.square().sum()


def is_complex(task, original, batch):
    z = torch.fft.fft(task.x) * torch.complex(task.x, task.x)
    return original(batch) + 0.1 * torch.fft.ifft(z * z.conj()).abs().square().sum().tanh()


ALONE = [
    counts,
    counts_elsewhere,
    draws_in_python,
    draws_from_its_own,
    draws_again_and_again_the_same,
    reads_a_value,
    writes_into_a_constant,
    caches,
]
TOGETHER = [adds_to_a_constant, is_differentiated_inside, is_complex]
