"""What an objective remembers in Python is found wherever it lies, before it acts."""

from __future__ import annotations

import sys
import threading
from array import array
from contextvars import ContextVar
from fractions import Fraction
from functools import partial
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from fedlightning.oracle import Sequential, Vectorized
from fedlightning.oracle.effects.fingerprint import changed, fingerprint
from tests.support.objectives_in_python import trained

LATE = 400


def late(original, batch, calls):
    return original(batch) * (2 if calls > LATE else 1)


CALLS = ContextVar("CALLS", default=0)


def in_a_context_variable(task, original, batch):
    CALLS.set(CALLS.get() + 1)
    return late(original, batch, CALLS.get())


LOCAL = threading.local()


def in_a_thread(task, original, batch):
    LOCAL.calls = getattr(LOCAL, "calls", 0) + 1
    return late(original, batch, LOCAL.calls)


class Slotted:
    __slots__ = ("calls",)

    def __init__(self):
        self.calls = 0


SLOTTED = Slotted()


def in_slots(task, original, batch):
    SLOTTED.calls += 1
    return late(original, batch, SLOTTED.calls)


NUMBERS = {"calls": np.int64(0)}


def in_a_number_of_numpy(task, original, batch):
    NUMBERS["calls"] += np.int64(1)
    return late(original, batch, NUMBERS["calls"])


ARRAY = array("q", [0])


def in_an_array(task, original, batch):
    ARRAY[0] += 1
    return late(original, batch, ARRAY[0])


BYTES = bytearray(2)


def in_bytes(task, original, batch):
    BYTES[0], BYTES[1] = (BYTES[0] + 1) % 250, BYTES[1] + (BYTES[0] == 249)
    return late(original, batch, 250 * BYTES[1] + BYTES[0])


def counted(box, value):
    box[0] += 1
    return value * (2 if box[0] > LATE else 1)


COUNTED = partial(counted, [0])


def in_the_arguments_of_a_partial(task, original, batch):
    return COUNTED(original(batch))


class Counter:
    def __init__(self):
        self.inner = {"a": [{"b": [0] * 200}]}

    def scale(self, value):
        self.inner["a"][0]["b"][150] += 1
        return value * (2 if self.inner["a"][0]["b"][150] > LATE else 1)


SCALE = Counter().scale


def deep_in_the_object_of_a_method(task, original, batch):
    return SCALE(original(batch))


BESIDE = [nn.Linear(1, 1)]


def in_a_network_beside_the_task(task, original, batch):
    BESIDE[0].calls = getattr(BESIDE[0], "calls", 0) + 1
    return late(original, batch, BESIDE[0].calls)


TENSOR = torch.zeros(())


def in_a_global_tensor(task, original, batch):
    TENSOR.add_(1)
    return original(batch) * torch.where(TENSOR > LATE, 2.0, 1.0)


elsewhere = ModuleType("elsewhere_of_the_user")
elsewhere.calls = 0


def in_another_module(task, original, batch):
    elsewhere.calls += 1
    return late(original, batch, elsewhere.calls)


PLACES = [
    in_a_context_variable,
    in_a_thread,
    in_slots,
    in_a_number_of_numpy,
    in_an_array,
    in_bytes,
    in_the_arguments_of_a_partial,
    deep_in_the_object_of_a_method,
    in_a_network_beside_the_task,
    in_a_global_tensor,
    in_another_module,
]


@pytest.mark.parametrize("change", PLACES)
def test_a_counter_is_found_wherever_it_lies_before_it_acts(change):
    _, loop, (line,) = trained(Vectorized(), lambda *arguments: change(*arguments), rounds=1)
    assert isinstance(loop.oracle, Sequential)
    assert "in Python, once for every client it is evaluated for" in line


class Task(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(2, 2)
        self.table = np.arange(6.0).reshape(2, 3)[:, ::2]
        self.fraction = SimpleNamespace(value=1)
        self.share = Fraction(1, 3)
        self.names = np.array(["a", None], dtype=object)
        self.large = torch.zeros(100_000)
        self.many = np.zeros(300_000)

    def objective(self, batch):
        return self.net(batch).sum()


def test_only_what_has_changed_differs():
    task = Task()
    before = fingerprint(task)
    assert changed(before, fingerprint(task)) is None
    task.net.weight.data.add_(1)
    assert changed(before, fingerprint(task)) is None  # parameters are the clients' own
    task.fraction.value = 2
    assert changed(before, fingerprint(task)) == "self.fraction.value"
    task.fraction.value = 1
    task.table[1, 1] = -1
    assert changed(before, fingerprint(task)) == "self.table"
    before = fingerprint(task)
    task.many[12_345] = 1
    assert changed(before, fingerprint(task)) == "self.many"


def test_libraries_are_not_searched():
    names = " ".join(fingerprint(Task()))
    assert "torch" not in names
    assert len(fingerprint(Task())) < 100
    assert sys.getsizeof(names) < 10_000
