"""Recordings are kept as long as they may serve, and no longer."""

from __future__ import annotations

import gc
import weakref

import torch

from fedlightning.oracle import Vectorized
from fedlightning.oracle.known import MOST_KINDS, PATIENCE, KnownRecordings
from fedlightning.oracle.recording import Recording, key_of
from tests.support.cohorts import conv, setting


def kind_of(x, kind=None):
    return kind, torch.get_num_threads(), key_of([x])


X = torch.ones(2)


def test_functions_of_two_kinds_are_kept_apart():
    known = KnownRecordings()
    for kind, function in {"a": lambda x: ([x + 1], None), "b": lambda x: ([x - 1], None)}.items():
        Recording(function, known=known, kind=kind)(X)
    assert len(known) == 2
    assert known.of(kind_of(X, "a")) != known.of(kind_of(X, "b"))


def test_the_kinds_used_last_are_kept():
    known, first = KnownRecordings(), torch.ones(1)
    for n in range(1, MOST_KINDS + 20):
        for each in (torch.ones(n), first):
            Recording(lambda x: ([x + 1], None), known=known)(each)
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
    Recording(lambda x: ([x + 1], None), known=known)(X)
    for _ in range(3 * PATIENCE):
        known.begin()
    assert known.of(kind_of(X)) is not None
