"""What an objective does with the task's own parameters while it is evaluated at other points."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from fedlightning.core.errors import InvalidValueError
from fedlightning.oracle.errors import reads_late, writes_into, writes_into_frozen
from fedlightning.oracle.objective import Named
from fedlightning.oracle.randomness import is_random


class ParameterWatch(TorchDispatchMode):
    """Notes which parameters an objective writes into, and which of the task's own it reads past its attributes.

    An evaluation replaces the task's trainable parameters by the tensors of a client. A reference to a parameter that
    the task has kept elsewhere still leads to the task's own.

    Attributes:
        draws: Whether random numbers were drawn.
        are_hidden: Whether operations are inside one that compiles them by itself (``torch.cond``).
        has_gone_back: Whether a backward pass has been watched.
    """

    def __init__(self, task: nn.Module) -> None:
        """Watch the parameters of a task."""
        super().__init__()
        self.draws = False
        self.are_hidden = False
        parameters = dict(task.named_parameters())
        self._frozen = {name: p for name, p in parameters.items() if not p.requires_grad}
        self._own = _by_place({name: p for name, p in parameters.items() if p.requires_grad})
        self._parameters = parameters
        self._names = _by_place(parameters)
        owners = ((name, _owner(b, self._own)) for name, b in task.named_buffers() if _has_place(b))
        self._buffers = _by_place({name: b for name, b in task.named_buffers() if _has_place(b)})
        self._shared_with = next(((name, owner) for name, owner in owners if owner is not None), None)
        self._written: dict[str, bool] = {}  # and whether an embedding renormalised it as its table
        self._read: str | None = None
        self._goes_back = False
        self.has_gone_back = False
        self._read_late: set[str] = set()
        self._before: dict[str, Tensor] = {}
        self._followed: list[tuple[str, Tensor, int, Tensor]] = []

    @contextmanager
    def going_back(self) -> Iterator[None]:
        """Note what a backward pass reads of the task, whose own tensors are in their places again by then."""
        self._goes_back = True
        try:
            yield
        finally:
            self._goes_back = False
        self.has_gone_back = True

    def follow(self, parameters: Named) -> None:
        """Note writes into the parameters of an evaluation as well, until :meth:`compare`."""
        self._names = _by_place(self._parameters)  # without those of the evaluation before, whose memory may be reused
        for place, ranges in _by_place(parameters).items():
            self._names.setdefault(place, []).extend(ranges)
        self._followed = [(name, p, p.data_ptr(), p.detach().clone()) for name, p in parameters.items()]

    def hide(self) -> None:
        """Leave operations alone from now on, and let those be compiled again that failed below this mode."""
        self.are_hidden = True
        torch.compiler.reset()

    def compare(self) -> None:
        """Note parameters with another storage or other values, because ``.data = ...`` is no operation."""
        followed, self._followed = self._followed, []
        for name, p, place, before in followed:
            moved = p.data_ptr() != place or p.shape != before.shape
            if moved or not torch.equal(p.nan_to_num(), before.nan_to_num()):
                self._written.setdefault(name, False)

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Put frozen parameters back when the context ends."""
        held = {name: p.data for name, p in self._frozen.items()}
        versions = {name: p._version for name, p in self._frozen.items()}
        try:
            yield
        finally:
            for name, p in self._frozen.items():
                if p.data_ptr() != held[name].data_ptr() or p._version != versions[name]:
                    self._written.setdefault(name, False)
                p.data = held[name]
                if name in self._before:
                    p.data.copy_(self._before[name])

    def require_present(self, name: str, changed_buffers: Collection[str] = ()) -> None:
        """Make sure that the objective takes parameters from the task's attributes, and changes none.

        Args:
            name: What messages call the objective.
            changed_buffers: Names of the buffers that it changes.

        Raises:
            ObjectiveError: If it writes into a parameter, or reads one in the backward pass.
            ValueError: If it reads one past the attributes, or a buffer is another name for one.
        """
        moved = next((each for each in self._written if each not in self._frozen), None)
        if moved is not None:
            raise writes_into(name, moved, by_embedding=self._written[moved])
        if self._written:
            raise writes_into_frozen(name, *next(iter(self._written.items())))
        late = sorted(each for each in self._read_late if each in self._parameters or each in changed_buffers)
        if late:
            raise reads_late(name, f"'{late[0]}'")
        if self._shared_with is not None:
            buffer, parameter = self._shared_with
            raise InvalidValueError(
                f"{name}: buffer '{buffer}' shares its memory with parameter '{parameter}', so it would follow the "
                "task's own tensor, not the client's. Register a copy: parameter.detach().clone()."
            )
        if self._read is not None:
            raise InvalidValueError(
                f"{name} reads parameter '{self._read}' through a reference that was kept elsewhere (in a "
                "list, a closure or another object). That is the task's own tensor, not the client's, so it would stay "
                f"as it is and have no gradient. Read self.{self._read}, or self.named_parameters(), in the objective."
            )

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        self.draws = self.draws or is_random(func, args, kwargs)
        for tensor in _tensors((*args, *kwargs.values())):
            owner = _owner(tensor, self._own)
            if self._goes_back:
                self._read_late.update(each for each in (owner, _owner(tensor, self._buffers)) if each is not None)
            else:
                self._read = owner or self._read
        if func._schema.is_mutable:
            for argument, value in zip(func._schema.arguments, args, strict=False):
                self._note(argument, value, func)
            for argument in func._schema.arguments:
                self._note(argument, kwargs.get(argument.name), func)
        return func(*args, **kwargs)

    def _note(self, argument: Any, value: Any, func: Any) -> None:
        if argument.alias_info is None or not argument.alias_info.is_write:
            return
        for tensor in _tensors((value,)):
            name = _owner(tensor, self._names)
            if name is None:
                continue
            if name in self._frozen and name not in self._before:
                self._before[name] = self._frozen[name].data.clone()
            self._written.setdefault(name, func is torch.ops.aten.embedding_renorm_.default)


_Places = dict[int, list[tuple[int, int, str]]]
"""Where parameters begin and end, with their names, by storage: several may lie in one."""


def _by_place(parameters: Named) -> _Places:
    found: _Places = {}
    for name, p in parameters.items():
        if _has_place(p):
            span = sum((size - 1) * stride for size, stride in zip(p.shape, p.stride(), strict=True)) + 1
            end = p.data_ptr() + span * p.element_size()
            found.setdefault(p.untyped_storage().data_ptr(), []).append((p.data_ptr(), end, name))
    return found


def _owner(tensor: Tensor, places: _Places) -> str | None:
    """Return the name of the parameter in whose memory a tensor begins, as all its views do; None if there is none."""
    ranges = places.get(tensor.untyped_storage().data_ptr(), ())
    return next((name for start, end, name in ranges if start <= tensor.data_ptr() < end), None)


def _tensors(values: Any) -> Iterator[Tensor]:
    """Yield the tensors with a storage among the arguments of an operation."""
    for value in values:
        if isinstance(value, list | tuple):
            yield from _tensors(value)
        elif isinstance(value, Tensor) and _has_place(value):
            yield value


def _has_place(tensor: Tensor) -> bool:
    return tensor.layout == torch.strided and tensor.numel() > 0
