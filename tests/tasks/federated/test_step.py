"""What a training step returns and logs becomes the objective of clients."""

from __future__ import annotations

import re
from copy import deepcopy
from io import BytesIO

import pytest
import torch
from torch.utils.data import DataLoader
from torchmetrics import MeanAbsoluteError, MeanSquaredError, MetricCollection

from fedlightning import federate
from fedlightning.algorithms import FedAvg
from fedlightning.oracle import Sequential, Vectorized
from fedlightning.tasks.federated.step import LOGGED
from tests.support.lit import Lit, made
from tests.support.small import clients, regression_data, trainer


def batch():
    return clients()[0].tensors


def test_a_step_returns_its_loss_and_what_it_logs():
    module = made()
    found = federate(module, FedAvg).objective(batch())
    expected = module.loss(batch())
    assert torch.equal(found["loss"], expected)
    assert torch.equal(found[f"{LOGGED}rmse"], expected.sqrt())


class Rich(Lit):
    def training_step(self, batch):
        loss = self.loss(batch)
        self.log_dict({"loss": loss[None] + 1, "half": 0.5}, on_epoch=True)
        return {"loss": loss, "predictions": [1, 2]}


def test_dicts_of_outputs_and_of_logs_are_taken():
    fit = trainer(max_steps=1, limit_val_batches=0)
    fit.fit(federate(made(Rich), FedAvg), regression_data())
    metrics = fit.callback_metrics
    assert float(metrics["loss"]) == pytest.approx(float(metrics["train_loss"]) + 1)
    assert float(metrics["half"]) == 0.5


class Skips(Lit):
    def training_step(self, batch, batch_idx):
        return None


class WithoutLoss(Lit):
    def training_step(self, batch, batch_idx):
        return {"objective": self.loss(batch)}


class Sums(Lit):
    def training_step(self, batch, batch_idx):
        self.log("total", 1.0, reduce_fx="sum")
        return self.loss(batch)


@pytest.mark.parametrize(
    ("cls", "message"),
    [
        (Skips, r"Skips\.training_step returned NoneType; a client needs the loss"),
        (WithoutLoss, r"returned a dict without 'loss'"),
        (Sums, r"logs 'total' with reduce_fx='sum': what clients log is averaged"),
    ],
)
def test_steps_that_are_no_objective_are_refused(cls, message):
    with pytest.raises(RuntimeError, match=message):
        trainer(max_steps=1).fit(federate(made(cls), FedAvg), regression_data())


class Measured(Lit):
    def __init__(self):
        super().__init__()
        self.train_mae = MeanAbsoluteError()
        self.val_mae = MeanAbsoluteError()
        self.seen = []

    def training_step(self, batch, batch_idx):
        self.train_mae(self(batch[0]), batch[1])
        self.log("train_mae", self.train_mae)
        return self.loss(batch)

    def validation_step(self, batch, batch_idx):
        self.val_mae(self(batch[0]), batch[1])
        self.log("val_mae", self.val_mae)

    def on_train_epoch_end(self):
        self.seen.append((int(self.train_mae.total), float(self.train_mae.compute())))


def test_metrics_of_training_steps_are_logged_by_minibatch_and_gathered_over_an_epoch():
    module = made(Measured)
    fit = trainer(max_steps=-1, max_epochs=2)
    fit.fit(federate(module, FedAvg(1e-9), oracle=Sequential()), regression_data(local_steps=3))
    # five rounds of four clients with three minibatches of four samples
    assert [count for count, _ in module.seen] == [5 * 4 * 3 * 4] * 2
    sets = [data.tensors for data in clients()]
    expected = sum(float((made()(x) - y).abs().mean().detach()) for x, y in sets) / 4
    assert float(fit.callback_metrics["train_mae"]) == pytest.approx(expected, rel=0.2)
    assert "val_mae" in fit.callback_metrics


class Augments(Lit):
    def on_after_batch_transfer(self, batch, dataloader_idx):
        return batch[0] + 1, batch[1]


def test_batches_are_augmented_as_after_their_transfer():
    plain, module = made(), made(Augments)
    x, y = batch()
    assert torch.equal(federate(module, FedAvg).objective(batch())["loss"], plain.loss((x + 1, y)))


class Counts(Lit):
    def training_step(self, batch, batch_idx):
        self.log("batch_idx", float(batch_idx))
        self.log("epoch", float(self.current_epoch))
        self.log("done", float(self.global_step))
        return self.loss(batch)


def test_the_batch_index_is_the_round_in_its_epoch():
    fit = trainer(max_steps=8, limit_val_batches=0)
    fit.fit(federate(made(Counts), FedAvg), regression_data())
    assert [float(fit.callback_metrics[name]) for name in ("batch_idx", "epoch", "done")] == [2, 1, 7]


def test_a_metric_that_is_only_updated_is_refused():
    class Updated(Lit):
        def __init__(self):
            super().__init__()
            self.error = MeanAbsoluteError()

        def training_step(self, batch, batch_idx):
            self.error.update(self(batch[0]), batch[1])
            self.log("error", self.error)
            return self.loss(batch)

    with pytest.raises(ValueError, match=r"the metric 'error', which it only updates: .* on_epoch=True, .* call the m"):
        federate(made(Updated), FedAvg).objective(batch())


