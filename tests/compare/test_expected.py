"""A metric that nothing logs ends a run as early as the names are known."""

from __future__ import annotations

import pytest

from fedlightning import FederatedDataModule, federate
from fedlightning.algorithms import FedAlt, FedAvg, FedMM
from fedlightning.callbacks import History
from fedlightning.compare.expected import ExpectedMetric
from tests.support.evaluated import Own, held_out_data
from tests.support.lit import Lit, made
from tests.support.small import Line, clients, regression_data, trainer


def fitted(metric, task=None, data=None, **options):
    """The trainer of a fit that expects a metric; its validation comes after the fourth of eight rounds."""
    history = History()
    options = {"max_steps": 8, "val_check_interval": 4, "check_val_every_n_epoch": None, **options}
    fit = trainer(callbacks=[history, ExpectedMetric(metric, history)], **options)
    try:
        fit.fit(Line(FedMM(0.05)) if task is None else task, regression_data() if data is None else data)
    except ValueError as error:
        return fit.global_step, str(error)
    return fit.global_step, ""


def own():
    return {"task": Own(FedAlt(0.05)), "data": held_out_data()}


@pytest.mark.parametrize("metric", ["val_loss", "drift", "dual_norm", "train_rmse", "upload_bytes", "seconds"])
def test_what_validation_rounds_or_the_history_log_is_found(metric):
    assert fitted(metric, num_sanity_val_steps=1) == (8, "")


@pytest.mark.parametrize("metric", ["val_loss", "val_loss_std", "val_loss_p90", "val_loss_max"])
def test_what_is_computed_over_clients_is_found(metric):
    assert fitted(metric, **own(), num_sanity_val_steps=1)[0] == 8


class _InBothWays(Lit):
    def training_step(self, batch, batch_idx):
        self.log("value", 1.0 + batch_idx, on_step=True, on_epoch=True)
        return self.loss(batch)


def test_a_value_of_steps_and_epochs_is_found_by_the_name_of_steps():
    assert fitted("value_step", federate(made(_InBothWays), FedAvg), num_sanity_val_steps=1) == (8, "")


def test_a_misspelt_metric_ends_the_run_after_one_round():
    rounds, message = fitted("val_los", num_sanity_val_steps=1)
    assert rounds == 1
    assert message.startswith("metric='val_los' is not logged by validation. Did you mean 'val_loss'? Logged: ")
    assert "dual_norm" in message
    assert message.endswith("but not in Lightning's sanity check: trainer.num_sanity_val_steps=0.")


@pytest.mark.parametrize(("options", "rounds"), [({"num_sanity_val_steps": 1}, 1), ({"num_sanity_val_steps": 0}, 4)])
@pytest.mark.parametrize("metric", ["accuracy", "client_lr", "schedule"])
def test_only_metrics_are_offered_in_place_of_a_wrong_one(metric, options, rounds):
    """Traffic, time, step sizes and the axis are logged beside them."""
    refused_after, message = fitted(metric, **options)
    assert refused_after == rounds
    offered = message.partition("Logged: ")[2].partition(".")[0]
    assert set(offered.split(", ")) == {
        *("val_loss", "train_loss", "train_rmse", "drift", "clients", "left_out", "dual_norm")
    }


def test_without_a_sanity_check_the_first_validation_tells():
    rounds, message = fitted("val_los", num_sanity_val_steps=0)
    assert rounds == 4
    assert message.startswith("metric='val_los' is not logged by validation. Did you mean 'val_loss'? Logged: ")
    assert message.endswith("val_loss.")


class Several(Own):
    def validation_step(self, batch, batch_idx, dataloader_idx=0):
        super().validation_step(batch, batch_idx)


@pytest.mark.parametrize(("metric", "rounds"), [("val_loss/dataloader_idx_1", 8), ("val_loss/dataloader_idx_2", 4)])
def test_several_loaders_show_all_their_names_in_a_validation_alone(metric, rounds):
    data = FederatedDataModule.from_datasets(
        clients(), val=clients(seed=7), batch_size=4, local_steps=2, rounds_per_epoch=5, validate_train=True
    )
    assert fitted(metric, Several(FedAlt(0.05)), data, num_sanity_val_steps=1)[0] == rounds
