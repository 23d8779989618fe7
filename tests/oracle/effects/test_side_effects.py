"""What an objective does beside computing a value is seen before it acts."""

from __future__ import annotations

import random
from collections import deque
from itertools import count
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from fedlightning.oracle import Sequential, Vectorized
from tests.support.objectives_in_python import Everywhere, trained


def in_a_list(task, original, batch):
    task.seen = [*getattr(task, "seen", []), 1]
    return original(batch) * (2 if len(task.seen) > 400 else 1)


SEEN = deque()


def in_a_deque(task, original, batch):
    SEEN.append(1)
    return original(batch) * (2 if len(SEEN) > 400 else 1)


def in_a_default(task, original, batch, seen=[]):  # noqa: B006
    seen.append(1)
    return original(batch) * (2 if len(seen) > 400 else 1)


def in_an_object(task, original, batch):
    task.schedule = getattr(task, "schedule", None) or SimpleNamespace(n=0)
    task.schedule.n += 1
    return original(batch) * (2 if task.schedule.n > 400 else 1)


def in_a_counter(task, original, batch):
    task.numbers = getattr(task, "numbers", None) or count()
    return original(batch) * (2 if next(task.numbers) > 400 else 1)


def in_a_tensor(task, original, batch):
    task.t = getattr(task, "t", torch.zeros(())) + 1
    return original(batch) * torch.where(task.t > 400, 2.0, 1.0)


def in_a_class(task, original, batch):
    Everywhere.calls += 1
    return original(batch) * (2 if Everywhere.calls > 400 else 1)


def in_a_generator(task, original, batch):
    task.draws = getattr(task, "draws", None) or random.Random(0)
    return original(batch) * (2 if task.draws.random() > 0.99 else 1)


@pytest.mark.parametrize(
    "change", [in_a_list, in_a_deque, in_a_default, in_an_object, in_a_counter, in_a_tensor, in_a_class, in_a_generator]
)
def test_state_in_python_is_seen_before_it_acts(change):
    Everywhere.calls = 0
    _, loop, (line,) = trained(Vectorized(), lambda *arguments: change(*arguments), rounds=1)
    assert isinstance(loop.oracle, Sequential)
    assert "in Python, once for every client it is evaluated for" in line


def keeps_its_mode(task, original, batch):
    task.teacher = getattr(task, "teacher", None) or nn.Linear(1, 1)
    task.teacher.eval()
    task.size, task.last = len(batch), original(batch).detach()
    return original(batch)


def test_what_is_the_same_after_every_call_is_no_state():
    _, loop, said = trained(Vectorized(), keeps_its_mode)
    assert isinstance(loop.oracle, Vectorized)
    assert said == []
