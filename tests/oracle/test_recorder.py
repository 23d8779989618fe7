"""What is known from another round is used again where the function does the same, and only there."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fedlightning.algorithms import FedAvg
from fedlightning.oracle import Sequential, Vectorized
from fedlightning.oracle.recording import MOST_KNOWN, Recording
from tests.support.cohorts import NETS, assert_equal_evaluations, setting
from tests.support.federations import loop_for, quadratic, rounds_of, run

HELD = torch.tensor([2.0, 3.0])


class Changing:
    """A function that reads a number, a branch and a tensor from outside."""

    def __init__(self):
        self.factor, self.negative, self.held = 2.0, False, HELD

    def __call__(self, x):
        y = x.sin() * self.factor * self.held
        return [-y if self.negative else y], "constant"


def rounds(function, count, memory, change=lambda k: None):
    """Replays of each of some rounds after the first call, whose results, and later ones, are the function's."""
    replayed = []
    for k in range(count):
        change(k)
        recording = Recording(function, memory=memory)
        for _ in range(3):
            x = torch.randn(2)
            assert torch.equal(recording(x)[0][0], function(x)[0][0])
            replayed.append(recording.is_replayed(x))
    return replayed


def known(memory):
    (found,) = memory.values()
    return found


def test_a_function_that_does_the_same_is_known_from_round_to_round():
    memory = {}
    assert rounds(Changing(), 1, memory) == [True] * 3
    _, replay = known(memory)
    assert rounds(Changing(), 2, memory) == [True] * 6
    assert known(memory)[1] is replay


CHANGES = {
    "a number": lambda function: setattr(function, "factor", 3.0),
    "a branch": lambda function: setattr(function, "negative", True),
    "a tensor of other numbers": lambda function: setattr(function, "held", HELD + 1),
    "a tensor of equal numbers": lambda function: setattr(function, "held", HELD.clone()),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_function_that_does_something_else_is_recorded_anew(change):
    """Its first call is a call, its second is recorded, and so is the first one of every later round."""
    memory, function = {}, Changing()
    replayed = rounds(function, 4, memory, lambda k: change(function) if k == 2 else None)
    assert replayed == [True] * 6 + [None] + [True] * 5
    assert known(memory) is None


def test_numbers_written_into_a_held_tensor_are_seen_without_a_new_recording():
    memory, function = {}, Changing()
    function.held = HELD.clone()
    assert rounds(function, 3, memory, lambda k: function.held.add_(k)) == [True] * 9
    assert known(memory) is not None


def test_what_draws_or_holds_numbers_of_python_is_recorded_in_every_round():
    for function in (lambda x: ([x + torch.rand(2)], None), lambda x: ([x + torch.tensor([1.0, 2.0])], None)):
        memory = {}
        for _ in range(2):
            recording = Recording(function, memory=memory)
            recording(torch.ones(2))
            assert recording.replays
        assert known(memory) is None


def test_a_function_that_begins_to_draw_draws_as_a_recorded_one_does():
    memory, draws = {}, []

    def function(x):
        return [x + torch.rand(2) if draws else x + 1], None

    Recording(function, memory=memory)(torch.ones(2))
    draws.append(1)
    found = []
    for kept in (memory, None):
        torch.manual_seed(0)
        recording = Recording(function, memory=kept)
        found.append(torch.stack([recording(torch.zeros(2))[0][0] for _ in range(3)]))
    assert torch.equal(*found)


def test_other_second_results_are_not_known():
    memory, names = {}, ["loss"]

    def function(x):
        return [x + 1], list(names)

    Recording(function, memory=memory)(torch.ones(2))
    names.append("accuracy")
    recording = Recording(function, memory=memory)
    assert [recording(torch.ones(2))[1] for _ in range(2)] == [["loss", "accuracy"]] * 2


def test_functions_of_two_kinds_are_kept_apart():
    memory = {}
    for kind, function in {"a": lambda x: ([x + 1], None), "b": lambda x: ([x - 1], None)}.items():
        Recording(function, memory=memory, kind=kind)(torch.ones(2))
    assert len(memory) == 2
    assert None not in memory.values()


def test_a_memory_does_not_grow_without_end():
    memory = {}
    recording = Recording(lambda x: ([x + 1], None), memory=memory)
    for n in range(1, MOST_KNOWN + 20):
        recording(torch.ones(n))
    assert len(memory) == MOST_KNOWN


@pytest.mark.parametrize("backward", [None, "vmap"])
@pytest.mark.parametrize("name", NETS)
def test_three_rounds_of_every_network(name, backward):
    """The second follows the first; the third does something else."""
    make, shape = NETS[name]
    objective, w, v, b, data = setting(make(), shape)
    objective.draws, inner = False, objective.task.loss
    for k in range(3):
        if k == 2:
            objective.task.loss = lambda *arguments: 1.5 * inner(*arguments)
        evaluate = Vectorized(backward=backward).evaluator(objective, 100)
        for _ in range(2):
            w = w + 0.1 * torch.randn_like(w)
            expected = Sequential().evaluator(objective, 1)(w, v, b, data)
            assert_equal_evaluations(evaluate(w, v, b, data), expected)


def test_a_network_is_known_in_the_second_round():
    net = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
    objective, *arguments = setting(net, (6,), loss=lambda net, batch: F.cross_entropy(net(batch[0]), batch[1]))
    Vectorized().evaluator(objective, 100)(*arguments)
    before = dict(objective.recorded)
    Vectorized().evaluator(objective, 100)(*arguments)
    assert objective.recorded == before
    assert all(found is not None for found in before.values())


def test_a_schedule_that_begins_late_is_seen():
    """Two rounds alike, then another factor in each; plain evaluation is the judge."""
    algorithm, points = FedAvg(0.05), []
    batches = rounds_of(algorithm, 5, local_steps=10)
    for oracle in (Vectorized(), Sequential()):
        task = quadratic(algorithm)
        task.factor, original = 1.0, task.objective
        task.objective = lambda batch, task=task, original=original: task.factor * original(batch)
        loop = loop_for(task, oracle)
        for k, batch in enumerate(batches):
            task.factor = 1.0 if k < 2 else 0.5**k
            points.append(run(loop, [batch])[0])
    for together, alone in zip(points[:5], points[5:], strict=True):
        torch.testing.assert_close(together, alone, rtol=1e-12, atol=1e-12)
