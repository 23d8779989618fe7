"""The first evaluation of an objective, which finds side effects and measures the cost."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from fedlightning.core.errors import InvalidValueError
from fedlightning.core.tree import flatten, map_tensors
from fedlightning.oracle.fingerprint import changed, fingerprint
from fedlightning.oracle.layers import LoneLayers
from fedlightning.oracle.objective import Named, Objective, ObjectiveError, writes_into
from fedlightning.oracle.randomness import python_generators_restored, python_state
from fedlightning.oracle.side_effects import Memory, undone, versions

_MOST = 2**53  # float64 holds all whole numbers up to here
_GUESS = 4
"""Assumed bytes that autograd keeps, as a multiple of the parameters and the batch, where they cannot be measured."""


@dataclass(frozen=True)
class Look:
    """Reports what the first evaluation for one client shows.

    Attributes:
        buffers: Names of the buffers that the objective writes.
        loss: The client's loss, at the point and with the random numbers of the first evaluation.
        activation_bytes: Bytes that autograd keeps between forward and backward pass.
        changes_batch: Whether the objective writes into its batch.
        draws_in_python: Whether the objective draws random numbers from ``random`` or NumPy.
        hooks_tensors: Whether the objective puts hooks on tensors. Hooks need tensors that require gradients, which
            tensors below a ``vmap`` of the forward pass alone do not.
        alone: Why clients must be computed one by one; None if they need not be.
        rewritten: Names of attributes that every evaluation writes anew, and none reads before.
    """

    buffers: tuple[str, ...]
    loss: float
    activation_bytes: int
    changes_batch: bool
    draws_in_python: bool
    hooks_tensors: bool
    alone: str | None
    rewritten: frozenset[str] = frozenset()

    @classmethod
    def at(cls, objective: Objective, z: Tensor, personal: Tensor, data: Any) -> Look:
        """Evaluate the objective twice at one point and twice at another; the task's attributes stay as they were.

        An attribute that the second evaluation changes again is state that adds up from call to call. An attribute that
        depends on what was evaluated before the other point is kept from call to call. A mode that is set, or a value
        that every evaluation writes anew, is neither.

        Args:
            objective: An objective whose space has all buffers of the task.
            z: Shared parameters, ``[d]``.
            personal: Personal block, ``[p]``.
            data: One client's minibatch.

        Raises:
            ObjectiveError: If the objective fails, or writes into a trainable parameter.
            ValueError: If it changes a buffer that cannot be kept for every client.
        """
        task, space = objective.task, objective.space
        buffers = {name: buffer.detach() for name, buffer in task.named_buffers() if name in space.buffers.names}
        fixed = {name: p for name, p in task.named_parameters() if not p.requires_grad}
        held = {name: p._version for name, p in fixed.items()}
        writes = _Writes(dict(task.named_parameters()))
        with undone(task), python_generators_restored(), _Hooks() as hooks:
            state = torch.get_rng_state()
            once = map_tensors(torch.clone, data)
            batch, drawn = versions(once), python_state()
            loss, after, size = _evaluated(objective, z, personal, buffers, once, writes)
            made = _buffers(task)
            changes_batch, draws_in_python = versions(once) != batch, python_state() != drawn
            between = fingerprint(task)
            torch.set_rng_state(state)
            _evaluated(objective, z, personal, buffers, map_tensors(torch.clone, data), writes)
            attribute = changed(between, fingerprint(task))
            _require_constant(objective, made, dict(task.named_buffers()))
            late = _after_another_point(objective, z, personal, buffers, data)
        with undone(task), python_generators_restored():
            memory = Memory(task)
            fresh = _after_another_point(objective, z, personal, buffers, data)
            rewritten = frozenset(() if fresh is None else memory.changes())
            if late is not None and fresh is not None:
                attribute = attribute or changed(late, fresh)
        moved = next((name for name in writes.found if name not in fixed), None)
        if moved is not None:
            raise writes_into(objective.name, moved, by_embedding=writes.found[moved])
        changed_buffers = {name: new for name, new in after.items() if _written(buffers[name], new)}
        for name, new in changed_buffers.items():
            _require_real(name, buffers[name])
            _require_real(name, new)
        parameter = next((name for name, p in fixed.items() if p._version != held[name] or name in writes.found), None)
        return cls(
            tuple(changed_buffers),
            loss,
            size,
            changes_batch,
            draws_in_python,
            hooks.registered,
            _why_alone(objective.name, task, attribute, parameter, draws_in_python, writes.are_hidden),
            rewritten,
        )


class _Hooks(TorchFunctionMode):
    """Notes whether a hook is put on a tensor."""

    registered = False

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.registered = self.registered or func is Tensor.register_hook
        return func(*args, **(kwargs or {}))


class _Writes(TorchDispatchMode):
    """Notes which parameters are written into, even if their values stay the same.

    Attributes:
        found: Names of the parameters, and whether an embedding renormalised the parameter as its table.
        are_hidden: Whether operations are inside one that compiles them by itself (``torch.cond``).
    """

    def __init__(self, parameters: Named) -> None:
        super().__init__()
        self.found: dict[str, bool] = {}
        self.are_hidden = False
        self._names: dict[int, str] = {}
        self._followed: list[tuple[str, Tensor, int, Tensor]] = []
        self._name(parameters)

    def follow(self, parameters: Named) -> None:
        """Note writes into further parameters."""
        self._name(parameters)
        self._followed += [(name, p, p.data_ptr(), p.detach().clone()) for name, p in parameters.items()]

    def _name(self, parameters: Named) -> None:
        places = {p.untyped_storage().data_ptr(): name for name, p in parameters.items() if p.numel()}
        self._names.update(places)

    def hide(self) -> None:
        """Leave operations alone from now on, and let those be compiled again that failed below this mode."""
        self.are_hidden = True
        torch.compiler.reset()

    def compare(self) -> None:
        """Note parameters with another storage or other values, because ``.data = ...`` is no operation."""
        for name, p, place, before in self._followed:
            moved = p.data_ptr() != place or p.shape != before.shape
            if moved or not torch.equal(p.nan_to_num(), before.nan_to_num()):
                self.found.setdefault(name, False)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func._schema.is_mutable:
            for argument, value in zip(func._schema.arguments, args, strict=False):
                self._note(argument, value, func)
            for argument in func._schema.arguments:
                self._note(argument, kwargs.get(argument.name), func)
        return func(*args, **kwargs)

    def _note(self, argument: Any, value: Any, func: Any) -> None:
        if argument.alias_info is None or not argument.alias_info.is_write:
            return
        for tensor in value if isinstance(value, list | tuple) else (value,):
            if isinstance(tensor, Tensor) and tensor.layout == torch.strided and tensor.numel():
                name = self._names.get(tensor.untyped_storage().data_ptr())
                if name is not None:
                    self.found.setdefault(name, func is torch.ops.aten.embedding_renorm_.default)


def _evaluated(
    objective: Objective, z: Tensor, own_block: Tensor, buffers: Named, data: Any, writes: _Writes
) -> tuple[float, dict[str, Tensor], int]:
    """Evaluate the objective, and return the loss, the new buffers and the bytes that autograd keeps."""
    space = objective.space
    shared, personal = (
        {name: view.detach().to(objective.dtype, copy=True) for name, view in views.items()}
        for views in (space.shared.views(z), space.personal.views(own_block))
    )
    for parameter in shared.values():
        parameter.requires_grad_()
    writes.follow({**shared, **personal})
    own = {parameter.untyped_storage().data_ptr() for parameter in shared.values()}
    saved: dict[int, int] = {}
    on_cpu = objective.autocast.on_cpu

    def note(tensor: Tensor) -> Tensor:
        saved[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    try:
        try:
            with (
                torch.enable_grad(),
                nullcontext() if writes.are_hidden else saved_tensors_hooks(note, lambda tensor: tensor),
                objective.autocast(),
                LoneLayers(on_cpu),
                nullcontext() if writes.are_hidden else writes,
            ):
                loss, _, after = objective(shared, personal, buffers, data)
            size = sum(nbytes for pointer, nbytes in saved.items() if pointer not in own)
        except ObjectiveError:
            raise
        except RuntimeError as error:  # hooks do not work with transformations of torch.func inside the objective
            if "HigherOrderOperator" in str(error):
                writes.hide()
            with torch.enable_grad(), objective.autocast(), LoneLayers(on_cpu):
                loss, _, after = objective(shared, personal, buffers, data)
            size = _GUESS * sum(t.numel() * t.element_size() for t in (*shared.values(), *flatten(data)[0]))
    except ObjectiveError:
        raise
    except Exception as error:
        raise ObjectiveError(f"{type(error).__name__}: {error}", place=0) from error
    writes.compare()
    return float(loss.detach()), dict(zip(objective.space.buffers.names, after, strict=True)), size


def _require_constant(objective: Objective, made: Named, now: Named) -> None:
    """Refuse an objective that goes on changing a buffer which it has made itself, and which clients then share.

    Args:
        objective: The objective.
        made: Copies of all buffers after the first evaluation.
        now: All buffers after a further one.

    Raises:
        ValueError: If a buffer that was registered as None, or not at all, has changed.
    """
    for name, value in now.items():
        if name not in objective.space.buffers.names and not _equal(made.get(name), value):
            raise InvalidValueError(
                f"The objective makes the buffer '{name}', which was registered as None or not at all, and changes it "
                "from call to call. Register it in __init__ with a tensor of its shape, so that clients have one each."
            )


def _buffers(task: nn.Module) -> Named:
    return {name: buffer.detach().clone() for name, buffer in task.named_buffers()}


def _after_another_point(
    objective: Objective, z: Tensor, personal: Tensor, buffers: Named, data: Any
) -> dict[str, Any] | None:
    """Return what the task remembers after an evaluation near ``z``, where every parameter differs from ``z``.

    None if the objective fails there: training may never come to such a point (outside a simplex, say).
    """
    torch.manual_seed(0)
    point = z + 0.01 * (z.abs() + 0.01)
    writes = _Writes(dict(objective.task.named_parameters()))
    try:
        _evaluated(objective, point, personal, buffers, map_tensors(torch.clone, data), writes)
    except ObjectiveError:
        return None
    return fingerprint(objective.task)


def _written(before: Tensor, after: Tensor) -> bool:
    """Return whether a buffer was written in place, even if with equal values, or has another value."""
    return after._version > 0 or not _equal(before, after)


def _equal(one: Tensor | None, other: Tensor) -> bool:
    return one is not None and torch.equal(one.to_dense(), other.to_dense())


def _require_real(name: str, buffer: Tensor) -> None:
    """Refuse a changing buffer that a client cannot keep as real numbers.

    Raises:
        ValueError: If it is sparse, complex, or holds whole numbers that float64 rounds.
    """
    if buffer.layout != torch.strided:
        raise InvalidValueError(
            f"The objective changes the sparse buffer '{name}', which cannot be kept for every client. Register it "
            "dense."
        )
    if buffer.is_complex():
        raise InvalidValueError(
            f"The objective changes buffer '{name}' of dtype {buffer.dtype}; changing buffers are kept as real "
            "numbers. Register torch.view_as_real(...) of it, and read it with torch.view_as_complex."
        )
    whole = not buffer.is_floating_point() and buffer.numel() > 0
    if whole and buffer.double().abs().max() > _MOST:
        raise InvalidValueError(
            f"The objective changes buffer '{name}', which holds whole numbers beyond 2^53 that float64 rounds. Keep a "
            "bit pattern or the state of a generator in a buffer of dtype int32."
        )


def _why_alone(
    name: str, task: nn.Module, attribute: str | None, parameter: str | None, python: bool, compiled: bool
) -> str | None:
    if compiled:
        return f"{name}.objective has operations that compile what they are given (torch.cond), one client at a time"
    if parameter is not None:
        return f"{name}.objective writes into the frozen parameter '{parameter}', which all clients share"
    if attribute is not None:
        return f"{name}.objective changes {attribute} in Python, once for every client it is evaluated for"
    if python:
        return (
            f"{name}.objective draws random numbers from Python or NumPy, which are the same for clients side by side"
        )
    hooked = next(
        (each for each, module in task.named_modules() if module._backward_hooks or module._backward_pre_hooks), None
    )
    if hooked is not None:
        return f"'{hooked}' has a backward hook, which does not run for clients side by side"
    return None
