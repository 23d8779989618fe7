"""States are in the runner for one request, and gone afterwards."""

from __future__ import annotations

from contextlib import suppress

import pytest
import torch

from fedlightning.core.per_architecture import TaskArchitectures
from fedlightning.federation.remote.client_rows import ClientRows
from fedlightning.oracle import Autocast, Sequential
from tests.support.federations import loop_for
from tests.support.situations import SITUATIONS, batches_of, seeded
from tests.support.small import regression_data


def rows_after_a_round(situation):
    make, _, options = SITUATIONS[situation]
    task = seeded(make)()
    loop = loop_for(task, Sequential(), **options)
    loop.run(batches_of(regression_data(), task, 1)[0], Autocast("cpu"))
    rows = ClientRows(loop.runner, TaskArchitectures(task))
    return loop, rows, {client: rows.of(client) for client in range(4)}


@pytest.mark.parametrize("situation", ["personal block", "local buffers", "architectures, dual"])
def test_clients_stand_at_given_states_for_a_while(situation):
    _, rows, states = rows_after_a_round(situation)
    assert all(states.values())
    for client in range(4):
        with rows.at({client: None}):
            pass  # whatever was there is taken out
    start, other = rows.of(1), states[3]  # of the same architecture, where there are several
    with suppress(KeyError), rows.at({1: other, 0: states[0]}):
        assert all(torch.equal(value, other[name]) for name, value in rows.of(1).items())
        raise KeyError
    assert all(torch.equal(value, start[name]) for name, value in rows.of(1).items())
    assert not all(torch.equal(value, other[name]) for name, value in start.items())


def test_a_client_without_a_state_has_not_been_seen():
    loop, rows, states = rows_after_a_round("personal block")
    table = loop.runner.clients.table.states
    with rows.at(dict.fromkeys(range(4))):
        pass
    with rows.at({2: states[2], 3: None}):
        assert table.has_seen([2, 3]).tolist() == [True, False]
    assert table.seen == []


def test_tables_are_known_once_clients_have_joined():
    make, _, options = SITUATIONS["architectures"]
    loop = loop_for(seeded(make)(), Sequential(), **options)
    rows = ClientRows(loop.runner, TaskArchitectures(loop.task))
    assert not rows.has_table(1)
    with rows.at({1: None}):
        pass
    _, rows, _ = rows_after_a_round("architectures")
    assert rows.has_table(1)
