"""Fits whose results must not depend on the number of processes, and one of two processes that share them.

``python -m tests.support.shared_fits FOLDER`` starts the other one, as Lightning does. Both then carry out all runs of
:mod:`tests.support.shared_runs`, too, because a process takes longer to start than to run, and leave what came of
everything in ``FOLDER``.
"""

from __future__ import annotations

import fedlightning  # noqa: F401  # before lightning, which imports torchvision

# isort: split
import atexit
import sys

import torch
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torchmetrics import MeanSquaredError, SumMetric
from torchmetrics.classification import BinaryAUROC, MulticlassAccuracy

from fedlightning import FederatedDataModule
from fedlightning.algorithms import FIAELT, SCAFFOLD, FedAvg, FedMM, FedPD, FedSkip
from fedlightning.callbacks import ClientValuesFile
from fedlightning.core.errors import UsageError
from fedlightning.core.serialisation import to_config
from fedlightning.federation.processes import DistributedProcesses, OneProcess
from fedlightning.local import SVRG, LocalSteps
from fedlightning.models import PerArchitecture
from fedlightning.oracle import Sequential, Vectorized
from fedlightning.participation import Uniform
from fedlightning.schedules import Exponential
from tests.support import shared_runs
from tests.support.evaluated import Own, held_out_data
from tests.support.situations import CHANNEL
from tests.support.small import Line, Normed, Personal, clients, regression_data, trainer


class Varied(Line):
    personal_parameters = ("own",)

    def __init__(self, algorithm):
        super().__init__(algorithm, dropout=0.0)
        parts = {"wide": torch.nn.Linear(6, 1), "none": torch.nn.Identity(), "bias": torch.nn.Linear(6, 1, False)}
        self.own = PerArchitecture(parts, ["wide", "bias", "none", "wide"])

    def objective(self, batch):
        x, y = batch
        return {"loss": super().objective(batch)["loss"] + (self.own(x)[:, 0] - y).square().mean()}


class Uneven(Line):
    """In the third round the second process cannot compute its clients side by side."""

    def __init__(self):
        super().__init__(SCAFFOLD(0.05), dropout=0.0, oracle=Vectorized(chunk_size=4))
        self.oracles = []

    def objective(self, batch):
        loss = super().objective(batch)["loss"]
        fails = self.trainer.global_rank == 1 and self.trainer.global_step == 2
        return {"loss": loss * (2 if fails and loss.tolist() == 0 else 1)}

    def on_train_batch_end(self, *_):
        self.oracles.append(type(self.run.simulation.runner.oracle_selection.oracle).__name__)


