"""A task's objective as a pure function of named tensors."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from numbers import Real
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedlightning.core.modules import first_trained
from fedlightning.core.parameter_space import ParameterSpace
from fedlightning.core.tree import map_tensors
from fedlightning.oracle.effects.absent import Absence
from fedlightning.oracle.effects.places import Place, places_outside
from fedlightning.oracle.effects.rest import Rest
from fedlightning.oracle.errors import ObjectiveError, reads_late
from fedlightning.oracle.layers.recurrent import weights_in_place
from fedlightning.oracle.recording.known import KnownRecordings

Named = Mapping[str, Tensor]


def name_of_objective(task: nn.Module) -> str:
    """Return what messages call a task's objective: its ``objective_name``, else its class and ``objective``."""
    return getattr(task, "objective_name", f"{type(task).__name__}.objective")


class Task(Protocol):
    """Has an objective: a :class:`~fedlightning.FederatedLightningModule`, or any module in tests."""

    def objective(self, batch: Any) -> Tensor | dict[str, Tensor]:
        """Return f_i on one client's minibatch, alone or as ``loss`` in a dict with further scalars to log."""


@dataclass(frozen=True)
class Autocast:
    """Describes the mixed precision of the objective.

    Attributes:
        device_type: ``cpu``, ``cuda``, ...
        dtype: Compute dtype; None leaves autocast off.
        scale: Factor of the loss during the backward pass (16-bit floats); the resulting gradients are unscaled.
    """

    device_type: str
    dtype: torch.dtype | None = None
    scale: float = 1.0

    @property
    def on_cpu(self) -> bool:
        """True if the objective runs on a CPU."""
        return self.device_type == "cpu"

    @property
    def on_gpu(self) -> bool:
        """True if the objective runs on a GPU of CUDA."""
        return self.device_type == "cuda"

    def __call__(self) -> AbstractContextManager[Any]:
        """Return the context in which the objective runs."""
        if self.dtype is None:
            return nullcontext()
        return torch.autocast(self.device_type, dtype=self.dtype, cache_enabled=False)


class Objective:
    """Evaluates ``task.objective`` at given parameters and buffers, leaving the task's own untouched.

    Attributes:
        task: The module with the objective.
        space: Names and blocks of the parameters, and the buffers that the objective changes.
        autocast: Mixed precision of the evaluation.
        name: What messages call the objective: the class and method that its author has written.
        dtype: Dtype of the task's trainable parameters.
        is_for_comparison: Whether evaluations are compared and thrown away, so that being right counts, not time.
        forward_only: Whether vmap can run the forward pass by itself; None until tried.
        compiled: What each function compiles to, kept here because it outlives rounds.
        recorded: Recordings of earlier rounds, kept here likewise.
        agreed: Kinds of compiled steps that were seen to end where the same steps end uncompiled.
        draws: Whether the objective draws random numbers; None if nobody has looked.
        draws_in_python: Whether the objective was seen to draw random numbers from ``random`` or NumPy.
        runs_alone: Whether one client evaluated without ``vmap`` agrees with plain evaluation; None until compared.
        changes_batch: Whether the objective was seen to write into its batch, so that it needs a copy.
        hooks_tensors: Whether the objective was seen to put hooks on tensors, which must then require gradients below
            ``vmap``.
        keeps_values: Whether the objective was seen to set attributes anew in every evaluation, such as activations.
        rest: Of which parameters the losses have depended.
    """

    def __init__(self, task: nn.Module, space: ParameterSpace, autocast: Autocast) -> None:
        """Wrap a task, a module with a method ``objective(batch)``."""
        self.task = task
        self.space = space
        self.autocast = autocast
        self.name = name_of_objective(task)
        self.is_for_comparison = False
        self.forward_only: bool | None = None
        self.compiled: dict[Any, Any] = {}
        self.recorded = KnownRecordings()
        self.agreed: set[Any] = set()
        self.draws: bool | None = None
        self.draws_in_python = False
        self.runs_alone: bool | None = None
        self.changes_batch = False
        self.hooks_tensors = False
        self.keeps_values = False
        self.rest = Rest()
        self._call = _ObjectiveModule(task)
        self.dtype = first_trained(task).dtype
        every, distinct = (
            [*task.named_parameters(remove_duplicate=once), *task.named_buffers(remove_duplicate=once)]
            for once in (False, True)
        )
        self._tied = len(every) > len(distinct)
        self._recurrent = [module for module in task.modules() if isinstance(module, nn.RNNBase)]

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the code that is of this process and this task: a copy compiles and records anew."""
        here = {name: value for name, value in vars(self).items() if name not in ("places", "going_back")}
        return {**here, "compiled": {}, "recorded": KnownRecordings(), "agreed": set()}

    @property
    def point_bytes(self) -> int:
        """The size of one client's parameters in memory, in bytes."""
        return (self.space.shared.dim + self.space.personal.dim) * self.dtype.itemsize

    @cached_property
    def places(self) -> list[Place]:
        """Where outside the task the objective may keep state."""
        return places_outside(self.task)

    @cached_property
    def going_back(self) -> Absence:
        """What keeps a backward pass from reading the task, which holds its own tensors again by then."""
        return Absence.of_trained(self.task, self.space.buffers.names, lambda name: reads_late(self.name, f"'{name}'"))

    def __call__(
        self, shared: Named, personal: Named, buffers: Named, data: Any
    ) -> tuple[Tensor, dict[str, Tensor], list[Tensor]]:
        """Evaluate f_i for one client.

        Args:
            shared: Shared parameters by name.
            personal: Personal parameters by name.
            buffers: The buffers that the objective changes, by name, in the parameters' dtype.
            data: One client's minibatch.

        Returns:
            The scalar loss, further scalars to log, and the buffers' new values in the layout's order.
        """
        if self.changes_batch:
            data = map_tensors(torch.clone, data)
        state = self._state(shared, personal, buffers)
        own = self._replaced()
        try:
            with weights_in_place(self._recurrent) if self._recurrent and self.autocast.on_gpu else nullcontext():
                result = functional_call(self._call, state, (data,), tie_weights=self._tied)  # a search takes time
        except BaseException:  # an interrupt may have kept PyTorch from putting the task's own tensors back
            for name, tensor in own:
                module, _, leaf = name.rpartition(".")
                setattr(self.task.get_submodule(module), leaf, tensor)
            raise
        loss, scalars = _split(result, self.name)
        return loss, scalars, [state[f"task.{name}"] for name in self.space.buffers.names]

    def _replaced(self) -> list[tuple[str, Tensor]]:
        """Return the task's own tensors that an evaluation replaces, by name; tied ones under all their names."""
        buffers = self.task.named_buffers() if self.space.buffers.names else ()
        changed = [(name, buffer) for name, buffer in buffers if name in self.space.buffers.names]
        return [*self.task.named_parameters(remove_duplicate=False), *changed]

    def _state(self, shared: Named, personal: Named, buffers: Named) -> dict[str, Tensor]:
        """Return the tensors that replace the task's own during an evaluation."""
        named = (*shared.items(), *personal.items())
        state = {f"task.{name}": tensor.to(self.dtype) for name, tensor in named}  # points may be more precise
        own = dict(self.task.named_buffers()) if buffers else {}
        for name, tensor in buffers.items():
            state[f"task.{name}"] = tensor.to(own[name].dtype, copy=True)  # the objective writes into its copy
        return state


