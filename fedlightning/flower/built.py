"""The task of a run and the data of a node, built at the node from plain values."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from jsonargparse import ArgumentError
from lightning.fabric import seed_everything
from lightning.pytorch.cli import LightningArgumentParser

from fedlightning.core.errors import FedlightningError, InvalidValueError
from fedlightning.data.module import FederatedDataModule
from fedlightning.federation.remote.run_config import LocalWork, RunConfig
from fedlightning.flower.allowed_classes import AllowedClasses
from fedlightning.flower.node_config import NodeConfig
from fedlightning.tasks.base import FederatedLightningModule


def built_task(run: RunConfig, allowed: AllowedClasses) -> FederatedLightningModule:
    """Return the task of a run, as the command line would build it with the same seed.

    What the config names is looked at before it is parsed, which imports modules, and again before anything is built.

    Args:
        run: The run.
        allowed: What it may name.

    Raises:
        RefusedClassError: If it names anything else.
        InvalidValueError: If no task can be built from it.
    """
    base = FederatedLightningModule
    allowed.require(run.model, base)
    parser = LightningArgumentParser(exit_on_error=False)
    parser.add_lightning_class_args(base, "model", subclass_mode=True)
    with _as_one_line("model"):
        config = parser.parse_object({"model": dict(run.model)})
    allowed.require(config.as_dict()["model"], base)
    seed_everything(run.seed, workers=True, verbose=False)
    with _as_one_line("model"):
        task: FederatedLightningModule = parser.instantiate_classes(config)["model"]
    return task


def built_data(config: NodeConfig, seed: int = 0, work: LocalWork | None = None) -> FederatedDataModule:
    """Return the data module of a node; relative paths in its arguments begin in the process's folder.

    Args:
        config: Names data module and arguments.
        seed: Seed of minibatches, where the node's config names none.
        work: What the run says of clients' work in a round, in place of what the node's config says.

    Raises:
        InvalidValueError: If no data module can be built.
    """
    parser = LightningArgumentParser(exit_on_error=False)
    parser.add_lightning_class_args(FederatedDataModule, "data", subclass_mode=True)
    with _as_one_line("data"):
        data: FederatedDataModule = parser.instantiate_classes(parser.parse_object({"data": dict(config.data)}))["data"]
    if "seed" not in (config.data.get("init_args") or {}):
        data.seed = seed
    for name, value in ({} if work is None else work.given).items():
        setattr(data, name, value)
    return data


def enter(folder: Path) -> None:
    """Have relative paths begin in a node's folder, and find modules there, last of all."""
    os.chdir(folder)
    if str(folder) not in sys.path:
        sys.path.append(str(folder))


@contextmanager
def _as_one_line(what: str) -> Iterator[None]:
    """Turn what a parser says of arguments into an error of this package."""
    try:
        yield
    except FedlightningError:
        raise
    except (ArgumentError, ValueError, TypeError, ImportError, AttributeError, OSError) as error:
        raise InvalidValueError(f"{what} cannot be built: {' '.join(str(error).split())}") from None
