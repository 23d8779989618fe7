"""Training data validated by steps that do not take the number of a data loader."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader
from torchmetrics import MeanSquaredError

from fedlightning import FederatedDataModule, federate
from fedlightning.algorithms import Ditto, FedAvg
from tests.support.lit import Lit, made
from tests.support.small import Line, clients, regression_data, trainer


class Measuring(Lit):
    def __init__(self):
        super().__init__()
        self.mse = MeanSquaredError()

    def on_validation_batch_start(self, batch, batch_idx):
        self.began = batch_idx

    def validation_step(self, batch, batch_idx):
        assert self.began == batch_idx
        x, y = batch
        self.mse(self(x), y)
        self.log("val_mse", self.mse)
        self.log_dict({"val_loss": self.loss(batch), "target": y.mean()}, batch_size=len(y))


class Short(Lit):
    def validation_step(self, batch):
        self.log("val_loss", self.loss(batch), batch_size=len(batch[1]))


def joined(sets):
    return [torch.cat(leaves) for leaves in zip(*(each.tensors for each in sets), strict=True)]


def mse(model, tensors):
    x, y = tensors
    with torch.no_grad():
        return float(F.mse_loss(model(x), y))


def test_a_module_is_measured_on_validation_and_training_data_by_name():
    task, fit = federate(made(Measuring), FedAvg), trainer(max_steps=5)
    data = regression_data(validate_train=True, eval_batch_size=5)
    fit.fit(task, data)
    in_fit = dict(fit.callback_metrics)
    fit.validate(task, data, verbose=False)
    for found in (in_fit, fit.callback_metrics):
        for prefix, tensors in (("val_", clients(seed=7)[0].tensors), ("global_train_", joined(clients()))):
            for name in ("mse", "loss"):
                assert float(found[f"{prefix}{name}"]) == pytest.approx(mse(task.module, tensors), rel=1e-5)
            target = found[f"{prefix.removeprefix('val_')}target"]
            assert float(target) == pytest.approx(float(tensors[1].mean()), rel=1e-5)
        assert not [name for name in found if "dataloader_idx" in name]


def test_a_step_that_takes_the_batch_alone_and_a_task_of_ones_own_are_measured_too():
    for task in (federate(made(Short), FedAvg), Line(dropout=0.0)):
        fit = trainer(max_steps=5)
        fit.fit(task, regression_data(validate_train=True))
        assert {"val_loss", "global_train_loss"} <= fit.callback_metrics.keys()


def test_without_validation_data_training_data_keep_their_name():
    task, fit = federate(made(Measuring), FedAvg), trainer(max_steps=5)
    data = FederatedDataModule.from_datasets(clients(), batch_size=4, rounds_per_epoch=5, validate_train=True)
    fit.fit(task, data)
    assert "global_train_loss" in fit.callback_metrics
    assert "val_loss" not in fit.callback_metrics


def test_own_and_global_models_are_told_apart_client_by_client():
    task, fit = Line(Ditto(0.05), dropout=0.0), trainer(max_steps=5)
    data = FederatedDataModule.from_datasets(
        clients(), val=clients(seed=7), batch_size=4, rounds_per_epoch=5, validate_train=True
    )
    fit.fit(task, data)
    names = {"val_loss", "val_global_loss", "local_train_loss", "global_train_loss"}
    assert {name for name in fit.callback_metrics if name.endswith("_loss")} - {"train_loss"} == names
    own = [task.personalize(i) for i in range(4)]
    expected = [each.eval().objective(part.tensors)["loss"].item() for each, part in zip(own, clients(), strict=True)]
    assert float(fit.callback_metrics["local_train_loss"]) == pytest.approx(sum(expected) / 4, rel=1e-5)


def test_values_gathered_for_the_end_of_a_validation_are_warned_of():
    class Gathering(Lit):
        def validation_step(self, batch, batch_idx):
            self.last = self.loss(batch)

        def on_validation_epoch_end(self):
            self.log("val_last", self.last)

    with pytest.warns(UserWarning, match="'val_last' is logged at the end of a validation with validate_train"):
        trainer(max_steps=5).fit(federate(made(Gathering), FedAvg), regression_data(validate_train=True))


def test_loaders_that_are_no_training_data_are_lightnings_to_number():
    task = federate(made(), FedAvg)
    trainer(max_steps=5).fit(task, regression_data(validate_train=True))
    loaders = [DataLoader(each, batch_size=4) for each in clients()[:2]]
    with pytest.raises(RuntimeError, match="no `dataloader_idx` argument"):
        trainer().validate(task, loaders, verbose=False)
