"""The optimizer of a LightningModule, read off for the clients of a federation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from inspect import signature
from math import inf
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau

from fedlightning.core.errors import InvalidTypeError, InvalidValueError, UsageError
from fedlightning.core.parameter_space import ParameterSpace, PerBlock
from fedlightning.core.schedule import Schedule
from fedlightning.local import SGD, Adam, LocalOptimizer
from fedlightning.local.torch_optimizers import OptimizerCallable
from fedlightning.schedules.stepping import Options, options_of
from fedlightning.tasks.federated.hooks import PREFIX

_IMPLEMENTATION = {"foreach", "fused", "capturable", "differentiable", "initial_lr"}
"""Options of torch's optimizers that change how steps are computed, and not what they are."""

_REFUSED = {
    "maximize": "name what is maximised in max_parameters",
    "amsgrad": "leave it out, or take an optimizer without",
}


@dataclass(frozen=True)
class Configured:
    """Holds what ``configure_optimizers`` of a module returned.

    Attributes:
        optimizer: The one optimizer; None if the module has none.
        schedulers: Its schedulers, as Lightning takes them.
        ignores_schedule: Whether it has others, which are left out.
    """

    optimizer: Optimizer | None
    schedulers: tuple[Any, ...] = ()
    ignores_schedule: bool = False

    @classmethod
    def by(cls, module: Any) -> Configured:
        """Ask a module for its optimizer.

        Raises:
            TypeError: If it returns something that Lightning does not take.
            ValueError: If it returns several optimizers.
        """
        name, returned = type(module).__name__, module.configure_optimizers()
        optimizers, schedulers = _parts(returned)
        if len(optimizers) > 1:
            raise InvalidValueError(
                f"{name}.configure_optimizers returns {len(optimizers)} optimizers: a client takes one kind of steps "
                "in all blocks at once. Give one optimizer with parameter groups; for two players name one of them in "
                "max_parameters."
            )
        if not all(isinstance(each, Optimizer) for each in optimizers):
            raise InvalidTypeError(
                f"{name}.configure_optimizers returns a {type(returned).__name__} that holds no torch optimizer: "
                f"{returned!r}."
            )
        if optimizers and (optimizers[0]._optimizer_step_pre_hooks or optimizers[0]._optimizer_step_post_hooks):
            raise InvalidValueError(
                f"{name}.configure_optimizers returns an optimizer with step hooks, which no round would call: it is "
                "never stepped, clients' steps are made like it. Clip by the Trainer's gradient_clip_val, constrain "
                "parameters by a regularizer (fedlightning.proximal)."
            )
        return cls(optimizers[0] if optimizers else None, tuple(schedulers))


@dataclass(frozen=True)
class Settled:
    """Holds the options that an optimizer had when a fit began, which clients' steps have throughout.

    Attributes:
        module: Name of the module whose optimizer it is.
        optimizer: The optimizer; None if nothing is settled.
        options: Its options that schedulers set, of each group.
    """

    module: str = ""
    optimizer: Optimizer | None = None
    options: Sequence[Options] = ()

    @classmethod
    def now(cls, module: Any, optimizer: Optimizer | None) -> Settled:
        """Note the present options."""
        return cls(type(module).__name__, optimizer, () if optimizer is None else options_of(optimizer))

    def require_unchanged(self) -> None:
        """Make sure that the options are those that were noted.

        Raises:
            UsageError: If they were changed.
        """
        if self.optimizer is not None and options_of(self.optimizer) != self.options:
            raise UsageError(
                f"{self.module} has changed its optimizer's options during the fit, by a scheduler of its own, in a "
                "hook or in training_step. Clients' steps would not follow: they are settled when a fit begins. Return "
                "the scheduler from configure_optimizers, or give the algorithm a schedule of fedlightning.schedules."
            )


