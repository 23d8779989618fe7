"""The step of the global model after a round, taken by the one optimizer that Lightning sees."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.utilities import rank_zero_warn
from lightning.pytorch.utilities.model_helpers import is_overridden
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from fedlightning.core.errors import InvalidTypeError, InvalidValueError, UsageError
from fedlightning.core.parameter_space import write
from fedlightning.federation.simulation import Simulation
from fedlightning.tasks.fit.server_resume import changed_by_hand, note_given, note_schedule

OptimizerCallable = Callable[[Iterable[Tensor]], Optimizer]
LRSchedulerCallable = Callable[[Optimizer], LRScheduler]

EXAMPLES = {
    "server_optimizer": "functools.partial(torch.optim.Adam, lr=0.01)",
    "server_scheduler": "functools.partial(torch.optim.lr_scheduler.StepLR, step_size=10)",
}

_OF_TORCH = 1e-3
"""The learning rate that SGD has by itself."""

_AS_IT_IS = (
    "but without server_optimizer the server takes the algorithm's proposal as it is. Give "
    "server_optimizer=functools.partial(torch.optim.SGD, lr=1.0)"
)


@dataclass(frozen=True)
class ServerStep:
    """Moves the task's shared parameters after a round.

    The difference between the model and the algorithm's proposal serves as a gradient. SGD with a learning rate of 1
    therefore takes the proposal as it is, and Adam turns FedAvg into FedAdam.

    Attributes:
        optimizer: Makes the server optimizer; None for SGD with a learning rate of 1.
        scheduler: Makes a schedule of its learning rate, stepped once a round; None for none.
        clip: Largest norm of the algorithm's proposed move, above 0, before the optimizer; None for no limit.
    """

    optimizer: OptimizerCallable | None = None
    scheduler: LRSchedulerCallable | None = None
    clip: float | None = None

    @property
    def moves_freely(self) -> bool:
        """Return whether something besides the algorithm decides where the model goes."""
        return any(part is not None for part in (self.optimizer, self.scheduler, self.clip))

    def configure(self, parameters: Sequence[Tensor]) -> OptimizerLRScheduler:
        """Make the optimizer of the shared parameters and its schedule, in the form Lightning takes.

        Args:
            parameters: The shared parameters.

        Raises:
            TypeError: If optimizer or schedule is something else than its name says.
            ValueError: If the optimizer needs the loss, or moves other parameters, or these are of less than 32 bits.
        """
        self._require_full_precision(parameters)
        made: Optimizer = self._made(parameters)
        _require_optimizer(made, parameters)
        note_given(made)
        if self.scheduler is None:
            _say_if_it_hardly_moves(made)
            return made
        scheduler: Any = self.scheduler(made)
        if not isinstance(scheduler, LRScheduler):
            raise InvalidTypeError(
                f"server_scheduler made {scheduler!r}: expected a torch.optim.lr_scheduler of the optimizer it is "
                f"given, e.g. {EXAMPLES['server_scheduler']}."
            )
        if isinstance(scheduler, ReduceLROnPlateau):
            raise InvalidValueError(
                "server_scheduler=ReduceLROnPlateau: it waits for a metric, but is stepped once a round."
            )
        note_schedule(made, scheduler)
        return [made], [scheduler]

    def _made(self, parameters: Sequence[Tensor]) -> Any:
        """Return the optimizer of the server's step."""
        if self.optimizer is None:
            return torch.optim.SGD(parameters, lr=1.0)
        try:
            return self.optimizer(parameters)
        except ValueError as error:
            raise InvalidValueError(f"server_optimizer: {error}. Give it other options.") from error

    def _require_full_precision(self, parameters: Sequence[Tensor]) -> None:
        given = {"server_optimizer": self.optimizer, "server_scheduler": self.scheduler, "server_clip": self.clip}
        names = [name for name, value in given.items() if value is not None]
        low = next((str(each.dtype) for each in parameters if torch.finfo(each.dtype).bits < 32), None)
        if names and low:
            raise InvalidValueError(
                f"{names[0]} moves parameters of {low}, to which the server's point would be rounded in every round: "
                "small moves would be lost. Train with the Trainer's precision='bf16-mixed', where parameters have 32 "
                f"bits, or without {names[0]}."
            )

    def require_unchanged(self, task: LightningModule) -> None:
        """Refuse what was set by hand where the server takes the algorithm's proposal as it is.

        Raises:
            ValueError: If a hyper-parameter of the server's optimizer was set.
        """
        optimizer: Any = task.optimizers()
        changed = None if self.moves_freely else next(changed_by_hand(optimizer), None)
        if changed is not None:
            name, value = changed
            raise InvalidValueError(
                f"The {name} of the server's step was set to {value}, {_AS_IT_IS}, whose {name} may be changed."
            )

    def take(self, task: LightningModule, simulation: Simulation, scaler: Any, undone: bool) -> None:
        """Move the task's global model to the server's point after a round, or leave it if the round was undone.

        Args:
            task: Holds the model and, through Lightning, the optimizer.
            simulation: Holds the server that made a proposal.
            scaler: Lightning's gradient scaler; None where gradients are not scaled.
            undone: Whether the round was undone.

        Raises:
            RuntimeError: If a hook changes the step of a server that takes the proposal as it is.
        """
        server, space = simulation.server, simulation.space
        optimizer: Any = task.optimizers()
        parameters = dict(task.named_parameters())
        is_watched = not self.moves_freely and not undone and _hooks_may_change(task)
        expected: dict[str, Tensor] = {}
        with torch.no_grad():
            for name, target in space.shared.views(server.point).items():
                step = (parameters[name] - target).to(parameters[name].dtype)
                parameters[name].grad = step
                if is_watched:
                    expected[name] = parameters[name] - step
                if undone:  # no gradient, no step; a scaler wants one, and steps by no infinite one
                    parameters[name].grad = None if scaler is None else torch.full_like(step, torch.inf)
            if self.clip is not None and not undone:
                task.clip_gradients(optimizer, self.clip, "norm")
            if scaler is not None:
                for name in space.shared.names:
                    parameters[name].grad = scaler.scale(parameters[name].grad)
        optimizer.step()
        for name, value in expected.items():
            if not torch.allclose(parameters[name].detach(), value, rtol=1e-5, atol=0.0, equal_nan=True):
                raise UsageError(
                    f"on_before_optimizer_step changed the server's step of '{name}', {_AS_IT_IS}, whose gradients may "
                    "be changed."
                )
        optimizer.zero_grad()
        scheduler: Any = task.lr_schedulers()
        if scheduler is not None:
            scheduler.step()
        if self.moves_freely:
            moved = torch.cat([parameters[name].detach().flatten() for name in space.shared.names])
            server.move_to(moved.to(server.point))
        else:
            write(space.shared, task, server.point)
        simulation.write_buffers(task)


