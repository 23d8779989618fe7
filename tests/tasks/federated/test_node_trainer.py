"""Unchanged modules over nodes: steps, epochs and what is logged are those of a simulation."""

from __future__ import annotations

import csv
from copy import deepcopy

import pytest
import torch
from lightning.pytorch.loggers import CSVLogger
from torchmetrics import MeanAbsoluteError

from fedlightning import federate
from fedlightning.algorithms import FedAvg
from fedlightning.oracle import Auto, Sequential
from fedlightning.tasks.federated.node_trainer import NodeTrainer
from tests.support.lightning_nodes import lightning_nodes, server
from tests.support.lit import Lit, made
from tests.support.small import regression_data, trainer

ROUNDS = {"batch_size": 4, "local_steps": 3, "rounds_per_epoch": 3, "seed": 1}


class Counting(Lit):
    """Weighs its loss by the round's number in its epoch, by epoch and by round, and logs all three."""

    def training_step(self, batch, batch_idx):
        for name, number in {"index": batch_idx, "epoch": self.current_epoch, "round": self.global_step}.items():
            self.log(f"the_{name}", float(number))
        self.log("both", float(batch_idx), on_epoch=True)
        self.log("mean", float(self.global_step), on_step=False, on_epoch=True)
        return self.loss(batch) * (1 + batch_idx + 10 * self.current_epoch + 0.1 * self.global_step) / 30


def momentum(parameters):
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.8)


def rows(folder):
    with (folder / "metrics.csv").open(newline="") as file:
        skipped = ("upload", "download", "round_time", "skipped")
        return [
            {name: cell for name, cell in row.items() if not any(part in name for part in skipped)}
            for row in csv.DictReader(file)
        ]


def fit(task, data, folder, **options):
    logger = CSVLogger(folder, name="", version="")
    options = {"max_steps": 7, "limit_val_batches": 0, "log_every_n_steps": 1, "logger": logger, **options}
    running = trainer(folder, **options)
    running.fit(task, data)
    return rows(folder)


@pytest.mark.filterwarnings("ignore:You defined a `validation_step`")
@pytest.mark.parametrize("oracle", [Sequential, Auto])
@pytest.mark.parametrize("limit", [1.0, 2])
def test_batch_idx_epoch_and_log_options_are_those_of_the_simulation(oracle, limit, tmp_path):
    def make():
        return federate(made(Counting, optimizer=momentum), FedAvg, oracle=oracle(), self_check="off")

    here = fit(make(), regression_data(**ROUNDS), tmp_path / "here", limit_train_batches=limit)
    carrier = lightning_nodes(make, lambda: regression_data(**ROUNDS), tmp_path / "nodes")
    there, data = server(make, carrier, rounds_per_epoch=3)
    found = fit(there, data, tmp_path / "there", limit_train_batches=limit)
    assert [row.keys() for row in found] == [row.keys() for row in here]
    for mine, theirs in zip(here, found, strict=True):
        for name, cell in mine.items():
            assert (cell == "") == (theirs[name] == ""), name
            assert cell == "" or float(theirs[name]) == pytest.approx(float(cell), rel=1e-5), name
    length = 3 if limit == 1.0 else 2
    assert [float(row["the_index"]) for row in found if row["the_index"]] == [index % length for index in range(7)]
    assert [float(row["the_epoch"]) for row in found if row["the_epoch"]] == [index // length for index in range(7)]
    assert [float(row["the_round"]) for row in found if row["the_round"]] == list(range(7))
    assert float(next(row["mean"] for row in found if row["mean"])) == (length - 1) / 2


class Metrics(Lit):
    def __init__(self, **options):
        super().__init__(optimizer=momentum)
        self.mae, self.options = MeanAbsoluteError(), options

    def training_step(self, batch, batch_idx):
        self.mae(self(batch[0]), batch[1])
        self.log("mae", self.mae, **self.options)
        return self.loss(batch)


@pytest.mark.filterwarnings("ignore:You defined a `validation_step`")
def test_a_metric_over_an_epoch_is_refused_and_over_a_round_is_a_mean(tmp_path):
    def make(**options):
        return lambda: federate(made(Metrics, **options), FedAvg, oracle=Sequential(), self_check="off")

    for name, options in (("round", {}), ("epoch", {"on_epoch": True})):
        carrier = lightning_nodes(make(**options), lambda: regression_data(**ROUNDS), tmp_path / name)
        there, data = server(make(**options), carrier, rounds_per_epoch=3)
        running = trainer(max_steps=1, limit_val_batches=0)
        if options:
            with pytest.raises(ValueError, match=r"logs the metric 'mae' with on_epoch=True: .* which are at nodes"):
                running.fit(there, data)
        else:
            running.fit(there, data)
            assert running.callback_metrics["mae"] > 0


def scheduled(parameters):
    optimizer = momentum(parameters)
    return {"optimizer": optimizer, "lr_scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 2)}


@pytest.mark.filterwarnings("ignore:You defined a `validation_step`")
def test_what_only_the_trainer_knows_is_refused_at_server_and_node(tmp_path):
    def make(optimizer=momentum):
        return federate(made(Lit, optimizer=optimizer), FedAvg)

    carrier = lightning_nodes(make, lambda: regression_data(**ROUNDS), tmp_path)
    there, data = server(lambda: make(scheduled), carrier)
    with pytest.raises(ValueError, match=r"Lit.configure_optimizers returns a scheduler.*FedAvg\(lr=Milestones"):
        trainer(max_steps=1, limit_val_batches=0).fit(there, data)
    with pytest.raises(ValueError, match="returns a scheduler"):
        make(scheduled).configure_at_node()
    there, data = server(make, carrier)
    with pytest.raises(
        ValueError, match=r"Trainer\(gradient_clip_val=0.5\): nodes have no Trainer.*federate\(gradient"
    ):
        trainer(max_steps=1, limit_val_batches=0, gradient_clip_val=0.5).fit(there, data)
    with pytest.raises(RuntimeError, match=r"call task.configure_at_node\(\)"):
        make().moment = NodeTrainer(None).moment
    stand_in = NodeTrainer(None)
    assert (stand_in.current_epoch, stand_in.global_step, stand_in.training) == (0, 0, False)
    with pytest.raises(AttributeError, match=r"self.trainer.max_epochs: a node has no Trainer"):
        _ = stand_in.max_epochs


def test_a_copy_at_a_node_gathers_what_its_own_module_logs():
    task = federate(made(), FedAvg)
    copied = deepcopy(task)
    copied.configure_at_node()
    batch = torch.randn(4, 6), torch.randn(4)
    assert copied.objective(batch).keys() == {"loss", "logged/rmse"}
    assert set(copied.log_options) == {"rmse"}
    assert not task.log_options
