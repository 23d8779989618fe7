"""The task of a run on the device of a node."""

from __future__ import annotations

from lightning.fabric import Fabric

from fedlightning.federation.remote.run_config import RunConfig
from fedlightning.flower.allowed_classes import AllowedClasses
from fedlightning.flower.built import built_task
from fedlightning.tasks.base import FederatedLightningModule
from fedlightning.tasks.federated import Federated

OF_PARAMETERS = ("64-true", "bf16-true", "16-true")
"""Precisions that change a task's parameters, by Lightning's names."""


def placed_task(
    run: RunConfig, classes: AllowedClasses, accelerator: str = "cpu"
) -> tuple[FederatedLightningModule, Fabric]:
    """Return the task of a run, and what placed it on a device.

    Args:
        run: The run.
        classes: What it may name.
        accelerator: Where to compute, by Lightning's name.

    Raises:
        RefusedClassError: If the run names anything else.
        InvalidValueError: If no task can be built from it, or clients cannot step as it says without a Trainer.
    """
    task = built_task(run, classes)
    if isinstance(task, Federated):
        task.configure_at_node()
    own = run.precision if run.precision in OF_PARAMETERS else "32-true"
    fabric = Fabric(accelerator=accelerator, devices=1, precision=own)  # type: ignore[arg-type]
    fabric.to_device(fabric.strategy.precision.convert_module(task))  # in place
    return task, fabric
