"""What is heard of a task's logging, and the names it gets."""

from __future__ import annotations

import pytest
import torch
from torchmetrics import MaxMetric, MeanSquaredError, MetricCollection
from torchmetrics.classification import BinaryAUROC, BinaryAveragePrecision, MulticlassAccuracy

from fedlightning import FederatedDataModule
from fedlightning.algorithms import FedAvg
from fedlightning.tasks.evaluation.client_evaluation import Logged, MetricRecord
from tests.support.small import Personal, clients, trainer

NAMES = {
    ("val", 0, "own", "val_loss"): "val_loss",
    ("val", 0, "global", "val_loss"): "val_global_loss",
    ("test", 0, "global", "loss"): "global_loss",
    ("val", 1, "own", "local_train_loss"): "local_train_loss",
    ("val", 1, "global", "local_train_loss"): "global_train_loss",
    ("val", 1, "own", "local_train_global_loss"): "global_train_loss",
    ("val", 1, "own", "val_loss"): "val_loss/dataloader_idx_1",
    ("val", 1, "global", "val_loss"): "global_val_loss/dataloader_idx_1",
}


@pytest.mark.parametrize(("logged", "expected"), NAMES.items())
def test_names_tell_models_and_data_apart(logged, expected):
    stage, *what = logged
    assert Logged(*what).full_name(stage) == expected


def test_numbers_are_averaged_over_the_samples_of_a_client():
    record = MetricRecord("mse", prog_bar=True)
    record.add(1.0, 3)
    record.add(torch.tensor(5.0), 1)
    record.close(7)
    record.close(8)  # logged nothing
    record.add(4.0, 2)
    record.close(2)
    found = record.values_of({7, 8, 2}, None)
    assert (found.client_ids, found.values.tolist(), found.samples.tolist()) == ([7, 2], [2.0, 4.0], [4.0, 2.0])
    assert (found.higher_is_better, found.nan_is_undefined, found.prog_bar) == (None, False, True)
    assert record.values_of({8}, None) is None
    assert record.values_of({2}, True).higher_is_better is True


def test_metrics_of_torchmetrics_are_computed_for_each_client():
    metric, record = MulticlassAccuracy(3, average="micro"), MetricRecord("mse", prog_bar=False)
    for client, right in enumerate([3, 1]):
        labels = torch.tensor([0, 1, 2, 0])
        metric.update(torch.where(torch.arange(4) < right, labels, (labels + 1) % 3), labels)
        record.add(metric, 4)
        record.close(client)
        metric.reset()
    record.close(2)  # logged nothing, which is no accuracy of 0
    found = record.values_of({0, 1, 2}, None)
    assert found.values.tolist() == [0.75, 0.25]
    assert (found.higher_is_better, found.nan_is_undefined) == (True, True)
    assert record.values_of({0}, False).higher_is_better is False  # the task knows better


class Logs(Personal):
    """Logs what a function says for every batch of a client's validation data."""

    said = None

    def __init__(self):
        super().__init__(FedAvg(0.05))
        self.most = MaxMetric()
        self.curves = MetricCollection({"auroc": BinaryAUROC(), "precision": BinaryAveragePrecision()})

    def validation_step(self, batch, batch_idx):
        x, y = batch
        type(self).said(self, self.line(x).squeeze(1) + self.offset, y)


def validated(log, batches=1):
    """The task, and values of every client after a fit of one round."""
    data = clients()
    fit = trainer(max_steps=1, val_check_interval=1, check_val_every_n_epoch=None, num_sanity_val_steps=0)
    size = 100 if batches == 1 else 6
    task = type("Logs", (Logs,), {"said": log})()
    fit.fit(task, FederatedDataModule.from_datasets(data, val=data, batch_size=4, local_steps=1, eval_batch_size=size))
    return task, data


def test_a_metric_that_is_logged_under_two_names_has_its_value_under_both():
    def log(task, predicted, y):
        task.most.update(y)
        task.log("val_most", task.most, batch_size=len(y))
        task.log("val_greatest", task.most, batch_size=len(y))

    task, data = validated(log, batches=3)
    expected = [each.tensors[1].max().item() for each in data]
    for name in ("val_most", "val_greatest"):
        assert task.client_metrics[name].tolist() == pytest.approx(expected)


def test_metrics_that_share_what_they_count_are_all_computed():
    def log(task, predicted, y):
        task.curves.update(predicted.sigmoid(), (y > 0).long())
        task.log_dict(task.curves, batch_size=len(y))

    task, data = validated(log)
    for i, each in enumerate(data):
        own = task.personalize(i)
        x, y = each.tensors
        with torch.no_grad():
            scores = (own.line(x).squeeze(1) + own.offset).sigmoid()
        assert task.client_metrics["auroc"][i].item() == pytest.approx(BinaryAUROC()(scores, (y > 0).long()).item())
        found = task.client_metrics["precision"][i].item()
        assert found == pytest.approx(BinaryAveragePrecision()(scores, (y > 0).long()).item())


@pytest.mark.parametrize(("args", "options"), [((), {"reduce_fx": "max"}), ((False, None, None, None, torch.max), {})])
def test_a_number_that_is_to_be_reduced_otherwise_than_by_its_mean_is_refused(args, options):
    with pytest.raises(ValueError, match=r"'val_most' is logged with reduce_fx=.*: over a client's batches, and over"):
        validated(lambda task, predicted, y: task.log("val_most", y.max(), *args, batch_size=len(y), **options))


def test_a_client_with_one_class_has_no_auc():
    metric, record = BinaryAUROC(), MetricRecord("auc", prog_bar=False)
    for client, labels in enumerate(([0, 1], [1, 1], [0, 0])):
        metric.update(torch.tensor([0.2, 0.7]), torch.tensor(labels))
        record.add(metric, 2)
        record.close(client)
        metric.reset()
    found = record.values_of({0, 1, 2}, None)
    assert found.values[0] == 1
    assert found.values[1:].isnan().all()
    assert found.defined.tolist() == [1.0]


def test_an_infinite_metric_is_a_result():
    metric, record = MeanSquaredError(), MetricRecord("mse", prog_bar=False)
    for client, value in enumerate((1.0, 1e30)):
        metric.update(torch.tensor([value]), torch.zeros(1))
        record.add(metric, 1)
        record.close(client)
        metric.reset()
    assert record.values_of({0, 1}, None).defined.tolist() == [1.0, torch.inf]
