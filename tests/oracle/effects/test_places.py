"""State outside a task is found where functions that the objective may call can keep it, and put back there."""

from __future__ import annotations

import math
from contextvars import ContextVar
from functools import partial

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from fedlightning.oracle.effects.fingerprint import changed, fingerprint
from fedlightning.oracle.effects.places import is_foreign, places_outside
from fedlightning.oracle.effects.side_effects import Memory, undone

COUNT = 0
TABLE = {"n": 0}
CONTEXT = ContextVar("context", default=0)
TEACHER = nn.Linear(1, 1)


class Helper:
    calls = 0

    def step(self):
        Helper.calls += 1


def by_rebinding(task):
    global COUNT
    COUNT += 1


def by_a_new_global(task):
    global LATER
    LATER = 1


def in_a_dictionary(task):
    TABLE["n"] += 1


def in_a_context_variable(task):
    CONTEXT.set(CONTEXT.get() + 1)


def in_a_network(task):
    with torch.no_grad():
        TEACHER.weight += 1


def in_a_class(task):
    Helper().step()


def in_defaults(task, memory=[0]):  # noqa: B006
    memory[0] += 1


def in_an_attribute(task):
    in_an_attribute.calls += 1


in_an_attribute.calls = 0


def in_a_closure():
    calls = 0

    def step(task):
        nonlocal calls
        calls += 1

    return step


def through_a_helper(task):
    by_rebinding(task)


WAYS = [
    by_rebinding,
    by_a_new_global,
    in_a_dictionary,
    in_a_context_variable,
    in_a_network,
    in_a_class,
    in_defaults,
    in_an_attribute,
    in_a_closure(),
    through_a_helper,
    partial(by_rebinding),
]


class Task(nn.Module):
    def __init__(self, step):
        super().__init__()
        self.net = nn.Linear(1, 1)
        self.step = step

    def objective(self, batch):
        self.step(self)
        return math.sqrt(2) * self.net(batch).sum()


@pytest.mark.parametrize("way", WAYS, ids=lambda way: getattr(way, "__name__", "a partial"))
def test_a_change_is_seen_and_put_back(way):
    task = Task(way)
    memory = Memory(task)
    assert memory.changes() == []
    with undone(task):
        task.objective(torch.zeros(1))
        assert memory.changes()
    assert memory.changes() in ([], ["global TEACHER"])  # a tensor that was put back was written into once more
    task.objective(torch.zeros(1))
    assert memory.changes()
    memory.restore()


def test_libraries_and_code_are_no_places():
    assert [place.name for place in places_outside(Task(lambda task: torch.nn.functional.relu(torch.ones(1))))] == []


class Plots(Task):
    """A task that draws figures, as many do in validation."""

    def validation_step(self, batch):
        figure, axes = plt.subplots()
        axes.bar(batch.tolist(), stats.rankdata(batch))
        plt.close(figure)


def test_functions_for_data_and_figures_are_not_gone_through():
    """They lead to thousands of places (options, colours, tables of types), none of which an objective changes."""
    assert [place.name for place in places_outside(Plots(None))] == []


@pytest.mark.parametrize("frozen", [True, False], ids=["of the user's", "of the library's"])
def test_objects_for_data_that_the_user_names_are_looked_into(frozen):
    """SciPy's distributions may draw from a generator of their own."""
    distribution = stats.norm() if frozen else stats.norm

    def draws(task):
        return distribution.rvs()

    before = distribution.random_state
    distribution.random_state = np.random.RandomState(0)
    try:
        task = Task(draws)
        memory, seen = Memory(task), fingerprint(task)
        first = draws(task)
        assert memory.changes()
        assert changed(seen, fingerprint(task)) is not None
        memory.restore()
        assert memory.changes() == []
        assert draws(task) == first
    finally:
        distribution.random_state = before


def test_a_value_is_set_and_taken_away_again():
    (place,) = (place for place in places_outside(Task(by_a_new_global)) if place.key == "LATER")
    before = place.get()
    place.put(3)
    assert place.get() == 3
    place.put(before)
    assert "LATER" not in globals()


def test_libraries_of_language_models_are_not_watched():
    """Their functions lead to thousands of places, none of which an objective changes."""
    watched = [name for name in ("transformers", "peft", "accelerate", "huggingface_hub") if not is_foreign(name)]
    assert watched == []
    assert not is_foreign("my_adapters")


def test_an_assertion_leads_nowhere():
    """Pytest rewrites it to a call of its own code, which leads to its configuration and to every test there is."""

    def asserts(task):
        assert task is not None

    assert any(name.startswith("@pytest") for name in asserts.__code__.co_names)
    assert {place.name for place in places_outside(Task(asserts))} == set()


class Memo:
    """A descriptor with state, which cannot be read from the class."""

    def __init__(self):
        self.calls = 0

    def __get__(self, instance, owner):
        if instance is None:
            raise RuntimeError("only for instances")
        return self


class Described(nn.Module):
    memo = Memo()

    def objective(self, batch):
        self.memo.calls += 1
        return batch.sum()


def test_descriptors_stay_and_their_state_is_put_back():
    task, memo = Described(), vars(Described)["memo"]
    before = fingerprint(task)
    with undone(task):
        task.objective(torch.ones(1))
        assert changed(before, fingerprint(task)) == "Described.memo.calls"
        assert Memory(task).changes() == []
        Described.memo = Memo()
    assert vars(Described)["memo"] is memo
    assert memo.calls == 0
