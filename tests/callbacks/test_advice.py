"""No warning a user cannot act on; those one can act on stay."""

from __future__ import annotations

import logging
import warnings

import lightning
import pytest
import torch
from lightning.pytorch.trainer.connectors.logger_connector import result
from lightning.pytorch.utilities.warnings import PossibleUserWarning
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

from fedlightning import FederatedDataModule, FederatedLightningModule
from fedlightning.algorithms import FedAvg
from fedlightning.callbacks.advice import leave_out_advice_to_synchronise, leave_out_inapplicable_advice
from fedlightning.oracle import Vectorized


class Recurrent(FederatedLightningModule):
    def __init__(self, algorithm, **federation):
        super().__init__(algorithm, **federation)
        self.recurrent = nn.LSTM(4, 4, batch_first=True)
        self.head = nn.Linear(4, 3)

    def objective(self, batch):
        return cross_entropy(self.head(self.recurrent(batch[0])[0][:, -1]), batch[1])

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.objective(batch), batch_size=len(batch[1]))


class Silent(FederatedLightningModule):
    """Has no ``validation_step``."""

    def __init__(self, algorithm, **federation):
        super().__init__(algorithm, **federation)
        self.head = nn.Linear(4, 3)

    def objective(self, batch):
        return cross_entropy(self.head(batch[0][:, -1]), batch[1])


class Personal(Recurrent):
    personal_parameters = ("head",)


def warned(task, val):
    draw = torch.Generator().manual_seed(0)
    sets = [
        TensorDataset(torch.randn(8, 2, 4, generator=draw), torch.randint(3, (8,), generator=draw)) for _ in range(2)
    ]
    val = {"none": None, "pooled": sets[0], "by client": sets}[val]
    data = FederatedDataModule.from_datasets(train=sets, val=val, batch_size=4, local_steps=1, rounds_per_epoch=2)
    trainer = lightning.Trainer(
        max_steps=2, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False,
    )  # fmt: skip
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer.fit(task, data)
    return [str(each.message) for each in caught]


SILENT = ("LeafSpec", "across ranks is zero", "performance drop", "sync_dist=True", "manual optimization")


@pytest.fixture
def _distributed(monkeypatch):
    """What Lightning asks before it advises to synchronise."""
    monkeypatch.setattr(result, "_distributed_is_initialized", lambda: True)
    monkeypatch.setattr(result, "warning_cache", type(result.warning_cache)())


@pytest.mark.parametrize(
    ("task", "val"), [(Recurrent, "none"), (Recurrent, "pooled"), (Personal, "by client")], ids=lambda v: str(v)
)
def test_no_warning_nobody_can_act_on(task, val):
    messages = warned(task(FedAvg(lr=0.1), oracle=Vectorized()), val)
    assert not [message for message in messages if any(word in message for word in SILENT)]


@pytest.mark.parametrize("val", ["none", "pooled"])
def test_a_task_without_validation_step_hears_of_it_where_there_is_something_to_validate(val, caplog):
    with caplog.at_level(logging.INFO):
        messages = warned(Silent(FedAvg(lr=0.1), oracle=Vectorized()), val)
    assert not [message for message in messages if "val_dataloader" in message]
    said = [line for line in caplog.messages if line.startswith("Silent has no validation_step, so the fit validates")]
    assert len(said) == (val == "pooled")


@pytest.mark.usefixtures("_distributed")
def test_values_over_all_clients_need_no_synchronisation():
    messages = warned(Personal(FedAvg(lr=0.1), oracle=Vectorized()), "by client")
    assert not [message for message in messages if "sync_dist=True" in message]


@pytest.mark.usefixtures("_distributed")
def test_values_of_a_process_s_own_part_still_do():
    messages = warned(Recurrent(FedAvg(lr=0.1), oracle=Vectorized()), "pooled")
    assert [message for message in messages if "self.log('val_loss', ..., sync_dist=True)" in message]
    assert not [message for message in messages if "self.log('step'" in message]


def test_warnings_of_other_origin_stay():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        leave_out_inapplicable_advice()
        leave_out_advice_to_synchronise("val_loss")
        warnings.warn(
            "It is recommended to use `self.log('val_loss2', ..., sync_dist=True)`", PossibleUserWarning, stacklevel=1
        )
    assert len(caught) == 1
