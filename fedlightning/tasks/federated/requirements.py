"""What a LightningModule must have, and must not do, to be trained over many clients as it is."""

from __future__ import annotations

import inspect
from collections.abc import Collection
from typing import Any

from torch import nn

from fedlightning.core.errors import InvalidTypeError, InvalidValueError

_LOCAL = "the algorithm carries out the steps of many clients at once"
_GRADIENTS = "clients' gradients are computed for many clients at once and never lie in parameters' .grad"
_ROUND = "a batch of a federated fit is a round of many clients, so it would be called once a round, with no minibatch"

HOOKS = {
    "optimizer_step": _LOCAL,
    "optimizer_zero_grad": _LOCAL,
    "lr_scheduler_step": f"{_LOCAL}, and schedules go by rounds",
    "configure_gradient_clipping": f"{_LOCAL}; gradient_clip_val limits clients' gradients",
    "clip_gradients": f"{_LOCAL}; gradient_clip_val limits clients' gradients",
    "toggle_optimizer": _LOCAL,
    "untoggle_optimizer": _LOCAL,
    "on_before_optimizer_step": _GRADIENTS,
    "backward": _GRADIENTS,
    "manual_backward": _GRADIENTS,
    "on_before_backward": _GRADIENTS,
    "on_after_backward": _GRADIENTS,
    "on_before_zero_grad": _GRADIENTS,
    "on_train_batch_start": _ROUND,
    "on_train_batch_end": _ROUND,
    "on_before_batch_transfer": _ROUND,
    "transfer_batch_to_device": _ROUND,
}
"""Hooks that have no meaning where one training step is a round of many clients, and why."""

_BASES = ("lightning.pytorch.core.module", "pytorch_lightning.core.module")


def base_of(module: Any) -> type | None:
    """Return Lightning's class that a module derives from, of the package ``lightning`` or ``pytorch_lightning``."""
    mine = (cls for cls in type(module).__mro__ if cls.__name__ == "LightningModule" and cls.__module__ in _BASES)
    return next(mine, None)


def overrides(module: Any, name: str) -> bool:
    """Return whether a LightningModule has its own version of a method of Lightning's."""
    base, present = base_of(module), getattr(module, name, None)
    return present is not None and getattr(present, "__func__", present) is not getattr(base, name, None)


def require_trainable_by_clients(module: Any, without_hooks: Collection[str] = ()) -> None:
    """Refuse a module that many clients cannot train by its ``training_step``.

    Args:
        module: As the user gave it.
        without_hooks: Names of hooks that the user agrees to leave out.

    Raises:
        TypeError: If it is no LightningModule, is federated already, has no training step, optimizes manually, or has a
            hook that would never be called.
        ValueError: If ``without_hooks`` is a text, or a name in it is no such hook.
    """
    if base_of(module) is None:
        kind = module.__name__ if isinstance(module, type) else type(module).__name__
        plain = " Write a task with the network in it, and its objective." if isinstance(module, nn.Module) else ""
        raise InvalidTypeError(f"federate(module={kind}): expected an object of a LightningModule.{plain}")
    name = type(module).__name__
    if hasattr(module, "federation_options"):
        raise InvalidTypeError(f"federate(module={name}): it is a federated task already; fit it itself.")
    if isinstance(without_hooks, str):
        raise InvalidValueError(
            f"without_hooks={without_hooks!r}: expected a sequence of names of hooks, e.g. ({without_hooks!r},)."
        )
    if unknown := [hook for hook in without_hooks if hook not in HOOKS]:
        raise InvalidValueError(
            f"without_hooks: '{unknown[0]}' is none of the hooks that a federated fit leaves out: {', '.join(HOOKS)}."
        )
    if not overrides(module, "training_step"):
        raise InvalidTypeError(f"{name} has no training_step, which is to be the clients' objective.")
    if not module.automatic_optimization:
        raise InvalidTypeError(
            f"{name} optimizes manually (automatic_optimization = False): its training_step takes steps itself, where "
            "a client's algorithm has to. Return the loss from training_step with automatic optimization; for two "
            "players name one of them in max_parameters, or write a FederatedLightningModule with an objective."
        )
    if "dataloader_iter" in inspect.signature(module.training_step).parameters:
        raise InvalidTypeError(
            f"{name}.training_step takes dataloader_iter: it would load data itself, where the minibatches of clients "
            "are dealt by the data module. Take (batch, batch_idx)."
        )
    for hook, why in HOOKS.items():
        if hook not in without_hooks and overrides(module, hook):
            raise InvalidTypeError(
                f"{name} overrides {hook}, which a federated fit does not call as it was meant: {why}. If the training "
                f"does without it (it only logs, say), give without_hooks=['{hook}']."
            )
