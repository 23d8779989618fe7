"""A task that was trained, written and read as a whole, and copied."""

from __future__ import annotations

import io
from copy import deepcopy

import pytest
import torch

from fedlightning import FederatedDataModule
from fedlightning.algorithms import FIAELT, SCAFFOLD, Ditto, FedAvg, PerFedAvg
from fedlightning.oracle import Sequential, Vectorized
from tests.support.small import Line, Normed, Personal, clients, fitted, regression_data, trainer


def written_and_read(task):
    file = io.BytesIO()
    torch.save(task, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def numbers(task):
    """The global model, what clients keep, and a client's own model."""
    states, own = task.client_states, task.personalize(2).state_dict()
    kept = {} if states is None else vars(states)
    return {**task.state_dict(), **kept, **{f"client 2: {name}": tensor for name, tensor in own.items()}}


WAYS = pytest.mark.parametrize("copied", [written_and_read, deepcopy], ids=["file", "copy"])


@WAYS
@pytest.mark.parametrize(
    "task",
    [
        lambda: Line(),
        lambda: Line(SCAFFOLD(0.05), oracle=Vectorized(), dropout=0.0),
        lambda: Line(FIAELT(), oracle=Vectorized(backward="each"), dropout=0.0),
        lambda: Line(FedAvg(0.05), oracle=Sequential()),
        lambda: Line(Ditto(0.05), oracle=Vectorized()),
        lambda: Normed(),
        lambda: Personal(oracle=Vectorized()),
    ],
    ids=["auto", "SCAFFOLD", "FIAELT", "sequential", "Ditto", "BatchNorm", "personal"],
)
def test_a_trained_task_is_the_same_elsewhere(task, copied):
    task = task()
    fitted(task, regression_data(local_steps=6))
    own, other = numbers(task), numbers(copied(task))
    assert own.keys() == other.keys()
    assert all(torch.equal(own[name], other[name]) for name in own)


@WAYS
def test_another_fit_of_either_takes_the_same_rounds(copied):
    task = Line(SCAFFOLD(0.05), oracle=Vectorized(), dropout=0.0)
    fitted(task, regression_data(local_steps=6))
    other = copied(task)
    for each in (task, other):
        fitted(each, regression_data(local_steps=6, seed=5))
    assert torch.equal(other.body[0].weight, task.body[0].weight)
    assert torch.equal(other.server_state.c, task.server_state.c)


@pytest.mark.parametrize("algorithm", [FedAvg(0.05), PerFedAvg(0.05, 0.05)], ids=["FedAvg", "PerFedAvg"])
def test_a_file_of_a_task_holds_no_samples_of_clients(algorithm):
    task, file = Line(algorithm), io.BytesIO()
    fitted(task, regression_data())
    torch.save(task, file)
    assert task.head.weight.detach().numpy().tobytes() in file.getvalue()
    for samples in clients():
        assert samples.tensors[0].numpy().tobytes() not in file.getvalue()


def test_models_made_of_training_data_need_these_where_a_file_is_read():
    task = Line(PerFedAvg(0.05, 0.05), dropout=0.0)
    fitted(task, regression_data())
    own = task.personalize(2).head.weight
    assert torch.equal(deepcopy(task).personalize(2).head.weight, own)
    other = written_and_read(task)
    with pytest.raises(RuntimeError, match="training data"):
        other.personalize(2)
    each = FederatedDataModule.from_datasets(clients(), val=clients(seed=7), batch_size=4, local_steps=3, seed=1)
    trainer().validate(other, each, verbose=False)
    assert torch.equal(other.personalize(2).head.weight, own)
