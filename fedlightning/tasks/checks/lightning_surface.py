"""The hooks, options and callbacks of Lightning that a federated fit refuses, each with a remedy.

One training step is one communication round that the library carries out itself, so hooks, options and callbacks that
reach into an ordinary training step have nothing to reach into. They are refused by name when a fit starts, before data
are prepared: a hook that is silently never called is worse than an error. Hooks on gradients may come later, so
parameters are looked at before every round as well. The table of all options and callbacks is
``docs/LIGHTNING.md``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer, callbacks
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn
from torch import nn

from fedlightning.algorithms.base import Algorithm
from fedlightning.core.errors import InvalidTypeError, InvalidValueError, UsageError
from fedlightning.core.modules import named_parameters
from fedlightning.core.settings import settings
from fedlightning.tasks.checks.step_advice import clip_options, step_advice
from fedlightning.tasks.checks.strategies import refuse_sharded_models, refuse_spawned_processes

_NEVER = "clients' gradients are computed for many clients at once and never lie in parameters' .grad"
_LOSS = "Change the loss in objective(batch), or the step in an algorithm of your own"
_BLOCKS = (
    "a step moves all blocks at once. Name what is maximised in max_parameters, and freeze with requires_grad_(False)"
)

TRANSFER_HOOKS = ("on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer")
"""Hooks that would get a round of cohorts in place of a minibatch."""

HOOKS = {
    "training_step": "a training step is one communication round. Write objective(batch), the loss of one client's "
    "minibatch, and look at self.round_metrics in on_train_batch_end",
    "configure_optimizers": "{optimizers}",
    "optimizer_step": "{server_optimizer}; on_before_optimizer_step is called once a round",
    "optimizer_zero_grad": "{server_optimizer}",
    "toggle_optimizer": _BLOCKS,
    "untoggle_optimizer": _BLOCKS,
    "toggled_optimizer": _BLOCKS,
    "lr_scheduler_step": "{server_scheduler}",
    "configure_gradient_clipping": "{clips}",
    "clip_gradients": "{clips}",
    "backward": f"{_NEVER}. {_LOSS}",
    "manual_backward": f"{_NEVER}. {_LOSS}",
    "on_before_backward": f"{_NEVER}. Use on_train_batch_end",
    "on_after_backward": f"{_NEVER}. Use on_train_batch_end, or an algorithm of your own",
    "on_before_zero_grad": f"{_NEVER}. Use on_train_batch_end",
}
"""Methods of a LightningModule that no round calls, and what to use instead; fields are those of `step_advice`."""

CALLBACK_HOOKS = ("on_before_backward", "on_after_backward", "on_before_zero_grad")
"""Hooks of a callback that no round calls."""

CALLBACKS = {
    "GradientAccumulationScheduler": "a client's gradients are not accumulated. Deal more local steps (local_steps) or "
    "larger minibatches (batch_size) in the data module",
    "BatchSizeFinder": "what fits into memory depends on how many clients are computed at once. Set chunk_size of "
    "fedlightning.oracle.Vectorized, and batch_size of the data module as the method needs it",
    "LearningRateFinder": "it moves the server's optimizer, whose learning rate of 1 takes the algorithm's own step. "
    "Search lr with fedlightning compare --grid lr=0.1,0.03",
    "StochasticWeightAveraging": "its swa_lrs would be the learning rate of the server's optimizer, whose 1 takes the "
    "algorithm's own step. Use WeightAveraging or EMAWeightAveraging of lightning.pytorch.callbacks, and "
    "server_scheduler for the server's learning rate",
    "BaseFinetuning": "which parameters travel is settled when a fit begins. Freeze with requires_grad_(False) before "
    "a fit, and fit again with others",
    "ModelPruning": "the next round would write the unpruned global model back. Use a regularizer "
    "(fedlightning.proximal.L1, GroupLasso), or prune after the fit",
    "SpikeDetection": "a round cannot be left out of a run afterwards; {clips}. Clients that return NaN are left out "
    "by themselves, and a loss that grows a million-fold is reported",
}
"""Callbacks of Lightning that a federated fit refuses, by class name, and what to use instead."""

_AVERAGING = (
    "clients have models of their own, which it does not average, so validation client by client would look at the "
    "models without it. Use a server_optimizer, or average the shared parameters after the fit"
)


def require_a_federated_fit(task: LightningModule, base: type[LightningModule], trainer: Trainer) -> None:
    """Refuse hooks, options and callbacks that the rounds of a fit would silently ignore.

    Args:
        task: An object of ``base``.
        base: The class whose hooks carry out rounds.
        trainer: The trainer, which knows whether it fits, validates, tests or predicts.

    Raises:
        TypeError: If a hook is overridden or put on a parameter, there is no objective, or the strategy does not suit.
        ValueError: If an option or a callback is of no effect.
    """
    algorithm: Any = getattr(task, "algorithm", None)
    if not isinstance(algorithm, Algorithm):
        raise InvalidTypeError(
            f"{type(task).__name__}.algorithm was replaced by {algorithm!r}: make a new task with another algorithm, "
            f"{type(task).__name__}(algorithm=...)."
        )
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        _require_callback(callback, task)
    if trainer.state.fn != TrainerFn.FITTING:
        return
    refuse_sharded_models(trainer.strategy)
    refuse_spawned_processes(trainer.strategy)
    name = type(task).__name__
    if getattr(task, "_compiler_ctx", None) is not None:
        raise InvalidTypeError(
            f"torch.compile({name}) would compile the round with all its bookkeeping, not the objective. Fit the task "
            "itself, with oracle=fedlightning.oracle.Vectorized(compile=True)."
        )
    for hook, remedy in HOOKS.items():
        if _differs(task, base, hook) and not _is_of_this_package(task, hook):
            remedy = remedy.format_map(step_advice(task))
            raise InvalidTypeError(f"{name} overrides {hook}, which a federated fit never calls: {remedy}.")
    for hook in TRANSFER_HOOKS:
        if _differs(task, base, hook) and not _is_of_this_package(task, hook):
            raise InvalidTypeError(
                f"{name} overrides {hook}, which a fit would call with a round of cohorts, whose minibatches are "
                "gathered later. Augment in objective(batch), which sees one client's minibatch, or in the data set."
            )
    if not _differs(task, base, "objective"):
        raise InvalidTypeError(
            f"{name} has no objective. Write objective(self, batch): the loss of one client's minibatch, a scalar, or "
            "{'loss': scalar, name: scalar to log, ...}."
        )
    if task.automatic_optimization:
        raise InvalidTypeError(
            f"{name}.automatic_optimization is True: leave it False, a round steps the optimizer itself."
        )
    refuse_gradient_hooks(task)
    _require_options(trainer, task)


def refuse_gradient_hooks(task: nn.Module) -> None:
    """Refuse hooks on parameters' gradients; objectives and callbacks may have put them there since the last round.

    Raises:
        TypeError: If there is one.
    """
    for parameter, value in named_parameters(task):
        if value._backward_hooks or value._post_accumulate_grad_hooks:
            raise InvalidTypeError(
                f"{type(task).__name__}: parameter '{parameter}' has a gradient hook, which no round would call: "
                "gradients are taken at every client's own values. Mask or scale the parameter in the objective, or "
                "freeze it."
            )


def refuse_switched_parameters(task: nn.Module, trained: Mapping[str, bool]) -> None:
    """Refuse parameters that were frozen or thawed since the fit began, which no client would be told.

    Args:
        task: The task.
        trained: Whether each parameter required a gradient when the fit began, by name.

    Raises:
        RuntimeError: If there is one.
    """
    for name, parameter in named_parameters(task):
        if trained.get(name, parameter.requires_grad) != parameter.requires_grad:
            done, would = ("thawed", "stay as it is") if parameter.requires_grad else ("frozen", "go on training")
            raise UsageError(
                f"{type(task).__name__}: parameter '{name}' was {done} during the fit (requires_grad="
                f"{parameter.requires_grad}), but would {would}: what is trained is settled when a fit begins. Freeze "
                "and thaw between two fits."
            )


def refuse_changed(task: nn.Module, what: str | None, rounds: int) -> None:
    """Refuse a parameter or buffer that was changed between two rounds, which go on from what is kept of the last.

    Args:
        task: The task.
        what: The parameter or buffer; None if there is none.
        rounds: Number of rounds so far.

    Raises:
        RuntimeError: If there is one.
    """
    if what is not None:
        remedy = (
            "Change the buffer in the objective, which may look at self.current_epoch and self.training"
            if what.startswith("buffer")
            else "Constrain parameters by a regularizer, move them by a server_optimizer, or begin anew from other "
            "values: a new task that is given them by load_state_dict"
        )
        raise UsageError(
            f"{type(task).__name__}: {what} was changed after round {rounds}, by a hook, a callback, an evaluation or "
            "whoever loaded the checkpoint. The change would be lost, because rounds go on from what server and "
            f"clients keep. {remedy}."
        )


def never_made(task: object) -> str:
    """Return the message for a task whose ``__init__`` does not call the base class's ``__init__``."""
    return (
        f"{type(task).__name__}.__init__ does not call super().__init__(algorithm, ...) of FederatedLightningModule. "
        "Call it first of all."
    )