@pytest.mark.parametrize("oracle", [None, Sequential(), Vectorized()], ids=["auto", "one by one", "vectorised"])
def test_metrics_that_are_only_updated_have_the_value_of_an_epoch(oracle):
    class Updated(Lit):
        def __init__(self):
            super().__init__()
            self.errors = MetricCollection([MeanAbsoluteError(), MeanSquaredError()])
            self.seen = []

        def training_step(self, batch, batch_idx):
            found = self(batch[0])
            self.errors.update(found, batch[1])
            self.log_dict(self.errors, on_step=False, on_epoch=True)
            self.seen.append((found - batch[1]).detach().clone())
            return self.loss(batch)

        def on_train_epoch_end(self):
            seen = torch.cat(self.seen)
            self.expected = float(seen.abs().mean()), float(seen.square().mean())
            self.seen = []

    task, fit = federate(made(Updated), FedAvg, oracle=oracle), trainer(max_steps=6, limit_val_batches=0)
    fit.fit(task, regression_data(rounds_per_epoch=3))
    found = [float(fit.callback_metrics[name]) for name in ("MeanAbsoluteError", "MeanSquaredError")]
    assert found == pytest.approx(task.module.expected, rel=1e-5)
    assert task.round_metrics["MeanAbsoluteError"] == fit.callback_metrics["MeanAbsoluteError"]


@pytest.mark.parametrize(
    ("asked", "ask"),
    [
        ("optimizers()", lambda module: module.optimizers().param_groups[0]["lr"]),
        ("lr_schedulers()", lambda module: module.lr_schedulers().get_last_lr()[0]),
        ("trainer.optimizers", lambda module: module.trainer.optimizers[0].param_groups[0]["lr"]),
        ("trainer.optimizers", lambda module: module.trainer.lr_scheduler_configs[0].scheduler.get_last_lr()[0]),
    ],
    ids=["optimizers", "schedulers", "trainer's", "trainer's schedulers"],
)
@pytest.mark.parametrize(
    "oracle", [Sequential(), Vectorized(), Vectorized(backward="each")], ids=["plain", "all", "each"]
)
def test_the_servers_optimizer_is_not_taken_for_a_clients(asked, ask, oracle):
    class Curious(Lit):
        def training_step(self, batch, batch_idx):
            self.log("rate", ask(self))
            return self.loss(batch)

    task, fit = federate(made(Curious), FedAvg, oracle=oracle), trainer(max_steps=1, limit_val_batches=0)
    with pytest.raises(RuntimeError, match=rf"asks for self.{re.escape(asked)}, which has the server's .* client_lr"):
        fit.fit(task, regression_data())
    assert task.module.trainer is fit


def test_a_training_step_may_ask_its_trainer_for_all_else():
    class Asks(Lit):
        def training_step(self, batch, batch_idx):
            self.log("known", float(self.trainer.max_steps + self.trainer.global_step))
            return self.loss(batch)

        def on_train_epoch_end(self):
            assert self.trainer.optimizers
            assert self.optimizers().param_groups[0]["lr"] == 1.0

    task, fit = federate(made(Asks), FedAvg), trainer(max_steps=3, limit_val_batches=0)
    fit.fit(task, regression_data())
    assert fit.callback_metrics["known"] == 3.0 + 2.0
    assert task.module.trainer is fit


@pytest.mark.parametrize(("args", "options"), [((), {"reduce_fx": "sum"}), ((False, None, None, None, torch.max), {})])
def test_other_reductions_than_the_mean_are_refused(args, options):
    class Reduced(Lit):
        def training_step(self, batch, batch_idx):
            self.log("mean", 1.0, reduce_fx=torch.mean)
            self.log("other", 1.0, *args, **options)
            return self.loss(batch)

    with pytest.raises(ValueError, match="logs 'other' with reduce_fx="):
        federate(made(Reduced), FedAvg).objective(batch())


def saved_and_read(module):
    file = BytesIO()
    torch.save(module, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize("copied", [deepcopy, saved_and_read])
def test_a_copy_of_a_trained_module_has_left_the_task(copied):
    task = federate(made(), FedAvg)
    trainer(max_steps=1, limit_val_batches=0).fit(task, regression_data())
    module = copied(task.module)
    assert all(torch.equal(a, b) for a, b in zip(module.parameters(), task.module.parameters(), strict=True))
    fit = trainer(max_steps=1, limit_val_batches=0)
    loader = DataLoader(clients()[0], batch_size=4)
    fit.fit(module, loader, loader)
    assert set(fit.callback_metrics) == {"rmse"}


def test_a_copy_of_a_task_logs_what_its_own_module_does():
    task = federate(made(), FedAvg)
    trainer(max_steps=1, limit_val_batches=0).fit(task, regression_data())
    fits = [trainer(max_steps=2, limit_val_batches=0) for _ in range(2)]
    for fit, each in zip(fits, (deepcopy(task), task), strict=True):
        fit.fit(each, regression_data())
    assert fits[0].callback_metrics["rmse"] == fits[1].callback_metrics["rmse"] > 0
