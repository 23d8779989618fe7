"""Scores of many clients side by side are those of each alone, or are refused."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedlightning.core.parameter_space import ParameterSpace, read
from fedlightning.oracle.predictions import ClientPredictions, NotBatchableError

S, B = 3, 5


class Scorer(nn.Module):
    def __init__(self, change):
        super().__init__()
        self.net = nn.Linear(4, 2)
        self.calls = 0
        self.change = change

    def predictions(self, batch):
        return self.change(self, self.net(batch[0]))


def scored(change):
    task = Scorer(change).double()
    space = ParameterSpace(task)
    w = read(space.shared, task) + torch.randn(S, space.shared.dim, dtype=torch.float64)
    x = torch.randn(S, B, 4, dtype=torch.float64)
    predictions = ClientPredictions(task, space)
    return predictions(w, w.new_empty(S, 0), None, (x,)), space.shared.views(w), x


def test_scores_are_each_clients_own():
    predictions, views, x = scored(lambda task, y: y.tanh())
    for i in range(S):
        expected = (x[i] @ views["net.weight"][i].T + views["net.bias"][i]).tanh()
        torch.testing.assert_close(predictions[i], expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_scores_of_recurrent_layers_are_each_clients_own(kind, dtype):
    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = kind(4, 3, batch_first=True)

        def predictions(self, batch):
            return self.rnn(batch[0])[0][:, -1]

    task = Recurrent().to(dtype)
    space = ParameterSpace(task)
    w = read(space.shared, task) + torch.randn(S, space.shared.dim, dtype=dtype)
    x = torch.randn(S, B, 6, 4, dtype=dtype)
    found = ClientPredictions(task, space)(w, w.new_empty(S, 0), None, (x,))
    for i in range(S):
        own = {name: view[i] for name, view in space.shared.views(w).items()}
        alone, _ = torch.func.functional_call(task.rnn, {k.removeprefix("rnn."): v for k, v in own.items()}, x[i])
        torch.testing.assert_close(found[i], alone[:, -1])


def centred(task, y):
    return y - y.mean(0)


class Everywhere:
    calls = 0


def counts_elsewhere(task, y):
    Everywhere.calls += 1
    return y * Everywhere.calls


@pytest.mark.parametrize("change", [centred, counts_elsewhere])
def test_scores_that_depend_on_more_than_the_sample_are_refused(change):
    with pytest.raises(NotBatchableError, match="client 1 of the first batch differ from its own alone"):
        scored(change)


def test_the_comparison_leaves_no_trace():
    predictions, _, _ = scored(lambda task, y: (setattr(task, "calls", task.calls + 1), y)[1])
    assert predictions.shape == (S, B, 2)