def _parts(returned: Any) -> tuple[list[Any], list[Any]]:
    """Return optimizers and schedulers of any form that Lightning takes."""
    if returned is None:
        return [], []
    if isinstance(returned, Mapping):
        scheduler = returned.get("lr_scheduler")
        if isinstance(scheduler, ReduceLROnPlateau):
            scheduler = {"scheduler": scheduler, "monitor": returned.get("monitor")}
        return [returned.get("optimizer")], [] if scheduler is None else [scheduler]
    if not isinstance(returned, list | tuple):
        return [returned], []
    if len(returned) == 2 and isinstance(returned[0], list | tuple):
        schedulers = returned[1] if isinstance(returned[1], list | tuple) else [returned[1]]
        return list(returned[0]), list(schedulers)
    several = [_parts(each) for each in returned]
    return [each for optimizers, _ in several for each in optimizers], [each for _, some in several for each in some]


@dataclass(frozen=True)
class Steps:
    """Describes steps of clients that are those of a torch optimizer.

    Attributes:
        lr: Step sizes, one number or by name prefix.
        optimizer: What else takes the steps; None for plain ones.
        name: Name of the torch optimizer.
    """

    lr: PerBlock
    optimizer: LocalOptimizer | OptimizerCallable | None
    name: str

    def require_to_move(self) -> None:
        """Make sure that clients' step sizes move their parameters.

        Raises:
            ValueError: If one is 0 or infinite in all rounds; others torch refuses itself.
        """
        by_name = self.lr if isinstance(self.lr, Mapping) else {"": self.lr}
        for prefix, lr in by_name.items():
            if not isinstance(lr, Schedule) and not 0 < lr < inf:
                where = f" for '{prefix.removeprefix(PREFIX)}'" if prefix else ""
                raise InvalidValueError(
                    f"The module's {self.name} has lr={lr}{where} in every round, with which no client can train: "
                    "expected a finite number > 0. Freeze parameters that are not to move with requires_grad_(False)."
                )


def steps_of(optimizer: Optimizer, groups_over_rounds: Sequence[Mapping[str, Any]], task: nn.Module) -> Steps:
    """Read a torch optimizer off.

    SGD, Adam and AdamW are taken over with all their parameter groups. Any other optimizer is made anew for the clients
    if its groups differ in their step sizes alone; whether it is elementwise is found out when it is bound.

    Args:
        optimizer: Of parameters of the task.
        groups_over_rounds: Its parameter groups, perhaps with schedules among their options.
        task: Names the parameters.

    Raises:
        TypeError: If an option is none that a client's optimizer can have.
        ValueError: If a parameter is none of the task's, or an option is not supported.
    """
    groups = _groups_by_name(optimizer, groups_over_rounds, task)
    for group in groups.values():
        for option, remedy in _REFUSED.items():
            if group.get(option):
                raise InvalidValueError(
                    f"{type(optimizer).__name__}({option}=True) is no optimizer of clients: {remedy}."
                )
    lr = by_prefix({name: _number(group["lr"]) for name, group in groups.items()})

    def each(option: str, number: int | None = None) -> Any:
        values = {name: group[option] if number is None else group[option][number] for name, group in groups.items()}
        return by_prefix({name: _number(value) for name, value in values.items()})

    kind = type(optimizer)
    if kind is torch.optim.SGD:
        made: Any = partial(SGD, each("momentum"), each("dampening"), each("weight_decay"))
        taken: Any = made(nesterov=_common(optimizer, groups, "nesterov"))
        plain = taken.momentum == 0.0 and taken.weight_decay == 0.0
        return Steps(lr, None if plain else taken, kind.__name__)
    if kind in (torch.optim.Adam, torch.optim.AdamW):
        decoupled = kind is torch.optim.AdamW or bool(_common(optimizer, groups, "decoupled_weight_decay", False))
        betas = each("betas", 0), each("betas", 1)
        return Steps(lr, Adam(*betas, each("eps"), each("weight_decay"), decoupled=decoupled), kind.__name__)
    every = {name for group in groups.values() for name in group} - {"lr", "params"} - _IMPLEMENTATION
    if own := sorted(every - set(optimizer.defaults)):
        raise InvalidValueError(
            f"{kind.__name__}: a parameter group has the option '{own[0]}', which its other groups need not have, so "
            "that one optimizer of all of a client's parameters could not be made. Give all groups the same options."
        )
    options = {name: _common(optimizer, groups, name) for name in optimizer.defaults if name in every}
    make: Any = kind
    if not {"lr", "kwargs"} & signature(make).parameters.keys():
        raise InvalidValueError(
            f"{kind.__name__} takes no argument lr, so that none could be made for clients with a step size of their "
            "own. Call its step size lr."
        )
    return Steps(lr, partial(make, lr=1.0, **options), kind.__name__)


