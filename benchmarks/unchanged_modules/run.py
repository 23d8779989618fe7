"""LightningModules that know nothing of federations, trained by clients as they are.

For every module: whether federated training lowers the loss, how far one client with ``StatefulFedAvg`` ends from a
plain Trainer on the same minibatches, what validation logs, whether a resumed run ends at the same bits, which oracle
the measurement took, and how many times faster a round is than a loop of Trainers, one for every client, in processor
time of one thread, which other jobs of the machine change little.
"""

from __future__ import annotations

import argparse
import json
import logging
import tempfile
import time
import warnings
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

import torch

import fedlightning  # noqa: F401  # before lightning, which imports torchvision
import pytorch_lightning
from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader, Sampler

from fedlightning import FederatedDataModule, federate
from fedlightning.algorithms import FedAvg, StatefulFedAvg
from fedlightning.core.tree import map_tensors
from fedlightning.data import TensorData
from fedlightning.oracle import Sequential
from modules import MODULES, Module

SAMPLES, BATCH, STEPS, ROUNDS_AN_EPOCH = 12, 4, 3, 3
EQUAL = 1e-8
"""Largest difference of a parameter that counts as rounding, in units of the largest move of any."""
ROUNDINGS = 10
"""Also rounding: as many times the difference that the last bit of every parameter makes at a plain Trainer's start."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("modules", nargs="*", default=list(MODULES), help="names; all by default")
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--json", type=Path, help="where to write the figures")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    for name in ("lightning.pytorch", "lightning.pytorch.utilities.rank_zero", "pytorch_lightning"):
        logging.getLogger(name).setLevel(logging.ERROR)
    rows = []
    for name in arguments.modules:
        rows.append(row(name, MODULES[name], arguments.clients))
        print(rows[-1], flush=True)
    print("\n".join(markdown(rows)))
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1))


def row(name: str, module: Module, clients: int) -> dict[str, Any]:
    apart, rounding, moved = against_a_trainer(module)
    task, fit, ours = federated(module, clients)
    return {
        "module": name,
        "package": f"{module.package} {version(module.package)}",
        "trains": losses(fit),
        "apart": apart,
        "rounding": rounding,
        "moved": moved,
        "validates": sorted(metric for metric in fit.validated if "val" in metric)[:3],
        "resumes": resumes(module, clients),
        "oracle": type(task.run.simulation.runner.oracle_selection.oracle).__name__,
        "seconds": ours,
        "loop": loop_of_trainers(module, clients),
    }


class Watch(Callback):
    """Keeps the losses and the processor times of rounds, and what the last validation logged."""

    def __init__(self) -> None:
        self.losses: list[float] = []
        self.times: list[float] = []

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        self.losses.append(float(trainer.callback_metrics["train_loss"]))
        self.times.append(time.process_time())


def quiet(alone: Any = None, **options: Any) -> Any:
    """A Trainer that prints nothing; of the package ``pytorch_lightning`` for a module of it that trains alone."""
    trainer: Any = Trainer if alone is None or isinstance(alone, LightningModule) else pytorch_lightning.Trainer
    off = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    return trainer(accelerator="cpu", devices=1, num_sanity_val_steps=0, **{**off, **options})


def made(module: Module) -> Any:
    seed_everything(0, verbose=False)
    return module.make()


def tensors(module: Module, seed: int) -> TensorData:
    return TensorData(module.samples(SAMPLES, torch.Generator().manual_seed(seed)))


def data(module: Module, clients: int, steps: int = STEPS, rounds: int = ROUNDS_AN_EPOCH) -> FederatedDataModule:
    return FederatedDataModule.from_datasets(
        [tensors(module, seed) for seed in range(clients)],
        val=tensors(module, 1000),
        batch_size=BATCH,
        local_steps=steps,
        rounds_per_epoch=rounds,
        eval_batch_size=SAMPLES,
    )


def federated(module: Module, clients: int) -> tuple[Any, Any, float]:
    watch = Watch()
    task = federate(made(module), FedAvg, **module.options)
    fit: Any = quiet(max_epochs=3, callbacks=[watch])
    fit.fit(task, data(module, clients))
    fit.validated = dict(fit.callback_metrics)
    fit.losses = watch.losses
    between = [b - a for a, b in zip(watch.times, watch.times[1:], strict=False)]
    return task, fit, median(seconds for k, seconds in enumerate(between) if (k + 1) % ROUNDS_AN_EPOCH)


def losses(fit: Any) -> tuple[float, float]:
    epoch = ROUNDS_AN_EPOCH
    return sum(fit.losses[:epoch]) / epoch, sum(fit.losses[-epoch:]) / epoch


class Next(Sampler):
    """Goes on where the epoch before ended."""

    def __init__(self, number: int) -> None:
        self.number, self.done = number, 0

    def __iter__(self) -> Any:
        self.done += self.number
        return iter(range(self.done - self.number, self.done))

    def __len__(self) -> int:
        return self.number


def minibatches(source: FederatedDataModule) -> list[Any]:
    found = []
    for batch in source.train_dataloader():
        (chunk,) = batch.cohorts[0].chunks(1)
        found += [map_tensors(lambda leaf: leaf[0], each.data) for each in chunk.minibatches()]
    return found


def against_a_trainer(module: Module, epochs: int = 2, steps: int = 3) -> tuple[float, float, float]:
    """How far apart one client and a plain Trainer end in float64, a round a step.

    Beside it how far apart two Trainers end whose starts differ in the last bits, and how far the Trainer went.
    """
    ours, theirs, rounded, start = (made(module).double() for _ in range(4))
    with torch.no_grad():
        for parameter in rounded.parameters():
            parameter.mul_(1 + torch.finfo(parameter.dtype).eps)  # what is zero stays so, where ReLU has its kink
    options = {"max_epochs": epochs, "precision": "64-true"}
    task = federate(ours, StatefulFedAvg, oracle=Sequential(), **module.options)
    quiet(**options).fit(task, data(module, 1, steps=1, rounds=steps))
    batches = minibatches(data(module, 1, steps=1, rounds=steps * epochs))
    held_out = module.samples(SAMPLES, torch.Generator().manual_seed(1000))
    for alone in (theirs, rounded):
        quiet(alone, **options).fit(
            alone,
            DataLoader(batches, batch_size=None, sampler=Next(steps)),
            DataLoader([held_out], batch_size=None),
        )
    return distance(ours, theirs), distance(rounded, theirs), distance(start, theirs)


def distance(one: Any, other: Any) -> float:
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return max(float((a - b).detach().abs().max()) for a, b in pairs)


def resumes(module: Module, clients: int) -> bool:
    """Whether a run that goes on from a checkpoint ends at the bits of the run that was not interrupted."""

    def fitted(ckpt_path: Path | None = None) -> Any:
        task = federate(made(module), FedAvg, oracle=Sequential(), **module.options)
        saves = ModelCheckpoint(folder, filename="{epoch}", save_top_k=-1, save_on_train_epoch_end=True)
        fit = quiet(max_epochs=2, enable_checkpointing=True, callbacks=[] if ckpt_path else [saves])
        fit.fit(task, data(module, clients), ckpt_path=ckpt_path, weights_only=module.weights_only)
        return task

    with tempfile.TemporaryDirectory() as folder:
        whole = fitted()
        resumed = fitted(Path(folder) / "epoch=0.ckpt")
    return distance(whole, resumed) == 0.0


def loop_of_trainers(module: Module, clients: int, rounds: int = 2) -> float:
    """Processor seconds of a round of FedAvg in which every client has a Trainer of its own."""
    server = made(module)
    sets = [tensors(module, seed) for seed in range(clients)]
    seconds = []
    for _ in range(rounds):
        start = time.process_time()
        ends = []
        for own in sets:
            client = module.make()
            client.load_state_dict(server.state_dict())
            loader = DataLoader(own + own, batch_size=BATCH, shuffle=True)  # no epoch ends, so no scheduler waits
            quiet(client, max_steps=STEPS, limit_val_batches=0).fit(client, loader)
            ends.append(client.state_dict())
        mean = {name: torch.stack([end[name].float() for end in ends]).mean(0) for name in ends[0]}
        server.load_state_dict(mean)
        seconds.append(time.process_time() - start)
    return min(seconds)


def markdown(rows: list[dict[str, Any]]) -> list[str]:
    lines = [
        "| module | package | trains: loss of the first and last epoch | apart from a Trainer / by rounding / moved | "
        "validates | resumes | oracle | round, ms | loop of Trainers, ms | times faster |",
        "| --- | --- | --- | --- | --- | --- | --- | --: | --: | --: |",
    ]
    for each in rows:
        first, last = each["trains"]
        most = max(EQUAL * each["moved"], ROUNDINGS * each["rounding"])
        equal = "" if each["apart"] <= most else " **not equal**"
        lines.append(
            f"| `{each['module']}` | {each['package']} | {first:.3g} → {last:.3g} | "
            f"{each['apart']:.0e} / {each['rounding']:.0e} / {each['moved']:.0e}{equal} | "
            f"{', '.join(f'`{name}`' for name in each['validates']) or 'logs nothing'} | "
            f"{'bit for bit' if each['resumes'] else '**no**'} | `{each['oracle']}` | {1e3 * each['seconds']:.3g} | "
            f"{1e3 * each['loop']:.3g} | {each['loop'] / each['seconds']:.2g} |"
        )
    return lines


if __name__ == "__main__":
    main()
