"""Pooled data in every one of several processes: all samples once, and no metric joined with those of the others."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from lightning.pytorch.strategies import DDPStrategy
from torch.utils.data import DistributedSampler
from torchmetrics import SumMetric

from fedlightning.callbacks.every_process import EvaluateInEveryProcess
from fedlightning.data import Partition
from fedlightning.data.evaluation import ClientLoader, pooled_loader
from fedlightning.data.evaluation_loaders import EvaluationLoaders
from tests.support.small import Line, clients, regression_data, trainer
from tests.support.with_gaps import Listed


@pytest.mark.parametrize("kind", [lambda data: data, Listed])
def test_every_process_has_all_samples_in_their_order(kind):
    (data,) = clients(1, (23,), seed=7)
    loader = pooled_loader(kind(data), 5, 0, in_every_process=True)
    assert loader.in_every_process
    assert isinstance(loader.sampler, DistributedSampler), "Lightning would put one in that divides and repeats"
    found = [batch[0] for batch in loader]
    assert [len(x) for x in found] == [5, 5, 5, 5, 3]
    torch.testing.assert_close(torch.cat(found), data.tensors[0])


def loaders(count):
    return EvaluationLoaders(regression_data().federation, 5, 0, task=Line(), rank=0, num_processes=count)


def test_evaluations_are_whole_and_predictions_divided():
    assert not loaders(1).val().in_every_process
    assert loaders(2).val().in_every_process
    assert loaders(2).test().in_every_process
    assert not loaders(2).predict().in_every_process
    with pytest.raises(ValueError, match=r"are 3 batches, fewer than the 4 processes that divide them\. Use fewer"):
        loaders(4).predict()


class Counts(Line):
    def __init__(self):
        super().__init__()
        self.count = SumMetric()

    def validation_step(self, batch, batch_idx):
        self.seen = self.evaluation_session.is_in_every_process, self.count.distributed_available_fn()
        self.log("val_sum", 1.0, reduce_fx="sum", sync_dist=True)


def test_metrics_are_of_this_process_until_the_evaluation_ends(monkeypatch):
    task, data = Counts(), regression_data()
    for whole in (True, False):
        task.count.distributed_available_fn = lambda: True
        run = trainer()
        monkeypatch.setattr(data, "val_dataloader", loaders(2 if whole else 1).val)
        run.validate(task, data, verbose=False)
        assert task.seen == (whole, False), "a Trainer with one process asks no other, whatever runs beside it"
        assert task.count.distributed_available_fn()
        assert not task.evaluation_session.is_in_every_process


def test_an_evaluation_that_is_cut_short_ends_it_too(monkeypatch):
    task, data = Counts(), regression_data()
    task.count.distributed_available_fn = lambda: True
    monkeypatch.setattr(data, "val_dataloader", loaders(2).val)
    monkeypatch.setattr(task, "validation_step", lambda batch, batch_idx: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        trainer().validate(task, data, verbose=False)
    assert task.count.distributed_available_fn()
    assert not task.evaluation_session.is_in_every_process


def test_clients_beside_pooled_data_leave_these_whole():
    task, by_client = Counts(), ClientLoader(clients()[0], Partition.of([[0, 1], [2]]), 2)
    run = SimpleNamespace(testing=False, world_size=2, val_dataloaders=[by_client, loaders(2).val()])
    callback = EvaluateInEveryProcess()
    callback.on_validation_start(run, task)
    assert task.evaluation_session.is_in_every_process
    callback.on_validation_end(run, task)
    run.val_dataloaders = [by_client]
    callback.on_validation_start(run, task)
    assert not task.evaluation_session.is_in_every_process, "what clients measure is joined by the server"


def test_it_rests_where_lightning_divides_the_data():
    run = trainer(accelerator="cpu", devices=2, strategy=DDPStrategy())
    run.state.fn = "validate"
    task = Counts()
    task.count.distributed_available_fn = lambda: True
    EvaluateInEveryProcess().on_validation_start(run, task)
    assert task.count.distributed_available_fn()
