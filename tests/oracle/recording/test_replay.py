"""A replay compiles what is used, once."""

from __future__ import annotations

from threading import Barrier, Thread

import torch

from fedlightning.oracle.recording.course import Course
from fedlightning.oracle.recording.recording import Recording


def stepped_along(recording, point, *others):
    """Take a step of 0.5 from the point, and return the results but the first."""
    with Course(point, 0.5) as course:
        return course.step(recording, others)[0]


def test_threads_that_come_to_a_program_at_once_get_the_same():
    recording = Recording(lambda x: ([torch.cat([x[:, :2] * 2, x[:, 2:] * 3], 1), x.sum(1)], None))
    x = torch.randn(4, 5)
    first, *rest = recording(x)[0]
    ready, found = Barrier(4), []

    def replay():
        ready.wait()
        own = x.clone()
        others = stepped_along(recording, own)
        found.append((recording(x)[0][0], own, others[0]))

    threads = [Thread(target=replay) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    for whole, stepped, others in found:
        assert torch.equal(whole, first)
        assert torch.equal(stepped, x - 0.5 * first)
        assert torch.equal(others, rest[0])


def test_there_are_no_steps_along_a_result_that_lies_in_the_point():
    recording = Recording(lambda x: ([torch.cat([x[:, :1], x[:, 1:] * 2], 1)], None))
    recording(torch.ones(2, 3))
    assert recording.replays
    assert not recording.can_step(torch.ones(2, 3))


def test_a_point_that_is_joined_with_inputs_takes_steps_like_any_other():
    """A class token, say, is put before the tokens of every sample; along what is joined nobody steps."""

    def function(w, x):
        tokens = torch.cat([w[:, :1], x], 1)
        return [torch.cat([tokens.sum(1, keepdim=True), w[:, 1:] * x], 1), tokens.prod(1)], None

    recording, w, x = Recording(function), torch.randn(2, 3), torch.randn(2, 2)
    recording(w, x)
    for _ in range(2):
        (expected, product), _ = function(w, x)
        stepped = w.clone()
        others = stepped_along(recording, stepped, x)
        assert torch.equal(stepped, w - 0.5 * expected)
        assert torch.equal(others[0], product)
        w = stepped
