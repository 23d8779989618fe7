"""Data sets for evaluation where some clients have none, and tasks that evaluate them."""

from __future__ import annotations

import torch
from torch.utils.data import Dataset, TensorDataset

from fedlightning import BatchedEvaluationTask, FederatedDataModule
from tests.support.small import Personal, clients


class OwnLine(Personal):
    """Evaluated one client after the other."""

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.objective(batch), batch_size=len(batch[1]))

    def test_step(self, batch, batch_idx):
        self.log("test_loss", self.objective(batch), batch_size=len(batch[1]))

    def predict_step(self, batch, batch_idx):
        return self.line(batch[0]).squeeze(1) + self.offset


class ScoredLine(BatchedEvaluationTask, Personal):
    """Evaluated side by side."""

    def predictions(self, batch):
        return self.line(batch[0]).squeeze(1) + self.offset

    def evaluate(self, stage, batch, scores):
        self.log(f"{stage}_loss", (scores - batch[1]).square().mean(), batch_size=len(scores))


class Listed(Dataset):
    """Samples one by one."""

    def __init__(self, dataset):
        self.samples = [dataset[i] for i in range(len(dataset))]

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        return self.samples[index]


EMPTY = TensorDataset(torch.zeros(0, 6), torch.zeros(0))


def with_gaps(wrap=lambda dataset: dataset, empty=EMPTY):
    """Four clients, of whom the second and the third have nothing to evaluate."""
    first, *_, last = clients(seed=7)
    held = [wrap(first), None, empty, wrap(last)]
    return FederatedDataModule.from_datasets(
        clients(), val=held, test=held, batch_size=4, local_steps=2, eval_batch_size=8, seed=1
    )
