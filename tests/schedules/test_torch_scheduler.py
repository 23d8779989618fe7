"""Schedules that follow torch's schedulers."""

from __future__ import annotations

import copy
import pickle
import random
from functools import partial

import pytest
import torch
from torch.optim import lr_scheduler

from fedlightning.schedules import FromTorch

SCHEDULERS = {
    "steps": partial(lr_scheduler.StepLR, step_size=3, gamma=0.5),
    "milestones": partial(lr_scheduler.MultiStepLR, milestones=[2, 150], gamma=0.1),
    "cosine": partial(lr_scheduler.CosineAnnealingLR, T_max=40),
    "restarts": partial(lr_scheduler.CosineAnnealingWarmRestarts, T_0=7, T_mult=2),
    "one cycle": partial(lr_scheduler.OneCycleLR, max_lr=1.0, total_steps=170),
    "cyclic": partial(lr_scheduler.CyclicLR, base_lr=0.01, max_lr=0.2, step_size_up=5),
    "function": lambda optimizer: lr_scheduler.LambdaLR(optimizer, lambda done: 1 / (1 + done)),
    "chain": lambda optimizer: lr_scheduler.SequentialLR(
        optimizer,
        [lr_scheduler.ConstantLR(optimizer, 0.1, 4), lr_scheduler.ExponentialLR(optimizer, 0.9)],
        milestones=[4],
    ),
}


@pytest.mark.parametrize("name", SCHEDULERS)
def test_values_are_those_of_a_training_loop_in_any_order(name):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=0.3, momentum=0.5)
    scheduler = SCHEDULERS[name](optimizer)
    expected = []
    for _ in range(170):
        expected.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        if len(expected) < 170:
            scheduler.step()
    order = list(range(170))
    random.Random(0).shuffle(order)
    found = FromTorch(0.3, SCHEDULERS[name])
    assert {rounds: found(rounds) for rounds in order} == dict(enumerate(expected))


def test_a_scheduler_that_ends_fails_where_it_ends():
    schedule = FromTorch(0.1, partial(lr_scheduler.OneCycleLR, max_lr=1.0, total_steps=10))
    assert schedule(10) > 0
    with pytest.raises(ValueError, match="Tried to step 11 times"):
        schedule(11)


def test_copies_give_the_same_values():
    schedule = FromTorch(0.3, SCHEDULERS["cosine"])
    schedule(5)
    for other in (copy.deepcopy(schedule), pickle.loads(pickle.dumps(schedule))):
        assert [other(rounds) for rounds in range(300)] == [schedule(rounds) for rounds in range(300)]


REFUSED = {
    "no maker": (0.1, "StepLR", TypeError, r"FromTorch\(scheduler='StepLR'\): expected something that makes one"),
    "argument missing": (0.1, lr_scheduler.StepLR, ValueError, "cannot be made: .*step_size"),
    "waits for a metric": (0.1, lr_scheduler.ReduceLROnPlateau, ValueError, "it waits for a metric"),
    "something else": (0.1, lambda optimizer: optimizer, TypeError, r"made SGD .*expected a torch.optim.lr_scheduler"),
    "negative": (-0.1, SCHEDULERS["steps"], ValueError, r"FromTorch\(start=-0.1\): expected >= 0"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    start, scheduler, kind, message = REFUSED[name]
    with pytest.raises(kind, match=f"(?s){message}"):
        FromTorch(start, scheduler)
