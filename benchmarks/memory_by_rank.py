"""What does each process hold when several share a federation? SCAFFOLD with a thousand clients of 311 KiB each.

A client's state lies in one process and is never gathered, so that each of R processes should hold about 1/R of them.
The model is small beside the states; every client holds one sample, whose image is made when it is gathered. Printed
are bytes of client states, and the peak of resident memory above what the process took before the first round.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

import torch

import fedlightning  # noqa: F401  # before lightning, which imports torchvision
from lightning.pytorch import Callback, Trainer

from fedlightning.algorithms import SCAFFOLD
from fedlightning.models import MLP
from fedlightning.oracle import Vectorized
from fedlightning.participation import Uniform
from fedlightning.tasks import Classification
from many_clients import Many
from standard_job import peak_resident


class Memory(Callback):
    """Writes what this process held to a file of its own."""

    def __init__(self, folder):
        self.folder = folder

    def on_train_start(self, trainer, task):
        self.before = peak_resident()

    def on_train_end(self, trainer, task):
        peak = peak_resident()
        states = task.run.simulation.runner.clients.table.states
        size = sum(tensor.numel() * tensor.element_size() for tensor in states.template.values())
        found = {
            "clients": len(states.seen),
            "states_mib": len(states.seen) * size / 2**20,
            "above_mib": peak - self.before,
            "peak_mib": peak,
        }
        (self.folder / f"{trainer.global_rank}.json").write_text(json.dumps(found))


def run(processes, clients, cohort, rounds, folder):
    """One process of the run; Lightning starts the others."""
    task = Classification(SCAFFOLD(0.05), MLP([784, 100, 10]), oracle=Vectorized(chunk_size=10))
    data = Many(clients, batch_size=1, local_steps=2, participation=Uniform(cohort), rounds_per_epoch=rounds)
    Trainer(
        accelerator="cpu",
        devices=processes,
        strategy="ddp" if processes > 1 else "auto",
        max_steps=rounds,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[Memory(folder)],
    ).fit(task, data)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--cohort", type=int, default=100, help="clients a round")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    if args.one:
        run(int(args.one[0]), args.clients, args.cohort, args.rounds, Path(args.one[1]))
        return
    sizes = [f"--{name}={getattr(args, name)}" for name in ("clients", "cohort", "rounds")]
    print("| processes | rank | clients seen | client states, MiB | peak above the start, MiB | peak, MiB |")
    print("| ---: | ---: | ---: | ---: | ---: | ---: |")
    for processes in args.processes:
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, __file__, "--one", str(processes), folder, *sizes]
            subprocess.run(command, capture_output=True, check=True)
            for rank in range(processes):
                found = json.loads((Path(folder) / f"{rank}.json").read_text())
                print(
                    f"| {processes} | {rank} | {found['clients']} | {found['states_mib']:.0f} | "
                    f"{found['above_mib']:.0f} | {found['peak_mib']:.0f} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
