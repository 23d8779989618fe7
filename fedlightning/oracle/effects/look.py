"""The first evaluation of an objective, which finds side effects and measures the cost."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.overrides import TorchFunctionMode

from fedlightning.core.errors import InvalidValueError
from fedlightning.core.seeding import seed_device
from fedlightning.core.tree import flatten, map_tensors
from fedlightning.oracle.effects.absent import Absence, attributes
from fedlightning.oracle.effects.fingerprint import changed, fingerprint
from fedlightning.oracle.effects.graph import has_own_functions, is_checkpointed
from fedlightning.oracle.effects.side_effects import Memory, hooked_module, undone, versions
from fedlightning.oracle.effects.watch import ParameterWatch
from fedlightning.oracle.errors import ObjectiveError, begins_to_write, reads_late, reads_what_was_left
from fedlightning.oracle.layers.lone_layers import LoneLayers
from fedlightning.oracle.objective import Named, Objective
from fedlightning.oracle.python_generators import python_generators_restored, python_state
from fedlightning.oracle.randomness import generator_state

_Result = TypeVar("_Result")

_MOST = 2**53  # float64 holds all whole numbers up to here
_GUESS = 4
"""Assumed bytes that autograd keeps, as a multiple of the parameters and the batch, where they cannot be measured."""


@dataclass(frozen=True)
class Look:
    """Reports what the first evaluation for one client shows.

    Attributes:
        buffers: Names of the buffers that the objective writes.
        draws: Whether the objective draws random numbers.
        loss: The client's loss, at the point and with the random numbers of the first evaluation.
        activation_bytes: Bytes that autograd keeps between forward and backward pass.
        changes_batch: Whether the objective writes into its batch.
        draws_in_python: Whether the objective draws random numbers from ``random`` or NumPy.
        hooks_tensors: Whether the objective puts hooks on tensors. Hooks need tensors that require gradients, which
            tensors below a ``vmap`` of the forward pass alone do not.
        alone: Why clients must be computed one by one; None if they need not be.
        rewritten: Names of attributes that every evaluation writes anew, and none reads before.
        left: Those of them that are another tensor after every evaluation.
    """

    buffers: tuple[str, ...]
    draws: bool
    loss: float
    activation_bytes: int
    changes_batch: bool
    draws_in_python: bool
    hooks_tensors: bool
    alone: str | None
    rewritten: frozenset[str] = frozenset()
    left: frozenset[str] = frozenset()

    @classmethod
    def at(cls, objective: Objective, z: Tensor, personal: Tensor, data: Any) -> Look:
        """Evaluate the objective twice at one point and twice at another; the task's attributes stay as they were.

        An attribute that the second evaluation changes again is state that adds up from call to call. An attribute that
        depends on what was evaluated before the other point is kept from call to call. A mode that is set, or a value
        that every evaluation writes anew, is neither. Of tensors that are written anew, further evaluations show which
        ones are written before they are read.

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
        registered = {name for name, _ in task.named_buffers()}
        buffers = {name: buffer.detach() for name, buffer in task.named_buffers() if name in space.buffers.names}
        watch = ParameterWatch(task)
        with undone(task), watch.restored(), python_generators_restored(), _Hooks() as hooks:
            state, here = torch.get_rng_state(), generator_state(z.device)
            once = map_tensors(torch.clone, data)
            batch, drawn = versions(once), python_state()
            seen = _evaluated(objective, z, personal, buffers, once, watch)
            draws = not torch.equal(here, generator_state(z.device))
            made = _buffers(task)
            changes_batch, draws_in_python = versions(once) != batch, python_state() != drawn
            between, held = fingerprint(task), attributes(task)
            torch.set_rng_state(state)
            _evaluated(objective, z, personal, buffers, map_tensors(torch.clone, data), watch)
            attribute = changed(between, fingerprint(task))
            again = attributes(task)
            left = {name for name, value in held.items() if isinstance(value, Tensor) and again.get(name) is not value}
            _require_constant(objective, registered, made, dict(task.named_buffers()))
            late = _after_another_point(objective, z, personal, buffers, data, watch)
        with undone(task), watch.restored(), python_generators_restored():
            left &= _written_first(objective, z, personal, buffers, data, watch, left)
        with undone(task), watch.restored(), python_generators_restored():
            memory = Memory(task)
            fresh = _after_another_point(objective, z, personal, buffers, data, watch)
            rewritten = frozenset(() if fresh is None else memory.changes())
            if late is not None and fresh is not None:
                attribute = attribute or changed(late, fresh)
        changed_buffers = {name: new for name, new in seen.buffers.items() if _written(buffers[name], new)}
        watch.require_present(objective.name, changed_buffers)
        for name, new in changed_buffers.items():
            _require_same_kind(name, buffers[name], new)
            _require_real(name, buffers[name])
            _require_real(name, new)
        return cls(
            tuple(changed_buffers),
            watch.draws or draws,
            seen.loss,
            seen.activation_bytes,
            changes_batch,
            draws_in_python,
            hooks.registered,
            _why_alone(objective.name, task, attribute, draws_in_python, watch.are_hidden),
            rewritten,
            rewritten & frozenset(left),
        )