def _differs(task: LightningModule, base: type[LightningModule], hook: str) -> bool:
    """Return whether the class of a task, or an attribute of the task itself, overrides a method of the base."""
    present, inherited = getattr(task, hook, None), getattr(base, hook, None)  # some are in newer Lightning alone
    return getattr(present, "__func__", present) is not inherited


def _is_of_this_package(task: LightningModule, hook: str) -> bool:
    """Return whether a method that differs from the base's is that of a task of this package, which calls it."""
    present = getattr(task, hook)
    present = getattr(present, "func", present)
    return str(getattr(present, "__module__", "")).startswith("fedlightning.tasks.")


def _require_options(trainer: Trainer, task: Any) -> None:
    clip, algorithm = trainer.gradient_clip_val, trainer.gradient_clip_algorithm
    if clip or algorithm is not None:
        option = f"gradient_clip_val={clip}" if clip else f"gradient_clip_algorithm={str(algorithm)!r}"
        clips = clip_options(task)
        instead = f", and set {settings(dict.fromkeys(clips, ...))}" if clips else ""
        raise InvalidValueError(
            f"Trainer({option}) clips nothing in a federated fit: {step_advice(task)['clips']}. Leave it out{instead}."
        )
    if trainer.accumulate_grad_batches != 1:
        raise InvalidValueError(
            f"Trainer(accumulate_grad_batches={trainer.accumulate_grad_batches}): "
            f"{CALLBACKS['GradientAccumulationScheduler']}."
        )


