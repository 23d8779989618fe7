"""A task while clients' models are evaluated in its place: who hears what is logged, and what is put back."""

from __future__ import annotations

import pytest
import torch

from fedlightning.algorithms import FedAvg
from fedlightning.data import ClientLoader, Partition, TensorData
from tests.support.small import Personal, clients, fitted


def loader(at_once=1):
    """Validation data of two clients with three samples each."""
    samples = [tuple(leaf[:3] for leaf in part.tensors) for part in clients(2, seed=7)]
    pooled = TensorData(tuple(torch.cat(leaves) for leaves in zip(*samples, strict=True)))
    partition = Partition.of(torch.arange(6).split(3))
    return ClientLoader(pooled, partition, 10, ("own",), at_once=at_once)


def trained():
    task = Personal(FedAvg(0.05))
    fitted(task, max_steps=3)
    return task, task.run.evaluation_request("val")


def test_outside_an_evaluation_nobody_hears():
    session = Personal().evaluation_session
    assert session.evaluation is None
    assert not session.hears("val_loss", 1.0)
    assert not session.takes_over("val", None)
    with pytest.raises(RuntimeError, match="No evaluation client by client runs"):
        session.collect(4)


def test_what_a_batch_logs_is_its_client_s():
    task, request = trained()
    session = task.evaluation_session
    evaluation, data = session.begin(request), loader()
    assert session.evaluation is evaluation
    assert not session.hears("val_loss", 1.0)  # between batches the value is Lightning's
    for place, value in enumerate((2.0, 5.0)):
        evaluation.start_batch(data, place, 0)
        assert task.offset.item() == task.run.simulation.models([place])[1].item()
        assert session.hears("val_loss", value, prog_bar=True)
        evaluation.finish_batch()
        assert task.offset.item() == 0.0
    found = session.collect(4)
    assert list(found) == ["val_loss"]
    assert found["val_loss"].client_ids == [0, 1]
    assert found["val_loss"].values.tolist() == [2.0, 5.0]
    assert found["val_loss"].samples.tolist() == [3.0, 3.0]
    assert found["val_loss"].prog_bar
    assert session.evaluation is None


def test_a_batch_of_several_clients_is_taken_over():
    task, request = trained()
    task.predictions = lambda batch: batch[0].sum(1)
    task.evaluate = lambda stage, batch, predictions: task.log(f"{stage}_sum", predictions.sum())
    evaluation, data = task.evaluation_session.begin(request), loader(at_once=2)
    (batch,) = data
    evaluation.start_batch(data, 0, 0)
    assert task.evaluation_session.takes_over("val", batch)
    evaluation.finish_batch()
    assert not task.evaluation_session.takes_over("val", batch)
    found = task.evaluation_session.collect(4)["val_sum"]
    torch.testing.assert_close(found.values, batch[0].sum((1, 2)))


def test_closing_leaves_the_global_model_wherever_the_evaluation_stands():
    task, request = trained()
    evaluation = task.evaluation_session.begin(request)
    evaluation.start_batch(loader(), 1, 0)
    assert task.offset.item() != 0.0
    task.evaluation_session.close()
    assert task.offset.item() == 0.0
    assert task.evaluation_session.evaluation is None
    assert not task.evaluation_session.hears("val_loss", 1.0)


def test_an_evaluation_sees_the_global_model_it_began_with():
    task, request = trained()
    task.evaluation_session.begin(request)
    began = request.point.clone()
    task.run.simulation.server.move_to(began + 1.0)
    task.evaluation_session.show(0)
    assert torch.equal(task.line.weight.detach().flatten(), began)
    task.evaluation_session.close()
    assert torch.equal(task.line.weight.detach().flatten(), began + 1.0)
