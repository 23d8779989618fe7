"""Modules that clients cannot train are refused, with the reason and what to do."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from lightning.pytorch import LightningModule
from torch import nn

from fedlightning import federate
from fedlightning.algorithms import FedAvg
from fedlightning.tasks.federated.requirements import HOOKS, base_of, overrides, require_trainable_by_clients
from tests.support.lit import Lit
from tests.support.paths import ROOT
from tests.support.small import Line

OTHER = """
import fedlightning, pytorch_lightning, torch
from torch import nn
from fedlightning import federate
from fedlightning.algorithms import FedAvg
from fedlightning.tasks.federated.requirements import base_of, require_trainable_by_clients
from tests.support.small import regression_data, trainer

class Other(pytorch_lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.line = nn.Linear(6, 1)

    def training_step(self, batch):
        loss = (self.line(batch[0]).squeeze(1) - batch[1]).square().mean()
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)

assert base_of(Other()) is pytorch_lightning.LightningModule
module = Other()
require_trainable_by_clients(module)
before = module.line.weight.clone()
fit = trainer(max_steps=2)
fit.fit(federate(module, FedAvg), regression_data(seed=2))
assert abs(fit.callback_metrics["loss"] - fit.callback_metrics["train_loss"]) < 1e-6
assert not torch.equal(before, module.line.weight)
print("trained")
"""


@pytest.mark.slow
def test_a_module_of_the_other_package_is_trained():
    """In a process of its own, because that package takes over the messages of ``lightning``."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-W", "ignore", "-c", OTHER]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.stdout.endswith("trained\n"), done.stderr[-2000:]


def test_modules_of_lightning_are_known():
    assert base_of(Lit()) is LightningModule
    assert base_of(nn.Linear(1, 1)) is None
    require_trainable_by_clients(Lit())


def test_overridden_methods_are_seen():
    module = Lit()
    assert overrides(module, "validation_step")
    assert not overrides(module, "on_train_start")
    assert not overrides(module, "no_such_method")
    module.on_train_start = lambda: None
    assert overrides(module, "on_train_start")


class Manual(Lit):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False


class Untrained(LightningModule):
    pass


class Loads(Lit):
    def training_step(self, dataloader_iter):
        return None


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (Lit, r"federate\(module=Lit\): expected an object of a LightningModule\.$"),
        (nn.Linear(1, 1), "module=Linear.*Write a task with the network in it, and its objective"),
        (Line(), "module=Line.*it is a federated task already"),
        (Untrained(), "Untrained has no training_step"),
        (Manual(), "Manual optimizes manually.*max_parameters"),
        (Loads(), r"Loads.training_step takes dataloader_iter.*Take \(batch, batch_idx\)"),
    ],
    ids=lambda each: type(each).__name__,
)
def test_modules_that_clients_cannot_train_are_refused(given, message):
    with pytest.raises(TypeError, match=message):
        federate(given, FedAvg)


@pytest.mark.parametrize("hook", HOOKS)
def test_hooks_without_a_meaning_are_refused_by_name(hook):
    module = type("Hooked", (Lit,), {hook: lambda self, *args, **kwargs: None})()
    with pytest.raises(TypeError, match=rf"Hooked overrides {hook}.*without_hooks=\['{hook}'\]"):
        federate(module, FedAvg)
    federate(module, FedAvg, without_hooks=[hook])


def test_an_unknown_hook_is_refused():
    with pytest.raises(ValueError, match=r"^without_hooks='backward': expected a sequence .* \('backward',\)\.$"):
        federate(Lit(), FedAvg, without_hooks="backward")
    with pytest.raises(ValueError, match="without_hooks: 'on_after_backwards' is none of the hooks"):
        federate(Lit(), FedAvg, without_hooks=["on_after_backwards"])