def _require_callback(callback: Callback, task: Any) -> None:
    for name, remedy in CALLBACKS.items():
        refused = getattr(callbacks, name, None)
        if refused is not None and isinstance(callback, refused):
            remedy = remedy.format_map(step_advice(task))
            raise InvalidValueError(f"{type(callback).__name__} does not suit a federated fit: {remedy}.")
    averaging = getattr(callbacks, "WeightAveraging", None)
    if averaging is not None and isinstance(callback, averaging) and task.evaluated_models:
        raise InvalidValueError(f"{type(callback).__name__} does not suit {type(task).__name__}: {_AVERAGING}.")
    dead = [hook for hook in CALLBACK_HOOKS if getattr(type(callback), hook) is not getattr(Callback, hook)]
    dead += [hook for hook in CALLBACK_HOOKS if hook in vars(callback)]  # LambdaCallback's
    if dead:
        rank_zero_warn(
            f"{type(callback).__name__}.{dead[0]} is never called in a federated fit: {_NEVER}. Use on_train_batch_end."
        )


def say_if_never_validated(trainer: Trainer) -> None:
    """Tell the user if a fit ends before its first validation."""
    first = first_validation(trainer)
    rounds = [limit for limit in (trainer.max_steps, _epochs(trainer)) if limit >= 0]
    if trainer.global_step or first is None or not rounds or min(rounds) >= first:
        return
    of_trainer = {"trainer.val_check_interval": min(rounds), "trainer.check_val_every_n_epoch": None}
    by_rounds = f"{settings(of_trainer)} of the Trainer"
    by_epochs = f"{settings({'data.rounds_per_epoch': min(rounds)})} of the data module, or {by_rounds}"
    rank_zero_info(
        f"This fit of {min(rounds)} rounds ends before its first validation, which is due at round {first}. Set "
        f"{by_rounds if trainer.check_val_every_n_epoch is None else by_epochs}."
    )


def first_validation(trainer: Trainer) -> int | None:
    """Return the round after which a fresh fit first validates; None if it never does, or goes by the clock."""
    every, length = trainer.val_check_batch, trainer.num_training_batches
    loaders: Any = trainer.num_val_batches
    batches = sum(loaders) if isinstance(loaders, list) else loaders
    fast: Any = trainer.fast_dev_run  # type: ignore[attr-defined]
    if fast or not batches or not isinstance(every, int) or not isinstance(length, int):
        return None
    epochs = trainer.check_val_every_n_epoch
    return every if epochs is None else (epochs - 1) * length + min(every, length)


def _epochs(trainer: Trainer) -> int:
    epochs, length = trainer.max_epochs, trainer.num_training_batches
    return -1 if epochs is None or epochs < 0 or not isinstance(length, int) else epochs * length
