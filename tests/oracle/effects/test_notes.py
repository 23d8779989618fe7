"""A note of a value tells whether it has changed in place, and puts it back."""

from __future__ import annotations

import ctypes
import gc
import itertools
import mmap
import os
import random
from argparse import Namespace
from array import array
from collections import ChainMap, Counter, OrderedDict, defaultdict, deque
from copy import deepcopy
from dataclasses import dataclass, field
from io import StringIO
from queue import Queue
from types import MappingProxyType, SimpleNamespace
from weakref import WeakKeyDictionary

import numpy as np
import pytest
import torch
from torch import nn

from fedlightning.oracle.effects.fingerprint import changed, fingerprint
from fedlightning.oracle.effects.notes import LostError, Notes, counts, differs, put_back


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


def read_only(value=None):
    value = np.zeros(3) if value is None else value
    value.flags.writeable = False
    return value


def write_once(value):
    value.flags.writeable = True
    value[0] += 1
    value.flags.writeable = False


class Key:
    pass


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
    "an array of Python's": (lambda: array("d", [0.0, 1.0]), lambda value: value.__setitem__(1, 2.0)),
    "a longer array of Python's": (lambda: array("d", [0.0, 1.0]), lambda value: value.append(0.0)),
    "bytes": (lambda: bytearray(8), lambda value: value.__setitem__(7, 1)),
    "fewer bytes": (lambda: bytearray(8), lambda value: value.pop()),
    "a generator": (lambda: random.Random(0), lambda value: value.random()),
    "a set": (lambda: {1}, lambda value: value.add(2)),
    "a defaultdict": (lambda: defaultdict(float), lambda value: value["n"]),
    "a counter": (Counter, lambda value: value.update("n")),
    "an ordered dict": (lambda: OrderedDict(a=1, b=2), lambda value: value.pop("a")),
    "the order of a dict": (lambda: {"a": 1, "b": 2}, lambda value: value.update(a=value.pop("a"))),
    "a chain of dicts": (lambda: ChainMap({"a": 1}, {"b": 2}), lambda value: value.update(b=1)),
    "a list behind a view": (lambda: MappingProxyType({"a": [1]}), lambda value: value["a"].append(1)),
    "a dict of weak keys": (lambda: WeakKeyDictionary({Schedule: 0}), lambda value: value.update({Schedule: 1})),
    "an array of objects": (lambda: np.array([{"a": 0}, None], object), lambda value: value[0].update(a=1)),
    "another object in an array": (lambda: np.array([{}, None], object), lambda value: value.__setitem__(1, 2)),
    "a memory map": (lambda: mmap.mmap(-1, 8), lambda value: value.__setitem__(3, 1)),
    "a view of memory": (lambda: memoryview(bytearray(8))[::2], lambda value: value.__setitem__(3, 1)),
    "an array of ctypes": (ctypes.c_double * 3, lambda value: value.__setitem__(1, 1.0)),
    "the mask of an array": (
        lambda: np.ma.masked_array(np.zeros(3), np.zeros(3, bool)),
        lambda value: value.mask.__setitem__(1, True),
    ),
    "an array that may be written at times": (read_only, write_once),
    "a list in an array that cannot be written": (
        lambda: read_only(np.array([[0], None], object)),
        lambda value: value[0].append(1),
    ),
    "keys that compare number by number": (
        lambda: {torch.zeros(3): 1, torch.ones(3): 2},
        lambda value: value.update({next(iter(value)): value.pop(next(iter(value)))}),
    ),
    "a file": (lambda: StringIO("text"), lambda value: value.read(1)),
    "a list in a tuple": (lambda: ([0],), lambda value: value[0].append(1)),
    "a long list": (lambda: [0] * 20_000, lambda value: value.__setitem__(15_000, 1)),
    "the last of many": (lambda: [[0] for _ in range(200)], lambda value: value[150].append(1)),
    "a large array": (lambda: np.zeros(20_000), lambda value: value.__setitem__(15_000, 1)),
    "an optimizer": (
        lambda: torch.optim.SGD([torch.zeros(1)], lr=0.1),
        lambda value: value.param_groups[0].update(lr=1),
    ),
    "a queue": (Queue, lambda value: value.put(1)),
    "an attribute that is new": (Schedule, lambda value: setattr(value, "other", 1)),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_change_in_place_is_seen_and_put_back(what):
    make, change = CHANGES[what]
    value = make()
    note = Notes().of(value)
    assert not differs(value, value, note)
    change(value)
    assert differs(value, value, note)
    assert put_back(value, note) is value
    assert not differs(value, value, note)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [((), [0, 1]), ((5, -2), [5, 3]), ((0.5, 0.25), [0.5, 0.75]), ((2**70,), [2**70, 2**70 + 1])],
)
def test_counters_are_replaced(arguments, expected):
    """Without a copy of them, which newer Pythons warn of and later ones refuse."""
    count = itertools.count(*arguments)
    note = Notes().of(count)
    next(count)
    assert differs(count, count, note)
    before = put_back(count, note)
    assert [next(before), next(before)] == expected
    assert next(put_back(count, note)) == expected[0]


