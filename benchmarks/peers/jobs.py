"""What every framework is asked to do: FedAvg with plain SGD, one pass over a client's samples a round."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

ARRAYS = ("x", "y", "x_test", "y_test", "offsets")


@dataclass(frozen=True)
class Job:
    """A network, its data, and how it is trained.

    Attributes:
        title: What the job is, for the table.
        network: Key of the network, in ``torch_networks.py`` and ``jax_networks.py``.
        data: Name of the function in ``samples.py`` that makes the samples.
        clients: Number of clients.
        cohort: Clients a round.
        lr: Clients' step size.
        rounds: Rounds measured, unless the command line says otherwise.
        printed_rounds: Rounds of the job as its authors print it; 0 where a round is all that counts.
        batch: Samples of a minibatch.
    """

    title: str
    network: str
    data: str
    clients: int
    cohort: int
    lr: float
    rounds: int
    printed_rounds: int = 0
    batch: int = 10


JOBS = {
    "logreg": Job("Standard job, logistic regression", "logreg", "noise", 100, 10, 0.05, rounds=30),
    "lenet": Job("Standard job, LeNet5", "lenet", "noise", 100, 10, 0.05, rounds=5),
    "cnn": Job("Standard job, CNN with 1.66 M parameters", "cnn", "noise", 100, 10, 0.05, rounds=2),
    "flute": Job("FLUTE's LR_MNIST", "sigmoid", "mnist_by_two_digits", 1000, 10, 0.03, rounds=99, printed_rounds=100),
    "pfl": Job("pfl-research's CIFAR-10", "pfl", "cifar10", 1000, 50, 0.1, rounds=2, printed_rounds=1500),
    "mnist": Job("LeNet5 on MNIST", "lenet", "mnist", 100, 10, 0.05, rounds=14),
}


class Work:
    """A job and its samples, read from the folder that the driver made.

    Attributes:
        job: The job.
        x: ``[n, channels, height, width]`` float32, all clients' training samples, client by client.
        y: ``[n]`` int64, their labels.
        x_test: Test samples, likewise.
        y_test: Their labels.
        offsets: ``[clients + 1]``, where each client's samples begin, and the end.
    """

    def __init__(self, folder: str, mmap: bool = False):
        self.job = JOBS[Path(folder).name]
        mode = "c" if mmap else None
        self.x, self.y, self.x_test, self.y_test, self.offsets = (
            np.load(Path(folder) / f"{name}.npy", mmap_mode=mode) for name in ARRAYS
        )

    def rows(self, client: int) -> slice:
        return slice(int(self.offsets[client]), int(self.offsets[client + 1]))

    @property
    def samples(self) -> int:
        """How many samples each client holds, where all hold as many."""
        sizes = np.diff(self.offsets)
        if (sizes != sizes[0]).any():
            raise ValueError("The clients of this job hold different numbers of samples.")
        return int(sizes[0])


@cache
def mapped(folder: str) -> Work:
    """The job with its arrays left in their files, for processes that need few of the samples."""
    return Work(folder, mmap=True)