class _Hooks(TorchFunctionMode):
    """Notes whether a hook is put on a tensor."""

    registered = False

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.registered = self.registered or func is Tensor.register_hook
        return func(*args, **(kwargs or {}))


class _Seen(NamedTuple):
    """Holds what one evaluation shows: the loss, the new buffers, and the rest as in :class:`Look`."""

    loss: float
    buffers: dict[str, Tensor]
    activation_bytes: int


def _evaluated(
    objective: Objective, z: Tensor, own_block: Tensor, buffers: Named, data: Any, watch: ParameterWatch
) -> _Seen:
    """Evaluate the objective for one client."""
    space = objective.space
    shared, personal = (
        {name: view.detach().to(objective.dtype, copy=True) for name, view in views.items()}
        for views in (space.shared.views(z), space.personal.views(own_block))
    )
    trained = {**shared, **personal}
    for parameter in trained.values():
        parameter.requires_grad_()
    watch.follow(trained)
    own = {parameter.untyped_storage().data_ptr() for parameter in trained.values()}
    saved: dict[int, int] = {}
    on_cpu = objective.autocast.on_cpu

    def note(tensor: Tensor) -> Tensor:
        saved[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor.detach()  # a tensor with its graph would keep itself alive for ever

    def evaluate(*observers: AbstractContextManager[Any]) -> tuple[Tensor, Sequence[Tensor]]:
        saved.clear()
        with ExitStack() as contexts:
            layers = LoneLayers(on_cpu, products=False)  # which a batch, for which memory is counted, does not compute
            for context in (torch.enable_grad(), objective.autocast(), layers, *observers):
                contexts.enter_context(context)
            loss, _, after = objective(shared, personal, buffers, data)
            if observers and (not watch.has_gone_back or has_own_functions(loss)) and loss.requires_grad:
                with watch.going_back():
                    found = torch.autograd.grad(loss, list(trained.values()), allow_unused=True, retain_graph=True)
                objective.rest.note(list(trained), found)
        return loss, after

    try:
        loss, after = _observed(evaluate, watch, saved_tensors_hooks(note, lambda tensor: tensor))
    except ObjectiveError:
        raise
    except Exception as error:
        raise ObjectiveError(f"{type(error).__name__}: {error}", place=0) from error
    if saved:
        size = sum(nbytes for pointer, nbytes in saved.items() if pointer not in own)
    else:
        size = _GUESS * sum(t.numel() * t.element_size() for t in (*shared.values(), *flatten(data)[0]))
    watch.compare()
    if is_checkpointed(loss):
        raise reads_late(objective.name, "parameters")
    return _Seen(float(loss.detach()), dict(zip(objective.space.buffers.names, after, strict=True)), size)


def _observed(evaluate: Callable[..., _Result], watch: ParameterWatch, hooks: AbstractContextManager[Any]) -> _Result:
    """Evaluate with the observers that the operations inside the objective tolerate; an error is that of none."""
    for observers in ((watch, hooks), (watch,)):  # hooks do not work with transformations of torch.func
        if watch.are_hidden:
            break
        try:
            return evaluate(*observers)
        except ObjectiveError:
            raise
        except RuntimeError as error:
            if "HigherOrderOperator" in str(error):  # nor a watch with torch.cond
                watch.hide()
    return evaluate()


def _require_constant(objective: Objective, registered: Collection[str], made: Named, now: Named) -> None:
    """Refuse an objective that goes on changing a buffer which clients share.

    Args:
        objective: The objective.
        registered: Names of the buffers that it did not make itself.
        made: Copies of all buffers after the first evaluation.
        now: All buffers after a further one.

    Raises:
        ValueError: If a buffer that was registered as None, or not at all, has changed.
        ObjectiveError: If a buffer has changed that was constant in the first round.
    """
    for name, value in now.items():
        if name not in objective.space.buffers.names and not _equal(made.get(name), value):
            if name in registered:
                raise begins_to_write(objective.name, "buffer", name)
            raise InvalidValueError(
                f"The objective makes the buffer '{name}', which was registered as None or not at all, and changes it "
                "from call to call. Register it in __init__ with a tensor of its shape, so that clients have one each."
            )


def _buffers(task: nn.Module) -> Named:
    return {name: buffer.detach().clone() for name, buffer in task.named_buffers()}


def _after_another_point(
    objective: Objective, z: Tensor, personal: Tensor, buffers: Named, data: Any, watch: ParameterWatch
) -> dict[str, Any] | None:
    """Return what the task remembers after an evaluation near ``z``, where every parameter differs from ``z``.

    None if the objective fails there: training may never come to such a point (outside a simplex, say).
    """
    seed_device(z.device, 0)
    point = z + 0.01 * (z.abs() + 0.01)
    try:
        _evaluated(objective, point, personal, buffers, map_tensors(torch.clone, data), watch)
    except ObjectiveError:
        return None
    return fingerprint(objective.task)


def _written_first(
    objective: Objective,
    z: Tensor,
    personal: Tensor,
    buffers: Named,
    data: Any,
    watch: ParameterWatch,
    names: Collection[str],
) -> set[str]:
    """Return those attributes that an evaluation writes before it reads them."""
    read: list[str] = []

    def refuse(name: str) -> Exception:
        read.append(name)
        return reads_what_was_left(objective.name, name)

    while True:
        first, known = set(names).difference(read), len(read)
        if not first:
            return first
        try:
            with Absence.of_attributes(objective.task, first, refuse)():
                _evaluated(objective, z, personal, buffers, map_tensors(torch.clone, data), watch)
        except ObjectiveError:
            if len(read) == known:  # it fails for another reason
                return set()
        if len(read) == known:
            return first


def _written(before: Tensor, after: Tensor) -> bool:
    """Return whether a buffer was written in place, even if with equal values, or has another value."""
    return after._version > 0 or not _equal(before, after)


def _equal(one: Tensor | None, other: Tensor) -> bool:
    return one is not None and torch.equal(one.to_dense(), other.to_dense())


def _require_same_kind(name: str, before: Tensor, after: Tensor) -> None:
    """Refuse to replace a buffer by a tensor of another kind or shape, which a client could not keep.

    Raises:
        ValueError: If it is.
    """
    if _kind(before) != _kind(after) or before.shape != after.shape:
        raise InvalidValueError(
            f"The objective replaces buffer '{name}', {before.dtype} of shape {list(before.shape)}, by {after.dtype} "
            f"of shape {list(after.shape)}. Register it as it is to become."
        )


def _kind(tensor: Tensor) -> tuple[bool, ...]:
    return tensor.dtype == torch.bool, tensor.is_floating_point(), tensor.is_complex()


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


def _why_alone(name: str, task: nn.Module, attribute: str | None, python: bool, compiled: bool) -> str | None:
    if compiled:
        return f"{name} has operations that compile what they are given (torch.cond), one client at a time"
    if attribute is not None:
        return f"{name} changes {attribute} in Python, once for every client it is evaluated for"
    if python:
        return f"{name} draws random numbers from Python or NumPy, which are the same for clients side by side"
    hooked = hooked_module(task)
    if hooked is not None:
        return f"'{hooked}' has a backward hook, which does not run for clients side by side"
    return None