def _hooks_may_change(task: LightningModule) -> bool:
    """Return whether the task or a callback has a hook that sees the gradients of the server's step."""
    every: Any = [task, *task.trainer.callbacks]  # type: ignore[attr-defined]
    return any(is_overridden("on_before_optimizer_step", each) for each in every)


def _require_optimizer(optimizer: Any, parameters: Sequence[Tensor]) -> None:
    """Refuse an optimizer that would leave the global model unmoved, or needs the loss that the server lacks."""
    if not isinstance(optimizer, Optimizer):
        raise InvalidTypeError(
            f"server_optimizer made {optimizer!r}: expected a torch.optim.Optimizer of the parameters it is given, "
            f"e.g. {EXAMPLES['server_optimizer']}."
        )
    name = type(optimizer).__name__
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise InvalidValueError(
            f"server_optimizer={name}: it evaluates the loss several times a step, which no server can. Use one that "
            f"takes a gradient, e.g. {EXAMPLES['server_optimizer']}."
        )
    moved = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    if moved != set(map(id, parameters)):
        raise InvalidValueError(
            f"server_optimizer={name} was made for other parameters than the {len(parameters)} shared ones it was "
            "given, so the global model would not move as a whole. Use those, e.g. "
            f"{EXAMPLES['server_optimizer']}."
        )


def _say_if_it_hardly_moves(optimizer: Optimizer) -> None:
    """Warn of plain steps of the size that torch gives to SGD by itself, which suits no pseudo-gradient."""
    groups = optimizer.param_groups
    if type(optimizer) is torch.optim.SGD and all((each["lr"], each["momentum"]) == (_OF_TORCH, 0) for each in groups):
        rank_zero_warn(
            f"server_optimizer: SGD(lr={_OF_TORCH}), torch's default, moves the model by a thousandth of what the "
            "algorithm proposes in a round. lr=1.0 takes the proposal whole."
        )
