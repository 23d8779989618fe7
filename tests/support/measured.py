"""Tasks that are validated client by client, or over the samples of all clients."""

from __future__ import annotations

import warnings

import torch
from torchmetrics import MeanMetric

from fedlightning.algorithms import SCAFFOLD, Ditto, FedAPM, FedAvg
from fedlightning.oracle import Sequential
from tests.support.evaluated import Own
from tests.support.situations import NormedWearables
from tests.support.small import Line, Normed


class Measured:
    """Validation with numbers and metrics of torchmetrics, on the loss of the objective."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.spread = MeanMetric()

    def measure(self, stage, batch):
        x, y = batch
        with torch.no_grad():
            loss = self.objective(batch)
        loss = loss["loss"] if isinstance(loss, dict) else loss
        self.spread.update((y - x.sum(1)) + 0 * loss)
        self.log(f"{stage}_loss", loss, batch_size=len(y), prog_bar=True)
        self.log(f"{stage}_spread", self.spread)

    def validation_step(self, batch, batch_idx, dataloader_idx=0):
        self.measure(("val", "local_train")[dataloader_idx], batch)

    def test_step(self, batch, batch_idx):
        self.measure("test", batch)


class MeasuredLine(Measured, Line):
    pass


class MeasuredNormed(Measured, Normed):
    pass


class MeasuredWearables(Measured, NormedWearables):
    pass


class EveryClient(MeasuredNormed):
    per_client_evaluation = True


def one_by_one(make, *args, **options):
    return lambda: make(*args, oracle=Sequential(), self_check="off", **options)


TASKS = {
    "personal block": (one_by_one(Own, FedAPM(0.05)), {}),
    "personal models beside the global one": (one_by_one(MeasuredLine, Ditto(0.05)), {}),
    "personal models, on training data too": (one_by_one(MeasuredLine, Ditto(0.05)), {"validate_train": True}),
    "local buffers": (one_by_one(MeasuredNormed, FedAvg(0.05), buffers="local"), {}),
    "averaged buffers, every client": (one_by_one(EveryClient, SCAFFOLD(0.05)), {}),
    "architectures, averaged buffers": (one_by_one(MeasuredWearables, SCAFFOLD(0.05)), {}),
    "several batches a client": (one_by_one(Own, FedAPM(0.05)), {"eval_batch_size": 4}),
    "one model for all": (one_by_one(MeasuredLine, FedAvg(0.05)), {}),
    "one model for all, averaged buffers": (one_by_one(MeasuredNormed, FedAvg(0.05)), {}),
}


def quietly(run, *args, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return run(*args, **options)