class Evaluated(Normed):
    """Every client has batch statistics of its own, and metrics of torchmetrics."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.metrics = nn.ModuleDict({"accuracy": MulticlassAccuracy(2, average="micro"), "error": MeanSquaredError()})
        self.area = BinaryAUROC()

    def validation_step(self, batch, batch_idx):
        x, y = batch
        logits, labels = self.net(x), (y > 0).long()
        self.log("val_loss", self.objective(batch), batch_size=len(y))
        self.metrics["accuracy"](logits, labels)  # called, which another metric takes for a wish to join processes
        self.metrics["error"].update(logits[:, 1], y)
        self.area(logits.softmax(1)[:, 1], labels)
        self.log_dict(
            {"val_accuracy": self.metrics["accuracy"], "val_error": self.metrics["error"], "val_area": self.area}
        )


class Pooled(Line):
    """Validates pooled data, and logs in the ways there are."""

    def __init__(self):
        super().__init__(FedAvg(0.05), dropout=0.0)
        self.error = MeanSquaredError()
        self.count = SumMetric()

    def validation_step(self, batch, batch_idx):
        x, y = batch
        loss = self.objective(batch)["loss"]
        self.error(self.head(self.body(x)).squeeze(1), y)
        self.count.update(len(y))
        self.log_dict({"val_error": self.error, "val_count": self.count}, batch_size=len(y))
        self.log("val_loss", loss, batch_size=len(y))
        self.log("val_joined", loss, batch_size=len(y), sync_dist=True)
        self.log("val_sum", loss, reduce_fx="sum", sync_dist=True)

    test_step = validation_step


class Dual(Own):
    """Dual variables and metrics of every client, without a personal part."""

    personal_parameters = ()
    per_client_evaluation = True


TASKS = {
    "fedmm": lambda: Line(FedMM(0.05, mu=1.0), dropout=0.0),
    "personal": lambda: Personal(SCAFFOLD(0.05)),
    "architectures": lambda: Varied(SCAFFOLD(0.05)),
    "fiaelt": lambda: Line(FIAELT(beta=5.0, solver=SVRG(inner_steps=6, epochs=2)), dropout=0.0),
    "fed_pd": lambda: Line(FedPD(eta=0.5, p=0.5, solver=LocalSteps(lr=0.05)), dropout=0.0),
    "fed_skip": lambda: Line(FedSkip(lr=0.05, period=3), dropout=0.0),
    "schedule": lambda: Line(
        FIAELT(beta=Exponential(5.0, 1.1), solver=SVRG(lr=Exponential(0.02, 0.9), inner_steps=6, epochs=2)), dropout=0.0
    ),
    "channel": lambda: Line(FedAvg(0.05), dropout=0.0, channel=CHANNEL),  # memory alone makes clients stay
    "uneven": Uneven,
}
"""By name, what makes the tasks of the fits."""


def fit_all(devices, folder):
    """Fit every task with one or two processes, and leave what came of it in the folder."""
    strategy = {"devices": devices, "strategy": "ddp" if devices > 1 else "auto", "precision": "64-true"}
    for name, make in TASKS.items():
        torch.manual_seed(0)
        fit = trainer(None, **strategy)
        task = make()
        fit.fit(task, regression_data(participation=Uniform(3)))
        fit.save_checkpoint(f"{folder}/{name}.ckpt")
    torch.manual_seed(0)
    options = {"batch_size": 4, "rounds_per_epoch": 2, "seed": 1}
    data = FederatedDataModule.from_datasets(clients(5), val=clients(5, seed=7), **options)
    evaluated = Evaluated(buffers="local")
    trainer(None, max_steps=4, **strategy).fit(evaluated, data)
    torch.manual_seed(0)
    pooled = trainer(None, max_steps=4, **strategy)
    (held_out,) = clients(1, (23,), seed=7)
    pooled.fit(Pooled(), FederatedDataModule.from_datasets(clients(), val=held_out, eval_batch_size=5, **options))
    torch.manual_seed(0)
    values = {"callbacks": [ClientValuesFile()], "logger": CSVLogger(folder, name="", version="")}
    fit = trainer(None, max_steps=4, log_every_n_steps=1, **values, **strategy)
    fit.fit(Dual(FedMM(0.05)), held_out_data())
    processes = DistributedProcesses() if devices > 1 else OneProcess()
    choice = Sequential() if fit.global_rank else Vectorized(chunk_size=3)
    left = {
        "evaluated": evaluated.client_metrics,
        "pooled": {name: value for name, value in pooled.callback_metrics.items() if name.startswith("val_")},
        "oracles": task.oracles,
        "agreed": to_config(processes.agree(choice)),
    }
    if devices > 1:
        try:
            trainer(None, max_steps=1).fit(Line(), regression_data())
        except UsageError as error:
            left["alone"] = str(error)
    torch.save(left, f"{folder}/left-{fit.global_rank}.pt")


def main():
    torch.set_num_threads(1)
    rank, folder = [], sys.argv[1]
    atexit.register(say_whether_connected, rank, folder)  # first, so that it is called last
    fit_all(shared_runs.COUNT, folder)
    processes = DistributedProcesses()
    rank.append(processes.rank)
    torch.save({name: run(processes) for name, run in shared_runs.RUNS.items()}, f"{folder}/runs-{processes.rank}.pt")


def say_whether_connected(rank, folder):
    torch.save(torch.distributed.is_initialized(), f"{folder}/connected-{rank[0]}.pt")


if __name__ == "__main__":
    main()
