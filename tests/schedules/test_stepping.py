"""Options of optimizers over rounds, as schedulers set them."""

from __future__ import annotations

from itertools import islice

import pytest
import torch
from torch.optim import lr_scheduler

from fedlightning.schedules.stepping import Turn, options_of, options_over_rounds, put_back


def two_groups(**options):
    first, second = (torch.nn.Parameter(torch.ones(2)) for _ in range(2))
    groups = [{"params": [first]}, {"params": [second], "lr": 0.2}]
    return torch.optim.SGD(groups, lr=0.1, momentum=0.9, **options)


@pytest.mark.filterwarnings("error")
def test_each_group_and_each_scheduler_goes_at_its_own_pace():
    optimizer = two_groups()
    turns = [Turn(lr_scheduler.ExponentialLR(optimizer, 0.5), 2), Turn(lr_scheduler.ExponentialLR(optimizer, 0.1), 3)]
    table = list(islice(options_over_rounds(optimizer, turns), 5))
    for group, start in enumerate((0.1, 0.2)):
        expected = [start, start, start / 2, start / 20, start / 40]
        assert [row[group]["lr"] for row in table] == pytest.approx(expected)
        assert {row[group]["momentum"] for row in table} == {0.9}


def test_a_cycle_turns_the_momentum_as_well():
    optimizer = two_groups()
    cycle = lr_scheduler.CyclicLR(optimizer, base_lr=0.1, max_lr=0.3, step_size_up=2)
    table = list(islice(options_over_rounds(optimizer, [Turn(cycle)]), 3))
    assert [row[0]["lr"] for row in table] == pytest.approx([0.1, 0.2, 0.3])
    assert [row[0]["momentum"] for row in table] == pytest.approx([0.9, 0.85, 0.8])


def test_nothing_is_moved_and_earlier_options_come_back():
    rate = torch.tensor(0.1)
    weight = torch.nn.Parameter(torch.ones(2))
    weight.grad = torch.ones(2)
    optimizer = torch.optim.Adam([weight], lr=rate)
    before = options_of(optimizer)
    table = list(islice(options_over_rounds(optimizer, [Turn(lr_scheduler.StepLR(optimizer, 1))]), 3))
    assert [row[0]["lr"] for row in table] == pytest.approx([0.1, 0.01, 0.001])
    put_back(optimizer, before)
    assert optimizer.param_groups[0]["lr"] is rate
    assert rate.item() == pytest.approx(0.1)
    assert torch.equal(weight, torch.ones(2))
    assert not optimizer.state


def test_the_round_after_the_last_step_of_a_scheduler_fails():
    optimizer = two_groups()
    cycle = lr_scheduler.OneCycleLR(optimizer, max_lr=1.0, total_steps=3)
    rounds = options_over_rounds(optimizer, [Turn(cycle)])
    assert len(list(islice(rounds, 4))) == 4
    with pytest.raises(ValueError, match="Tried to step 4 times"):
        next(rounds)
