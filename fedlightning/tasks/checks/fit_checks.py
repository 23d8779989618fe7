"""Checks of a fit, made once its parameters and data are known, for mistakes that would go unnoticed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isclose
from numbers import Real
from typing import TYPE_CHECKING, Any

import torch
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn
from lightning.pytorch.utilities.model_helpers import is_overridden

from fedlightning.callbacks.clients import EvaluateClients
from fedlightning.core.errors import InvalidTypeError, InvalidValueError, UsageError
from fedlightning.core.in_force import in_force, scheduled
from fedlightning.core.parameter_space import ParameterSpace
from fedlightning.core.per_block import per_block_fields
from fedlightning.core.settings import settings
from fedlightning.data.module import FederatedDataModule
from fedlightning.data.remote import RemoteClients
from fedlightning.federation.processes import DistributedProcesses, OneProcess
from fedlightning.federation.sampling.cohort import RoundBatch
from fedlightning.local.optimizers import LocalOptimizer
from fedlightning.local.torch_optimizers import name_of_optimizer, own_step_size
from fedlightning.tasks.checks.arguments import require_known_attributes
from fedlightning.tasks.checks.batch_statistics import check_batch_statistics, warn_of_single_samples
from fedlightning.tasks.checks.channel_checks import require_suitable_cohorts
from fedlightning.tasks.checks.nodes_measure import nodes_validate, require_measurable_at_nodes
from fedlightning.tasks.checks.private_fit import check_private_fit
from fedlightning.tasks.checks.repeated_draws import repeated_rounds, say_what_is_drawn_again
from fedlightning.tasks.checks.same_run import require_same_run

if TYPE_CHECKING:
    from lightning import Trainer

    from fedlightning.tasks.base import FederatedLightningModule


def check_fit(task: FederatedLightningModule, space: ParameterSpace) -> None:
    """Warn of what a fit leaves out, and refuse what would make its results wrong.

    Args:
        task: Attached to a trainer.
        space: The parameters of the task.

    Raises:
        TypeError: If an attribute of the task is nearly one by which tasks are trained, clients have models of their
            own that no callback would validate, or nodes are to validate a task with hooks of validation.
        ValueError: If a layer would mix the samples of clients, cohorts do not suit the channel, or its noise would not
            hide clients.
        UsageError: If this process is one of several that share clients, and the trainer would train in it alone, or
            these have another task or other data.
    """
    _require_all_processes(task.trainer)
    data: Any = task.trainer.datamodule  # type: ignore[attr-defined]
    require_same_run(task, data, DistributedProcesses() if task.trainer.world_size > 1 else OneProcess())
    require_known_attributes(task)
    check_batch_statistics(task)
    _warn_of_unused_pairs(task, space)
    for owner, optimizer in (
        (task.algorithm, "local_optimizer"),
        (getattr(task.algorithm, "solver", None), "optimizer"),
    ):
        _warn_of_unused_step_size(owner, optimizer)
    channels = task.federation_options.channel
    if isinstance(data, FederatedDataModule | RemoteClients):
        if channels is not None:
            require_suitable_cohorts(channels, len(task.algorithm.phases), data)
        _require_validation_within_an_epoch(task.trainer, data)
    if isinstance(data, FederatedDataModule):
        if task.predict_client is not None and task.predict_client >= data.num_clients:
            raise InvalidValueError(
                f"{type(task).__name__}(predict_client={task.predict_client}): the data have clients 0 to "
                f"{data.num_clients - 1}."
            )
        warn_of_single_samples(task, data)
        _say_what_partial_cohorts_cost(task, data)
        _say_what_is_not_validated(task, data)
    repeated = repeated_rounds(task, data)
    check_private_fit(task, data, repeated)
    if repeated:
        say_what_is_drawn_again(task, data, repeated)
    if nodes_validate(data) and is_overridden("validation_step", task) and task.trainer.limit_val_batches:
        require_measurable_at_nodes(task, "val")
    name = type(task.algorithm).__name__
    if task.algorithm.without_personal and not space.personal.dim:
        rank_zero_warn(
            f"{name} is a method for personal parameters, and {type(task).__name__} has none: it runs as "
            f"{task.algorithm.without_personal}. Name them in personal_parameters, or take that method by its name."
        )
    if task.evaluated_models and not evaluates_clients(task):
        raise InvalidTypeError(
            f"{type(task).__name__}.configure_callbacks leaves out EvaluateClients, without which clients' own "
            "models are never validated. Return [*super().configure_callbacks(), ...]."
        )


def _require_validation_within_an_epoch(trainer: Trainer, data: FederatedDataModule | RemoteClients) -> None:
    """Refuse what Lightning does, in terms of rounds."""
    interval, epoch = (
        getattr(trainer, "val_check_interval", None),
        data.rounds_per_epoch,
    )  # none if it goes by the clock
    if isinstance(interval, int) and interval > epoch and trainer.check_val_every_n_epoch is not None:
        across = settings({"trainer.check_val_every_n_epoch": None})
        longer = settings({"data.rounds_per_epoch": interval})
        raise InvalidValueError(
            f"Trainer(val_check_interval={interval}): an epoch has {epoch} rounds, within which Lightning counts. Set "
            f"{across} beside it, to validate after every {interval} rounds of the run, or {longer} of the data module."
        )


def require_round(batch: Any, phases: int, expected: int | None) -> None:
    """Make sure that a batch of training data is the round that comes next.

    Args:
        batch: What the train loader gave.
        phases: Number of phases of the algorithm.
        expected: Number of the round, from 0; None where one may come again.

    Raises:
        RuntimeError: If it is another round, or not of this algorithm.
        TypeError: If the data do not come from a federated data module.
    """
    if not isinstance(batch, RoundBatch):
        raise InvalidTypeError(
            f"training_step got a {type(batch).__name__} instead of a round of cohorts: train with a "
            "FederatedDataModule in place of a DataLoader, e.g. "
            "FederatedDataModule.from_datasets(train=[one data set a client])."
        )
    due = batch.index if expected is None else expected
    if (batch.index, batch.phases) != (due, phases):
        raise UsageError(
            f"Round {batch.index + 1} of {batch.phases} phases came from the train loader where round {due + 1} of "
            f"{phases} is due: a loader that is not of the trainer's data module knows neither the round nor the "
            "algorithm. Fit with trainer.fit(task, datamodule=data)."
        )


def warn_of_schedules_that_go_on(task: FederatedLightningModule) -> None:
    """Warn if schedules do not begin with the fit, because its Trainer has trained before and counts on."""
    trainer, varying = task.trainer, scheduled(task.algorithm)
    if trainer.global_step and not trainer.ckpt_path and varying:
        rank_zero_warn(
            f"{type(task).__name__}: this Trainer has trained before and goes on at round {trainer.global_step + 1}, "
            f"and so does the schedule of {next(iter(varying))}. With a new Trainer it begins again."
        )


def require_its_number_of_clients(task: FederatedLightningModule, num_clients: int) -> None:
    """Make sure that a task that holds every client's problem itself is fitted on data of as many clients.

    Args:
        task: Attached to a trainer.
        num_clients: Number of clients in the task, its argument of this name.

    Raises:
        ValueError: If the data have another number of clients.
    """
    data: Any = task.trainer.datamodule  # type: ignore[attr-defined]
    if isinstance(data, FederatedDataModule) and data.num_clients != num_clients:
        raise InvalidValueError(
            f"{type(task).__name__}(num_clients={num_clients}): the data have {data.num_clients} clients. Give the "
            f"task {settings({'model.num_clients': data.num_clients})}, or the data "
            f"{settings({'data.num_clients': num_clients})}."
        )


def evaluates_clients(task: FederatedLightningModule) -> bool:
    """Return whether the trainer has the callback that evaluates clients' own models."""
    trainer: Any = task.trainer
    return any(isinstance(callback, EvaluateClients) for callback in trainer.callbacks)


