"""One client after the other: what fails is shown with the client."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from fedlightning.oracle import Auto, ObjectiveError, Sequential, Vectorized
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
