"""The client half: steps of clients' own numbers, and what never leaves them."""

from __future__ import annotations

import pytest
import torch

from fedlightning.algorithms import FedAvg
from fedlightning.oracle import Sequential, Vectorized
from tests.support.small import Line, Personal, clients, fitted, regression_data


def test_clients_of_unequal_size_take_their_own_numbers_of_steps():
    data = regression_data(local_steps=None, local_epochs=2, batch_size=5)
    vectorized, sequential = (Line(dropout=0.0, oracle=oracle) for oracle in (Vectorized(), Sequential()))
    sequential.load_state_dict(vectorized.state_dict())
    fitted(vectorized.double(), data, precision="64-true")
    fitted(sequential.double(), regression_data(local_steps=None, local_epochs=2, batch_size=5), precision="64-true")
    torch.testing.assert_close(vectorized.server_state.z, sequential.server_state.z, rtol=1e-12, atol=1e-12)
    steps = [len(member.index) for member in data.train_dataloader().plan.members(0, 0)]
    assert sorted(steps) == [4, 4, 5, 6]


def test_personal_block_takes_local_steps_and_never_travels():
    task = Personal(FedAvg(0.05)).double()
    weight = task.line.weight.detach()[0].clone()
    fitted(task, regression_data(batch_size=None, local_steps=3), max_steps=1, precision="64-true")
    ends = []
    for i, client in enumerate(clients()):
        x, y = (t.double() for t in client.tensors)
        w, v = weight.clone(), 0.0
        for _ in range(3):
            residual = 2 * (x @ w + v - y) / len(y)
            w, v = w - 0.05 * (x.T @ residual), v - 0.05 * residual.sum()
        ends.append(w)
        torch.testing.assert_close(task.personalize(i).offset.item(), float(v))
    torch.testing.assert_close(task.line.weight.detach()[0], torch.stack(ends).mean(0))
    assert task.offset.item() == 0.0
    assert task.traffic == (4 * 6, 4 * 6)
    with pytest.raises(IndexError, match="clients 0 to 3"):
        task.personalize(4)
    with pytest.raises(TypeError, match="float"):
        task.personalize(1.5)
