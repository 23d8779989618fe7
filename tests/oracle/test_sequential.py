"""One client after the other: what fails is shown with the client."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from fedlightning.oracle import Auto, Autocast, ObjectiveError, Sequential, Vectorized
from tests.support.cohorts import Swapping, conv, logs_a_weight, setting, stepped
from tests.support.objectives_in_python import STEPS, draws_in_python, trained


def test_what_fails_one_by_one_is_shown_with_the_client():
    def fails(task, original, batch):
        if batch[0] == 3:  # a client's batch is its number
            raise TypeError("three is too many")
        return original(batch)

    for oracle in (Sequential(), Vectorized(), Auto()):
        with pytest.raises(
            ObjectiveError, match="objective failed for client 3: TypeError: three is too many"
        ) as error:
            trained(oracle, fails)
        assert isinstance(error.value.__cause__, TypeError)


def test_what_begins_to_draw_in_python_later_draws_by_seed_round_and_client():
    """The global generators, which each run finds elsewhere, have no say and go on from where they were."""

    def draws_later(task, original, batch):
        task.calls = getattr(task, "calls", 0) + 1
        return (draws_in_python if task.calls > 8 * STEPS else plain)(task, original, batch)

    ends = []
    for seed in (0, 99):
        random.seed(seed)
        np.random.seed(seed)
        before = random.getstate(), np.random.get_state()[1].tolist()
        ends.append(trained(Sequential(), draws_later)[0])
        assert (random.getstate(), np.random.get_state()[1].tolist()) == before
    assert torch.equal(*ends)
    assert not torch.equal(ends[0], trained(Sequential(), plain)[0])


def plain(task, original, batch):
    return original(batch)


def test_a_logged_value_that_lies_in_the_point_is_that_from_before_the_step():
    objective, w, v, b, data = setting(conv(), (2, 8, 8), loss=logs_a_weight)
    evaluate, point = Sequential().evaluator(objective, 1), w.clone()
    expected = evaluate(w, v, b, data)
    result = stepped(evaluate, point, v, b, data, "both", None, 0.3)
    assert torch.equal(point, w.clone().sub_(expected.g, alpha=0.3))
    assert torch.equal(result.scalars["first"], expected.scalars["first"])
    assert not torch.equal(evaluate(point, v, b, data).scalars["first"], expected.scalars["first"])


def test_gradients_that_lie_in_the_point_are_those_from_before_the_step():
    """Otherwise the second weight would move along the first one's new value."""
    objective, w, v, b, data = setting(Swapping(), (2,), loss=lambda net, batch: net(batch[0]))
    evaluate, point = Sequential().evaluator(objective, 1), w.clone()
    stepped(evaluate, point, v, b, data, "both", None, 0.3)
    assert torch.equal(point, w.clone().sub_(evaluate(w, v, b, data).g, alpha=0.3))


def test_scaled_gradients_are_not_stepped_along():
    objective, w, v, b, data = setting(conv(), (2, 8, 8))
    objective.autocast = Autocast("cpu", scale=1024.0)
    evaluate, before = Sequential().evaluator(objective, 1), w.clone()
    assert stepped(evaluate, w, v, b, data, "both", None, 0.3) is None
    assert torch.equal(w, before)
