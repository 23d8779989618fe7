"""The hooks of a module are called as they are, with its own names and its own trainer."""

from __future__ import annotations

import pytest
import torch
from lightning.pytorch import Callback, LightningModule
from lightning.pytorch.utilities.model_helpers import is_overridden

from fedlightning import federate
from fedlightning.algorithms import FedAvg
from fedlightning.callbacks import EvaluateClients
from fedlightning.oracle import Sequential
from fedlightning.tasks.federated.hooks import BESIDE, IN_PLACE
from tests.support.lit import Lit, distance, made
from tests.support.small import regression_data, trainer

TIMES = {
    "setup": 1,
    "on_fit_start": 1,
    "on_train_start": 1,
    "on_train_epoch_start": 2,
    "on_train_epoch_end": 2,
    "on_validation_start": 2,
    "on_validation_epoch_end": 2,
    "on_train_end": 1,
    "on_fit_end": 1,
    "teardown": 1,
}


class Hooked(Lit):
    """Notes the rounds done when a hook is called."""

    def __init__(self):
        super().__init__()
        self.calls = []


for hook in TIMES:
    setattr(Hooked, hook, lambda self, stage=None, hook=hook: self.calls.append((hook, self.trainer.global_step)))


def test_hooks_are_called_as_often_as_in_any_fit():
    module = made(Hooked)
    trainer(max_steps=-1, max_epochs=2, num_sanity_val_steps=0).fit(federate(module, FedAvg), regression_data())
    called = [name for name, _ in module.calls]
    assert {name: called.count(name) for name in TIMES} == TIMES
    assert dict(module.calls)["on_train_end"] == 10
    assert set(TIMES) <= {*IN_PLACE, *BESIDE}


class Noted(Callback):
    pass


class Extra(Lit):
    def configure_callbacks(self):
        return Noted()

    def on_train_epoch_end(self):
        self.log("at_end", float(self.current_epoch))

    def on_save_checkpoint(self, checkpoint):
        checkpoint["own"] = sorted(checkpoint["state_dict"])

    def on_load_checkpoint(self, checkpoint):
        self.loaded = checkpoint["own"], sorted(checkpoint["state_dict"])


def test_callbacks_logs_and_checkpoints_of_the_module_are_its_own(tmp_path):
    fit = trainer(tmp_path, max_steps=-1, max_epochs=2)
    task = federate(made(Extra), FedAvg)
    fit.fit(task, regression_data())
    assert {Noted, EvaluateClients} <= {type(callback) for callback in fit.callbacks}
    assert float(fit.callback_metrics["at_end"]) == 1
    fit.save_checkpoint(tmp_path / "end.ckpt")
    again = federate(made(Extra), FedAvg)
    trainer(tmp_path, max_epochs=3, max_steps=-1).fit(again, regression_data(), ckpt_path=tmp_path / "end.ckpt")
    names = ["body.0.bias", "body.0.weight", "head.bias", "head.weight"]
    assert again.module.loaded == (names, names)


def test_a_copy_of_the_task_calls_the_hooks_of_its_own_module():
    module = made(Extra)
    task = federate(module, FedAvg, personal_parameters=["head"])
    trainer(max_steps=5, limit_val_batches=0).fit(task, regression_data())
    copied = task.personalize(1)
    assert copied.module is not module
    assert copied.validation_step.__self__ is copied.module
    assert copied.on_train_epoch_end.args[0].__self__ is copied.module
    with torch.no_grad():
        copied.module.head.weight.zero_()
    assert distance(copied.module, module) > 0


class Unvalidated(Lit):
    validation_step = LightningModule.validation_step


def test_a_module_without_validation_is_not_validated():
    task = federate(made(Unvalidated), FedAvg)
    assert not is_overridden("validation_step", task)
    assert is_overridden("validation_step", federate(made(), FedAvg))
    fit = trainer(max_steps=5)
    fit.fit(task, regression_data())
    assert "val_loss" not in fit.callback_metrics


class Scaled(Lit):
    """Scales its batches when they have reached the device."""

    def __init__(self):
        super().__init__()
        self.largest = {}

    def on_after_batch_transfer(self, batch, dataloader_idx):
        return batch[0] / 100, batch[1]

    def loss(self, batch):
        stage = "train" if self.trainer.training else "val"
        self.largest[stage] = max(self.largest.get(stage, 0.0), float(batch[0].abs().max()))
        return super().loss(batch)


@pytest.mark.filterwarnings(
    "ignore:You have overridden `on_after_batch_transfer`"
)  # as in every fit with such a module
def test_batches_are_changed_in_training_and_in_validation():
    module = made(Scaled)
    trainer(max_steps=1, val_check_interval=1).fit(federate(module, FedAvg, oracle=Sequential()), regression_data())
    assert 0 < module.largest["train"] < 0.1
    assert 0 < module.largest["val"] < 0.1
