"""FedAvg of fedlightning: the whole Trainer, with its data loader, TensorBoard and the progress bar.

With ``compiled`` before the folder of the job, local steps are compiled; otherwise the oracle is the default.
"""

from __future__ import annotations

import sys
import tempfile
import warnings

import fedlightning  # noqa: F401  # before lightning, which imports torchvision
import torch
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.loggers import TensorBoardLogger

from fedlightning.algorithms import FedAvg
from fedlightning.callbacks import RoundProgressBar
from fedlightning.data import FederatedDataModule, Federation, TensorData
from fedlightning.data.partition import Partition
from fedlightning.oracle import Auto, Vectorized
from fedlightning.participation import Uniform
from fedlightning.tasks import Classification
from jobs import Work
from torch_networks import NETWORKS, accuracy
from turns import Turns


class Samples(FederatedDataModule):
    """The samples of the job."""

    def __init__(self, work):
        super().__init__(batch_size=work.job.batch, participation=Uniform(work.job.cohort), rounds_per_epoch=10_000)
        self.work = work

    def build(self):
        tensors = torch.from_numpy(self.work.x), torch.from_numpy(self.work.y)
        return Federation(TensorData(tensors), Partition(torch.arange(len(self.work.y)), self.offsets))

    @property
    def offsets(self):
        return torch.from_numpy(self.work.offsets)


class InTurn(Callback):
    """Waits before every round."""

    def __init__(self, turns):
        self.turns = turns

    def on_train_start(self, trainer, pl_module):
        self.turns.wait()

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.turns.wait()


def main():
    warnings.simplefilter("ignore")
    *mode, folder = sys.argv[1:]
    work = Work(folder)
    oracle = Vectorized(compile=True, chunk_size=work.job.cohort) if mode else Auto()
    task = Classification(FedAvg(work.job.lr), NETWORKS[work.job.network](), weighting="samples", oracle=oracle)
    turns = Turns(lambda: accuracy(task.network, work), "fedlightning", "torch")
    with tempfile.TemporaryDirectory() as folder:
        Trainer(
            accelerator="cpu",
            max_epochs=-1,
            logger=TensorBoardLogger(folder, default_hp_metric=False),
            enable_checkpointing=False,
            enable_model_summary=False,
            callbacks=[InTurn(turns), RoundProgressBar()],
            default_root_dir=folder,
        ).fit(task, Samples(work))


if __name__ == "__main__":
    main()
