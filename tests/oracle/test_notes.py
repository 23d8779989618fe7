"""A note of a value tells whether it has changed in place, and puts it back."""

from __future__ import annotations

import itertools
import random
from argparse import Namespace
from collections import deque
from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from fedlightning.oracle.fingerprint import changed, fingerprint
from fedlightning.oracle.notes import differs, noted, put_back


@dataclass
class Schedule:
    n: int = 0
    parts: dict = field(default_factory=lambda: {"a": [[0]]})

    def step(self):
        self.n += 1


class Slotted:
    __slots__ = ("n",)

    def __init__(self):
        self.n = 0


def step(value):
    value.n += 1


def deep(value):
    value.parts["a"][0][0] += 1


CHANGES = {
    "an object": (Schedule, step),
    "deep in an object": (Schedule, deep),
    "slots": (Slotted, step),
    "a namespace": (lambda: SimpleNamespace(n=0), step),
    "a configuration": (lambda: Namespace(n=0), step),
    "a list of lists": (lambda: [[0]], lambda value: value[0].__setitem__(0, 1)),
    "a new key": (lambda: {"a": {}}, lambda value: value["a"].setdefault("b", 1)),
    "a deque": (lambda: deque([[1]], maxlen=3), lambda value: value.append([2])),
    "an array": (lambda: np.zeros(3), lambda value: value.__iadd__(1)),
    "a generator": (lambda: random.Random(0), lambda value: value.random()),
    "a set": (lambda: {1}, lambda value: value.add(2)),
    "an attribute that is new": (Schedule, lambda value: setattr(value, "other", 1)),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_change_in_place_is_seen_and_put_back(what):
    make, change = CHANGES[what]
    value = make()
    note = noted(value)
    assert not differs(value, value, note)
    change(value)
    assert differs(value, value, note)
    assert put_back(value, note) is value
    assert not differs(value, value, note)


def test_counters_and_tensors_are_replaced():
    count = itertools.count()
    note = noted(count)
    next(count)
    assert differs(count, count, note)
    assert next(put_back(count, note)) == 0
    tensor = torch.zeros(2)
    note = noted(tensor)
    tensor += 1
    assert differs(tensor, tensor, note)
    assert torch.equal(put_back(tensor, note), torch.zeros(2))


def test_numbers_differ_by_value():
    assert not differs(2, 2, None)
    assert differs(3, 2, None)
    assert differs(2.0, 2, None)
    assert not differs(float("nan"), float("nan"), None)
    assert not differs(np.int64(3), np.int64(3), None)
    assert differs(np.int64(4), np.int64(3), None)


class Task(torch.nn.Module):
    calls = 0

    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(2, 2)
        self.configuration = Namespace(n=0)

    @staticmethod
    def count():
        STATIC["calls"] += 1

    @classmethod
    def count_itself(cls):
        cls.calls += 1

    @property
    def counted(self):
        PROPERTY["calls"] += 1
        return 0

    def objective(self, batch):
        def inner():
            INNER["calls"] += 1

        inner()
        return self.net(batch).sum()


STATIC, PROPERTY, INNER = {"calls": 0}, {"calls": 0}, {"calls": 0}


@pytest.mark.parametrize(
    "change",
    [
        lambda task: task.count(),
        lambda task: task.count_itself(),
        lambda task: task.counted,
        lambda task: task.objective(torch.zeros(2)),
        lambda task: step(task.configuration),
    ],
    ids=["staticmethod", "classmethod", "property", "nested function", "configuration"],
)
def test_state_behind_every_kind_of_method_is_found(change):
    task = Task()
    before = fingerprint(task)
    assert changed(before, fingerprint(task)) is None
    change(task)
    assert changed(before, fingerprint(task)) is not None