def require_steps_in_all_blocks(space: ParameterSpace, steps: Steps | None) -> None:
    """Make sure that personal parameters are stepped like all others.

    Args:
        space: The parameters of the task.
        steps: The steps that clients are to take; None for those of the algorithm.

    Raises:
        ValueError: If only shared parameters would be.
    """
    if space.personal.dim and steps is not None and isinstance(steps.optimizer, partial):
        raise InvalidValueError(
            f"{steps.optimizer.func.__name__} would step shared parameters alone, and the personal ones would take "
            "plain steps of the same size. Take SGD, Adam or AdamW in configure_optimizers."
        )


def by_prefix(values: Mapping[str, Any]) -> PerBlock:
    """Return numbers or schedules by parameter in the shortest form: one of them, or several by name prefix.

    Args:
        values: A number or a schedule for each parameter name, at least one.
    """
    found: dict[str, Any] = {}

    def collect(prefix: str, names: Sequence[str]) -> None:
        own = {values[name] for name in names}
        if len(own) == 1:
            found[prefix] = own.pop()
            return
        depth = len(prefix.split(".")) + 1 if prefix else 1
        below: dict[str, list[str]] = {}
        for name in names:
            below.setdefault(".".join(name.split(".")[:depth]), []).append(name)
        for longer, some in below.items():
            collect(longer, some)

    collect("", list(values))
    return found.get("", found)


def _number(value: Any) -> Any:
    return value if isinstance(value, Schedule) else float(value)


def _groups_by_name(
    optimizer: Optimizer, groups: Sequence[Mapping[str, Any]], task: nn.Module
) -> dict[str, Mapping[str, Any]]:
    """Return the parameter group of each trained parameter, by name in the order of the task."""
    names = {id(parameter): name for name, parameter in task.named_parameters()}
    found: dict[str, Mapping[str, Any]] = {}
    for group in groups:
        for parameter in group["params"]:
            if id(parameter) not in names:
                raise InvalidValueError(
                    f"{type(optimizer).__name__} has a parameter of shape {list(parameter.shape)} that is no parameter "
                    "of the module, so clients would not train it. Make it one: self.name = nn.Parameter(...)."
                )
            if parameter.requires_grad:
                found[names[id(parameter)]] = group
    trained = [name for name, parameter in task.named_parameters() if parameter.requires_grad]
    if not trained:
        raise InvalidValueError(
            f"{type(optimizer).__name__} trains nothing: all parameters it was given are frozen, so there is nothing "
            "to federate. Leave requires_grad_(False) out for what clients train, and give the optimizer that."
        )
    return {name: found[name] for name in trained}


def _common(optimizer: Optimizer, groups: Mapping[str, Mapping[str, Any]], option: str, *default: Any) -> Any:
    """Return the value of an option that all groups must share."""
    first = next(iter(groups.values()))
    value = first.get(option, *default) if default else first[option]
    if any(group.get(option, *default) != value for group in groups.values()):
        raise InvalidValueError(
            f"{type(optimizer).__name__}: parameter groups differ in {option}, which has to be the same for all "
            "parameters of a client. Give them one value."
        )
    return value.item() if isinstance(value, Tensor) else value