def _warn_of_unused_pairs(task: FederatedLightningModule, space: ParameterSpace) -> None:
    if any(block.min_dim < block.dim for block in (space.shared, space.personal)):
        return
    for name in per_block_fields(type(task.algorithm)):
        value = getattr(task.algorithm, name)
        if isinstance(value, Sequence) and len(value) == 2 and value[0] != value[1]:
            rank_zero_warn(
                f"{type(task.algorithm).__name__}({name}={list(value)}) is a pair [min, max], and "
                f"{type(task).__name__} maximises nothing: the second value is not used. Name what is maximised in "
                "max_parameters, or give one number."
            )


def _warn_of_unused_step_size(owner: Any, optimizer: str) -> None:
    """Warn if an optimizer of local steps has another step size than the one that its steps begin with.

    Args:
        owner: An algorithm or a local solver, before it is bound.
        optimizer: The field that may have the optimizer.
    """
    make = getattr(owner, optimizer, None)
    if make is None or isinstance(make, LocalOptimizer) or (own := own_step_size(make)) is None:
        return
    lr = in_force(owner, 0).lr
    begins = lr.values() if isinstance(lr, Mapping) else lr if isinstance(lr, Sequence) else [lr]
    if not any(isinstance(each, Real) and isclose(each, own, rel_tol=1e-6) for each in begins):
        rank_zero_warn(
            f"{type(owner).__name__}({optimizer}={name_of_optimizer(make)}) has lr={own:g} of its own, which no step "
            f"has: their size is that of {type(owner).__name__}(lr={owner.lr!r}). Give the size that is meant "
            "there, and the optimizer none."
        )


def _require_all_processes(trainer: Trainer) -> None:
    running = torch.distributed.is_available() and torch.distributed.is_initialized()
    count = torch.distributed.get_world_size() if running else 1
    if trainer.world_size != count > 1:
        raise UsageError(
            f"This is one of {count} processes, which an earlier fit has started. "
            f"Trainer(devices={trainer.world_size}) would train in each of them, and add up what all have computed. "
            "Fit with as many devices, or in a script of its own, from a checkpoint."
        )


def _say_what_is_not_validated(task: FederatedLightningModule, data: FederatedDataModule) -> None:
    if data.federation.val is not None and not is_overridden("validation_step", task):
        rank_zero_info(
            f"{type(task).__name__} has no validation_step, so the fit validates nothing. Write one to log metrics of "
            "the validation data."
        )


def _say_what_partial_cohorts_cost(task: FederatedLightningModule, data: FederatedDataModule) -> None:
    advice = task.algorithm.partial_cohorts
    if advice and data.participation.fewest(data.num_clients) < data.num_clients:
        rank_zero_info(f"{type(task.algorithm).__name__}: {advice}")
