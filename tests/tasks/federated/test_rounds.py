"""Values of a round have the names that the module gave them."""

import csv

import pytest

from fedlightning import federate
from fedlightning.algorithms import FedAvg, FedMM
from fedlightning.callbacks import ClientValuesFile
from fedlightning.tasks.federated.rounds import named_as_logged
from tests.support.lit import Lit, made
from tests.support.small import regression_data, trainer


def test_logged_values_have_their_own_names():
    metrics = {"train_loss": 1.0, "drift": 2.0, "train_logged/accuracy": 3.0, "train_logged/train_loss": 4.0}
    assert named_as_logged(metrics) == {"train_loss": 4.0, "drift": 2.0, "accuracy": 3.0}


class Named(Lit):
    def __init__(self, name):
        super().__init__()
        self.name = name

    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        self.log(self.name, 2 * loss)
        return loss


@pytest.mark.parametrize("name", ["twice", "train_loss"])
def test_the_clients_values_have_the_names_that_loggers_have(name, tmp_path):
    path = tmp_path / "clients.csv"
    task = federate(made(Named, name=name), FedAvg(0.05))
    fit = trainer(max_steps=1, limit_val_batches=0, callbacks=[ClientValuesFile(str(path))])
    fit.fit(task, regression_data())
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert not [column for column in rows[0] if "logged/" in column]
    mean = sum(float(row[name]) for row in rows) / 4
    assert mean == pytest.approx(float(fit.callback_metrics[name]), rel=1e-6)
    last = task.rounds.last
    assert set(last.columns) == {"train_loss", name, "drift"}
    assert last.metrics == task.round_metrics


@pytest.mark.parametrize("name", ["drift", "upload", "clients", "client_lr", "dual_norm", "round_time", "client"])
def test_names_of_what_rounds_report_are_refused(name):
    task = federate(made(Named, name=name), FedMM(0.05))
    with pytest.raises(
        ValueError, match=rf"training_step logs '{name}', .* under another name, such as 'train_{name}'"
    ):
        trainer(max_steps=1, limit_val_batches=0).fit(task, regression_data())
