"""What is heard of a task's logging, and the names it gets."""

from __future__ import annotations

import pytest
import torch
from torchmetrics.classification import MulticlassAccuracy

from fedlightning.tasks.client_evaluation import Logged, MetricRecord

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


def test_metrics_of_torchmetrics_are_computed_and_reset_for_each_client():
    metric, record = MulticlassAccuracy(3, average="micro"), MetricRecord("mse", prog_bar=False)
    for client, right in enumerate([3, 1]):
        labels = torch.tensor([0, 1, 2, 0])
        metric.update(torch.where(torch.arange(4) < right, labels, (labels + 1) % 3), labels)
        record.add(metric, 4)
        record.close(client)
    found = record.values_of({0, 1}, None)
    assert found.values.tolist() == [0.75, 0.25]
    assert (found.higher_is_better, found.nan_is_undefined) == (True, True)
    assert record.values_of({0}, False).higher_is_better is False  # the task knows better
