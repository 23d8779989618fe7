"""Recordings are kept as long as they may serve, and no longer."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

from fedlightning.oracle import Vectorized
from fedlightning.oracle.recording.course import Course
from fedlightning.oracle.recording.known import MOST_KINDS, PATIENCE, KnownRecordings
from fedlightning.oracle.recording.recording import Recording, key_of
from tests.support.cohorts import conv, setting


def kind_of(x, kind=None):
    return kind, torch.get_num_threads(), key_of([x])


X = torch.ones(2)


def test_functions_of_two_kinds_are_kept_apart():
    known = KnownRecordings()
    for kind, function in {"a": lambda x: ([x + 1], None), "b": lambda x: ([x - 1], None)}.items():
        Recording(function, known=known.begin(), kind=kind)(X)
    assert len(known) == 2
    assert known.of(kind_of(X, "a")) != known.of(kind_of(X, "b"))


def test_the_kinds_used_last_are_kept():
    known, first = KnownRecordings(), torch.ones(1)
    for n in range(1, MOST_KINDS + 20):
        for each in (torch.ones(n), first):
            Recording(lambda x: ([x + 1], None), known=known.begin())(each)
    assert len(known) == MOST_KINDS
    assert known.of(kind_of(first)) is not None
    assert known.of(kind_of(torch.ones(2))) is None
    assert known.of(kind_of(torch.ones(30))) is not None


def test_what_has_been_given_up_is_forgotten_in_its_turn():
    known = KnownRecordings()
    known.give_up("a")
    for n in range(MOST_KINDS):
        assert not known.is_of_use("a")
        known.give_up(n)
    assert known.is_of_use("a")


def test_tensors_of_the_users_are_not_kept_for_long():
    """A teacher that is replaced in every round, with batches of another size: nobody would use the recording again."""
    objective, w, v, b, data = setting(conv(), (2, 8, 8))
    alive, plain = [], objective.task.loss
    for k in range(2 * PATIENCE):
        teacher = torch.ones(())
        alive.append(weakref.ref(teacher))
        objective.task.loss = lambda net, batch, teacher=teacher: plain(net, batch) * teacher
        Vectorized().evaluator(objective, 100)(w, v, b, tuple(torch.cat([leaf, leaf[:, :k]], 1) for leaf in data))
    objective.task.loss = plain
    del teacher
    gc.collect()
    assert sum(each() is not None for each in alive) <= PATIENCE + 1


def test_recordings_without_tensors_of_the_users_wait():
    known = KnownRecordings()
    Recording(lambda x: ([x + 1], None), known=known.begin())(X)
    for _ in range(3 * PATIENCE):
        known.begin()
    assert known.of(kind_of(X)) is not None


class Scaled:
    """Multiplies by a number of Python's, which may change, and counts its calls by number of clients."""

    def __init__(self):
        self.factor, self.calls = 2.0, []

    def __call__(self, x):
        self.calls.append(len(x))
        return [x * self.factor + x.square()], None

    def round(self, known, *sizes, dim=3):
        """Call it for numbers of clients, twice each, as a round does; returns those for which it was called."""
        recording, begun = Recording(self, known=known.begin()), len(self.calls)
        for size in sizes:
            for _ in range(2):
                x = torch.randn(size, dim)
                torch.testing.assert_close(recording(x)[0][0], x * self.factor + x.square())
        return self.calls[begun:]


def test_one_number_of_clients_speaks_for_those_recorded_beside_it():
    known, function = KnownRecordings(), Scaled()
    assert function.round(known, 4, 2, 3) == [4, 2, 3]
    assert function.round(known, 4, 2, 3) == [4]
    assert function.round(known, 3, 2, 1) == [3, 1]
    assert function.round(known, 1, 4) == [1]


def test_a_function_that_has_changed_is_looked_at_for_every_number_of_clients():
    known, function = KnownRecordings(), Scaled()
    function.round(known, 4, 2)
    function.factor = 3.0
    assert function.round(known, 4, 2) == [4, 4, 2, 2]  # compared, and recorded then
    assert function.round(known, 4, 2) == [4, 2]


def test_what_was_recorded_in_another_state_is_looked_at():
    known, function = KnownRecordings(), Scaled()
    function.round(known, 4)
    function.factor = 3.0
    function.round(known, 2)
    function.factor = 2.0
    assert function.round(known, 4, 2) == [4, 2, 2]


def test_what_agrees_beside_another_number_of_clients_is_known_from_then_on():
    known, function = KnownRecordings(), Scaled()
    function.round(known, 4)
    function.round(known, 2)
    assert function.round(known, 4, 2) == [4, 2]
    assert function.round(known, 4, 2) == [4]


def test_clients_of_other_shapes_speak_for_themselves():
    known, function = KnownRecordings(), Scaled()
    function.round(known, 4)
    function.round(known, 2, dim=5)
    assert function.round(known, 4) + function.round(known, 2, dim=5) == [4, 2]
    recording, begun = Recording(function, known=known.begin()), len(function.calls)
    for x in (torch.ones(4, 3), torch.ones(2, 5)):
        recording(x)
    assert function.calls[begun:] == [4, 2]


def test_a_known_number_of_clients_steps_in_place_at_once():
    known = KnownRecordings()

    def function(x):
        return [torch.cat([x[:, :2] * 2, x[:, 2:] * 3], 1)], None

    for first in (True, False):
        recording = Recording(function, known=known.begin())
        recording(torch.ones(4, 3))
        assert recording.can_step(torch.ones(2, 3)) == (not first)
        assert recording.is_replayed(torch.ones(2, 3)) is (None if first else True)
        if first:
            recording(torch.ones(2, 3))
    x = torch.ones(2, 3)
    with Course(x, 0.1) as course:
        course.step(recording, ())
    torch.testing.assert_close(x, torch.tensor([[0.8, 0.8, 0.7]]).expand(2, 3))


class Cached:
    """Multiplies by a tensor that is made anew when another one has changed, which the first call of a round sees."""

    def __init__(self, *also):
        self.base, self.also = torch.ones(3), also
        self.version, self.cache = None, None

    def __call__(self, x):
        if self.version != self.base._version:
            self.cache, self.version = self.base * 2, self.base._version
        return [x * self.cache + sum(self.also)], None


@pytest.mark.parametrize("also", [(), (torch.ones(3),)], ids=["", "with another tensor"])
@pytest.mark.parametrize("others", [[2], [2, 3, 1]])
def test_what_an_earlier_call_of_the_round_has_made_is_found_by_those_after_it(also, others):
    known, function = KnownRecordings(), Cached(*also)
    for _ in range(4):
        recording = Recording(function, known=known.begin())
        for size in [4, *others]:
            for _ in range(2):
                x = torch.randn(size, 3)
                torch.testing.assert_close(recording(x)[0][0], x * function.base * 2 + sum(also))
        function.base.mul_(3)


def test_tensors_that_all_numbers_of_clients_hold_speak_for_them():
    known, held, calls = KnownRecordings(), torch.ones(3), []

    def function(x):
        calls.append(len(x))
        return [x * held], None

    for _ in range(3):
        recording = Recording(function, known=known.begin())
        for size in (4, 2):
            recording(torch.ones(size, 3))
    assert calls == [4, 2, 4, 4]