def test_tensors_are_replaced():
    tensor = torch.zeros(2)
    note = Notes().of(tensor)
    tensor += 1
    assert differs(tensor, tensor, note)
    assert torch.equal(put_back(tensor, note), torch.zeros(2))


def network():
    return [nn.Sequential(nn.Linear(2, 1), nn.BatchNorm1d(1)).requires_grad_(False)]


@pytest.mark.parametrize(
    "change",
    [
        lambda nets: nets[0][0].weight.add_(1),
        lambda nets: nets[0][1].running_mean.add_(1),
        lambda nets: setattr(nets[0][1], "calls", 1),
    ],
    ids=["a parameter", "a buffer", "an attribute"],
)
def test_a_network_in_a_list_is_put_back(change):
    nets = network()
    before = deepcopy(nets[0].state_dict())
    note = Notes().of(nets)
    assert not differs(nets, nets, note)
    change(nets)
    assert differs(nets, nets, note)
    put_back(nets, note)
    for name, value in nets[0].state_dict().items():
        assert torch.equal(value, before[name])
    assert not hasattr(nets[0][1], "calls")


def test_the_task_s_own_networks_are_left_out():
    nets = network()
    note = Notes(without=[nets[0]]).of(nets)
    nets[0][0].weight.add_(1)
    assert not differs(nets, nets, note)


def test_a_cycle_ends():
    one = [0]
    one.append({"again": one})
    note = Notes().of(one)
    one[0] = 1
    assert differs(one, one, note)
    assert put_back(one, note)[0] == 0


@pytest.mark.parametrize("value", [torch.zeros(200_000), np.zeros(200_000)], ids=["a tensor", "an array"])
def test_what_is_too_large_to_be_copied_is_seen_but_lost(value):
    note, whole = Notes().of(value), Notes(whole=True).of(value)
    value += 1
    assert differs(value, value, note)
    with pytest.raises(LostError):
        put_back(value, note)
    assert put_back(value, whole).sum() == 0


def test_one_number_of_a_large_array_is_seen_where_it_is_copied():
    value = np.zeros(300_000)
    sampled, whole = Notes().of(value), Notes(whole=True).of(value)
    value[12_345] = 1
    assert not differs(value, value, sampled)
    assert differs(value, value, whole)
    assert not put_back(value, whole).any()


def test_the_environment_is_put_back(monkeypatch):
    monkeypatch.setenv("FEDLIGHTNING_CALLS", "0")
    note = Notes().of(os.environ)
    os.environ["FEDLIGHTNING_CALLS"] = "1"
    assert differs(os.environ, os.environ, note)
    put_back(os.environ, note)
    assert os.environ["FEDLIGHTNING_CALLS"] == "0"
    assert not differs(os.environ, os.environ, note)


