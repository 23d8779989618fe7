"""Tasks that nodes cannot validate as they are, refused before the first round."""

from __future__ import annotations

import pytest
from lightning.pytorch import LightningModule
from torch import nn
from torch.nn import functional as F

from fedlightning import federate
from fedlightning.algorithms import FedAvg
from fedlightning.data.remote import RemoteClients
from fedlightning.tasks.checks.nodes_measure import nodes_validate
from tests.support.evaluated import held_out_data
from tests.support.lightning_nodes import lightning_nodes, server
from tests.support.small import Line, regression_data, trainer


class AtTheEnd(Line):
    def on_validation_epoch_end(self):
        self.log("val_end", 0.0)


class AtABatch(Line):
    def on_validation_batch_start(self, *args):
        self.seen = True


class Module(LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(6, 1)

    def training_step(self, batch):
        return F.mse_loss(self.net(batch[0]).squeeze(1), batch[1])

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.training_step(batch))

    def on_validation_epoch_start(self):
        self.seen = []


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (AtTheEnd, "AtTheEnd has on_validation_epoch_end: .* nodes call validation_step alone"),
        (AtABatch, "AtABatch has on_validation_batch_start"),
        (lambda: federate(Module(), FedAvg(0.1)), "Federated has on_validation_epoch_start"),
    ],
)
def test_hooks_of_validation_are_refused_before_the_first_round(make, why, tmp_path):
    task, data = server(make, carrier := lightning_nodes(make, held_out_data, tmp_path))
    with pytest.raises(TypeError, match=why):
        trainer(max_steps=2).fit(task, data)
    assert carrier.received == []
    with pytest.raises(TypeError, match=why):
        trainer().validate(task, data)
    task, data = server(make, lightning_nodes(make, held_out_data, tmp_path / "none"))
    trainer(max_steps=1, limit_val_batches=0).fit(task, data)
    task, _ = server(make, lightning_nodes(make, held_out_data, tmp_path / "own"))
    own = RemoteClients(4, rounds_per_epoch=1, val=regression_data().val_dataloader())
    trainer(max_steps=1).fit(task, own)


def test_a_limit_of_batches_is_refused(tmp_path):
    task, data = server(Line, lightning_nodes(Line, held_out_data, tmp_path))
    with pytest.raises(ValueError, match=r"Trainer\(limit_val_batches=3\): nodes measure all of their data"):
        trainer(max_steps=2, limit_val_batches=3).fit(task, data)
    fit = trainer(fast_dev_run=1)
    fit.fit(task, data)
    assert fit.callback_metrics["val_clients"] == 4


def test_whose_data_are_validated():
    assert nodes_validate(RemoteClients(4))
    assert not nodes_validate(RemoteClients(4, val=[1]))
    assert not nodes_validate(regression_data())
    assert not nodes_validate(None)
