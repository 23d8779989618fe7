"""The methods and hooks of a module that a federated task has in place of its own, or beside them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from fedlightning.tasks.federated.requirements import overrides

PREFIX = "module."
"""Begins the names of the module's parameters and buffers in the task."""

_STAGES = ("validation", "test", "predict")

IN_PLACE = (
    *(f"{stage}_step" for stage in _STAGES),
    *(
        f"on_{stage}_{when}"
        for stage in _STAGES
        for when in ("start", "end", "epoch_start", "batch_start", "batch_end")
    ),
    *(f"on_{stage}_model_{mode}" for stage in _STAGES for mode in ("eval", "train", "zero_grad")),
    *("on_test_epoch_end", "on_predict_epoch_end", "on_train_epoch_start", "on_train_end"),
    *("on_fit_start", "on_fit_end", "setup", "teardown", "configure_model", "configure_sharded_model"),
)
"""Methods of the module that the task has in place of Lightning's."""

BESIDE = ("on_train_start", "on_train_epoch_end", "on_validation_epoch_end")
"""Hooks that are the task's own as well; the module's come after them, or before where an epoch ends."""

OUTSIDE_ROUNDS = ("on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer")
"""Hooks that the task has in place of Lightning's for batches of evaluation and prediction. A round is none."""


def adopt(task: Any, module: Any) -> None:
    """Let a task have the methods and hooks that its module overrides.

    They become attributes of the task, so that Lightning sees which of them there are.

    Args:
        task: The federated task.
        module: The module in it.
    """
    for name in IN_PLACE:
        if overrides(module, name):
            setattr(task, name, getattr(module, name))
    for name in BESIDE:
        if overrides(module, name):
            own, theirs = getattr(task, name), getattr(module, name)
            first, second = (theirs, own) if name.endswith("_end") else (own, theirs)
            setattr(task, name, partial(_both, first, second))
    for name in OUTSIDE_ROUNDS:
        if overrides(module, name):
            setattr(task, name, partial(_outside_rounds, task, getattr(module, name), getattr(task, name)))
    if overrides(module, "configure_callbacks"):
        task.configure_callbacks = partial(_joined, task.configure_callbacks, module.configure_callbacks)
    if overrides(module, "on_save_checkpoint"):
        task.on_save_checkpoint = partial(_on_own_names, module.on_save_checkpoint, task.on_save_checkpoint)
    if overrides(module, "on_load_checkpoint"):
        task.on_load_checkpoint = partial(_on_own_names, module.on_load_checkpoint, task.on_load_checkpoint)


def _both(first: Callable[[], Any], second: Callable[[], Any]) -> None:
    first()
    second()


def _outside_rounds(task: Any, theirs: Callable[..., Any], own: Callable[..., Any], batch: Any, *args: Any) -> Any:
    """Call the module's hook on a batch, or the task's on a round."""
    return (own if _trains(task) else theirs)(batch, *args)


def _trains(task: Any) -> bool:
    """Return whether a fit is training now; a node evaluates without a Trainer."""
    try:
        return bool(task.trainer.training)
    except RuntimeError:
        return False


def _joined(first: Callable[[], Any], second: Callable[[], Any]) -> list[Any]:
    """Return the callbacks of both, each a list or a single one."""
    both = [found if isinstance(found, list | tuple) else [found] for found in (first(), second())]
    return [callback for found in both for callback in found]


def _on_own_names(theirs: Callable[[Any], Any], own: Callable[[Any], Any], checkpoint: dict[str, Any]) -> None:
    """Call the module's hook on a checkpoint that has the names of its own weights, then the task's."""
    weights = checkpoint["state_dict"]
    checkpoint["state_dict"] = {name.removeprefix(PREFIX): value for name, value in weights.items()}
    theirs(checkpoint)
    checkpoint["state_dict"] = {f"{PREFIX}{name}": value for name, value in checkpoint["state_dict"].items()}
    own(checkpoint)