def opened(what, tmp_path):
    if what == "map":
        return mmap.mmap(-1, 8), lambda value: (value.__setitem__(0, 1), value.close())
    if what == "view":
        return memoryview(bytearray(8)), lambda value: (value.__setitem__(0, 1), value.release())
    if what == "text":
        return StringIO("text"), lambda value: (value.read(1), value.close())
    (tmp_path / "file").write_text("text")
    file = open(tmp_path / "file")  # noqa: SIM115
    return file, lambda value: (value.read(1), value.close())


@pytest.mark.parametrize("what", ["map", "view", "text", "file"])
def test_what_is_closed_meanwhile_stays_closed(what, tmp_path):
    value, close = opened(what, tmp_path)
    note = Notes().of(value)
    close(value)
    put_back(value, note)
    assert Notes().of(value) in (None, (None, None))


def test_lines_that_are_added_to_a_log_are_no_state(tmp_path):
    with open(tmp_path / "log", "a+") as file:
        for log in (StringIO(), file):
            log.write("a line\n")
            note = Notes().of(log)
            log.write("another line\n")
            assert not differs(log, log, note)
            log.seek(0)
            note = Notes().of(log)
            log.readline()
            assert differs(log, log, note)
            put_back(log, note)
            assert log.read() == "a line\nanother line\n"


def test_addresses_are_not_written_back():
    value = (ctypes.c_char_p * 1)(b"one")
    note = Notes().of(value)
    value[0] = b"another"
    put_back(value, note)
    assert value[0] == b"another"


def test_records_with_objects_are_seen_by_what_they_refer_to():
    value = np.zeros(3, np.dtype([("a", object), ("b", "f8")]))
    note = Notes().of(value)
    assert not differs(value, value, note)
    value["b"][1] = 1
    assert differs(value, value, note)


def test_keys_of_a_weak_dict_may_die():
    keys = [Key(), Key()]
    value = WeakKeyDictionary(dict.fromkeys(keys, 0))
    note = Notes().of(value)
    value[keys[0]] = 1
    del keys[1]
    gc.collect()
    assert differs(value, value, note)
    put_back(value, note)
    assert list(value.values()) == [0]
    assert not differs(value, value, note)


def test_the_environment_is_never_empty_while_it_is_put_back(monkeypatch):
    monkeypatch.setenv("FEDLIGHTNING_CALLS", "0")
    note = Notes().of(os.environ)
    monkeypatch.setenv("FEDLIGHTNING_NEW", "0")
    os.environ["FEDLIGHTNING_CALLS"] = "1"
    deleted = []
    remove = os.environ.__class__.__delitem__
    monkeypatch.setattr(os.environ.__class__, "__delitem__", lambda self, key: (deleted.append(key), remove(self, key)))
    put_back(os.environ, note)
    assert deleted == ["FEDLIGHTNING_NEW"]


def test_memory_and_files_that_cannot_be_written_or_read_are_no_state(tmp_path):
    closed = StringIO("text")
    closed.close()
    with open(tmp_path / "log", "w") as log:
        for value in (closed, log, np.frombuffer(b"text", np.uint8), memoryview(b"text")):
            note = Notes().of(value)
            if value is log:
                log.write("a line")
            assert not differs(value, value, note)


def test_a_file_read_line_by_line_counts_as_moved_but_stays(tmp_path):
    (tmp_path / "lines").write_text("1\n2\n3\n")
    with open(tmp_path / "lines") as lines:
        next(lines)
        note = Notes().of(lines)
        assert differs(lines, lines, note)
        put_back(lines, note)
        assert next(lines) == "2\n"


def test_numbers_that_are_new_do_not_count():
    value = {"last": {}, "n": 0}
    note = Notes().of(value)
    value["last"]["loss"] = 3.0
    value["other"] = 1
    assert differs(value, value, note)
    assert not counts(value, value, note)
    value["n"] += 1
    assert counts(value, value, note)


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
