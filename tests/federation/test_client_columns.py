"""Values of single clients, of one process and of several."""

from __future__ import annotations

import torch

from fedlightning.federation.client_columns import ClientColumn, of_all_processes
from fedlightning.federation.processes import OneProcess


def column(client_ids, values, is_distribution=False):
    made = ClientColumn(is_distribution)
    made.add(client_ids, torch.tensor(values))
    return made


class TwoProcesses(OneProcess):
    """Stands beside another process, whose values are given."""

    count = 2

    def __init__(self, theirs):
        self.theirs = theirs

    def collect(self, value):
        return [value, self.theirs]


def test_values_are_gathered_in_the_order_of_answers():
    gathered = column([4, 1], [1.0, 2.0])
    gathered.add([7], torch.tensor([3.0]))
    assert (gathered.client_ids, gathered.values.tolist()) == ([4, 1, 7], [1.0, 2.0, 3.0])
    assert len(ClientColumn().values) == len(ClientColumn().counted) == 0


def test_clients_count_unless_they_were_left_out():
    gathered = column([4, 1], [1.0, 2.0])
    gathered.add([7, 8], torch.tensor([3.0, 4.0]), torch.tensor([False, True]))
    assert gathered.counted.tolist() == [True, True, False, True]


def test_columns_of_all_processes_are_joined_though_one_has_no_clients():
    mine = {"loss": column([0, 2], [1.0, 2.0], is_distribution=True)}
    assert of_all_processes(mine, OneProcess()) == mine
    both = of_all_processes(mine, TwoProcesses({"loss": ([1], torch.tensor([5.0]), torch.tensor([False]), True)}))[
        "loss"
    ]
    assert (both.client_ids, both.values.tolist(), both.is_distribution) == ([0, 2, 1], [1.0, 2.0, 5.0], True)
    assert both.counted.tolist() == [True, True, False]
    alone = of_all_processes({}, TwoProcesses({"loss": ([1], torch.tensor([5.0]), torch.tensor([True]), False)}))[
        "loss"
    ]
    assert (alone.client_ids, alone.is_distribution) == ([1], False)


def test_a_column_shows_its_clients_and_their_values():
    assert repr(ClientColumn()) == "ClientColumn({})"
    assert (
        repr(column([4, 1], [1.0, 2.123456], is_distribution=True)) == "ClientColumn(distribution of {4: 1, 1: 2.123})"
    )
    many = column(range(100), [0.5] * 100)
    assert repr(many) == "ClientColumn({0: 0.5, 1: 0.5, 2: 0.5, 3: 0.5, 4: 0.5, 5: 0.5, ... 100 clients})"
