"""Clients alike in shape: what each receives of a broadcast, and whose fault an error is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch

from fedlightning.algorithms import FedAvg
from fedlightning.algorithms.base import PerClient, Point
from fedlightning.federation.client_group import for_clients
from fedlightning.oracle import ObjectiveError, Sequential
from tests.support.federations import loop_for, quadratic, rounds_of, run


@dataclass(frozen=True)
class Mixed:
    z: torch.Tensor
    own: Any


def test_of_what_differs_between_clients_each_receives_its_own():
    own = PerClient(torch.zeros(2), torch.tensor([3, 1]), torch.tensor([[3.0, 3.0], [1.0, 1.0]]))
    message = Mixed(torch.ones(2), own)
    received = for_clients(message, [1, 2, 3])
    assert received.own.tolist() == [[1.0, 1.0], [0.0, 0.0], [3.0, 3.0]]
    assert received.z is message.z
    assert message.own is own


def test_what_is_the_same_for_all_is_handed_on():
    message = Point(torch.ones(2))
    assert for_clients(message, [0, 5]) is message


def test_an_objective_that_fails_is_named_with_its_client():
    task = quadratic(FedAvg(0.05))
    original = task.objective

    def fails_later(batch):
        if task.failing:
            raise ArithmeticError("no number")
        return original(batch)

    task.objective, task.failing = fails_later, False
    loop = loop_for(task, Sequential())
    first, second = rounds_of(FedAvg(0.05), 2, size=3)
    run(loop, [first])
    task.failing = True
    client = min(member.id for member in second.cohorts[0].members)
    with pytest.raises(ObjectiveError, match=rf"objective failed for client {client}: ArithmeticError: no number"):
        run(loop, [second])