class _ObjectiveModule(nn.Module):
    """Makes the objective the call of a module, because ``functional_call`` calls modules only."""

    def __init__(self, task: nn.Module) -> None:
        super().__init__()
        self.task = task

    def forward(self, data: Any) -> Any:
        return self.task.objective(data)  # type: ignore[operator]


def _remedy(loss: Any, scalars: Mapping[str, Any]) -> str:
    if isinstance(loss, Tensor):
        return "Average over the minibatch, e.g. with .mean()."
    if isinstance(loss, int | float):
        return "Return the tensor itself, without .item() or float()."
    if scalars:
        return f"Its keys are {', '.join(map(repr, scalars))}: name the loss 'loss'."
    return "Return the loss of the minibatch."


def _is_complex(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_complex()


def _split(result: Any, name: str) -> tuple[Tensor, dict[str, Tensor]]:
    scalars = dict(result) if isinstance(result, Mapping) else {"loss": result}
    loss = scalars.pop("loss", None)
    if not isinstance(loss, Tensor) or loss.dim() != 0:
        got = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else f"{type(loss).__name__}"
        raise ObjectiveError(
            f"{name} must return a scalar tensor or a dict with a scalar tensor 'loss'; got {got}. "
            f"{_remedy(loss, scalars)}"
        )
    if not loss.is_floating_point():
        raise ObjectiveError(
            f"{name} must return a real loss; got one of dtype {loss.dtype}, which has no gradient here. "
            "Compute it from the parameters in floating point (of a complex one: .real or .abs())."
        )
    strange = [key for key, value in scalars.items() if not isinstance(value, Tensor | Real) or _is_complex(value)]
    if strange:
        raise ObjectiveError(
            f"{name} returned '{strange[0]}' = {scalars[strange[0]]!r}; only real numbers can be logged."
        )
    wrong = [key for key, value in scalars.items() if isinstance(value, Tensor) and value.dim() != 0]
    if wrong:
        raise ObjectiveError(
            f"{name} returned '{wrong[0]}' of shape {tuple(scalars[wrong[0]].shape)}; only scalars can be logged."
        )
    return loss, {key: torch.as_tensor(value, device=loss.device).detach() for key, value in scalars.items()}
