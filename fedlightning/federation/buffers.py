"""The buffers that an objective changes: which of them the server averages, and in which numbers all are kept.

A flat vector of real numbers holds the buffers of a client, whatever their dtypes. It is as precise as they need.
"""

from __future__ import annotations

from typing import Literal, Protocol

import torch
from torch import Tensor, nn

from fedlightning.core.errors import InvalidValueError
from fedlightning.core.parameter_space import Layout, ParameterSpace, read

Buffers = Literal["average", "local"]

_SHORT = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.float16, torch.bfloat16, torch.float32)


class ClientBuffers:
    """Divides the buffers that an objective changes into averaged and local ones, for clients of one architecture.

    Attributes:
        start: Their initial values, ``[b]``.
        averaged: Places of the averaged elements in ``start``, ``[a]``.
        averaged_names: Names of the buffers that the server averages.
    """

    def __init__(self, space: ParameterSpace, task: nn.Module, like: Tensor, policy: Buffers) -> None:
        """Take the initial values from the task.

        Args:
            space: Lists the buffers that the objective changes.
            task: Holds them.
            like: Gives the device and the least precise dtype.
            policy: With ``average`` the server averages the buffers, except those of personal layers; with ``local``
                each client keeps its own.
        """
        held = dict(task.named_buffers())
        changing = {name: held[name] for name in space.buffers.names}
        self._names = [name for name, tensor in changing.items() if not tensor.is_floating_point()]
        self.start = read(space.buffers, task, like=like.new_empty(0, dtype=_precise(changing, like)))
        self.averaged_names = () if policy == "local" else space.travelling_buffers
        self.averaged = (~(space.stay() | (policy == "local"))).nonzero().flatten().to(like.device)
        self._dtype = _precise({name: changing[name] for name in self.averaged_names}, like)
        sizes = torch.tensor(space.buffers.sizes, dtype=torch.long)
        whole = torch.tensor([not tensor.is_floating_point() for tensor in changing.values()], dtype=torch.bool)
        self._whole = whole.repeat_interleave(sizes).to(like.device) if whole.any() else None

    @property
    def has_local(self) -> bool:
        """Whether clients keep buffers that the server does not average."""
        return len(self.averaged) < len(self.start)

    @property
    def start_of_averaged(self) -> Tensor:
        """Initial values of the averaged buffers, ``[a]``."""
        return self.start[self.averaged].to(self._dtype)

    def joined(self, averaged: Tensor, own: Tensor | None = None) -> Tensor:
        """Return all buffers of S clients, ``[S, b]``; means of whole numbers are rounded.

        Args:
            averaged: The server's values for every client, ``[S, a]``.
            own: The clients' own values, ``[S, b]``, where they keep any.

        Raises:
            ValueError: If whole numbers have grown beyond what a flat vector holds.
        """
        whole = averaged.to(self.start.dtype)
        if own is not None:
            whole = own.index_copy(1, self.averaged, whole) if len(self.averaged) else own
        if self._whole is None:
            return whole
        if whole.dtype == torch.float64 and bool((whole.abs().masked_fill(~self._whole, 0.0) >= 2**53).any()):
            raise InvalidValueError(
                f"One of the buffers {', '.join(self._names)} has grown beyond 2^53, where float64 rounds whole "
                "numbers. Keep it smaller, or as a real number."
            )
        return torch.where(self._whole, whole.round(), whole)

    def finite_at_first(self, own: Tensor) -> Tensor:
        """Return those elements of the clients' buffers ``[S, b]`` that were finite at the start."""
        finite = self.start.isfinite()
        return own if bool(finite.all()) else own[:, finite]

    def changes(self, after: Tensor, known: Tensor) -> Tensor:
        """Return what S clients send: how far their averaged buffers ``[S, a]`` are from those of the server.

        Args:
            after: All buffers of the clients, ``[S, b]``.
            known: The server's values, ``[a]``.
        """
        if not known.numel():
            return known.expand(len(after), 0)
        return after[:, self.averaged].to(known.dtype) - finite_or_zero(known)


def finite_or_zero(values: Tensor) -> Tensor:
    """Return where changes of buffers are counted from: running minima start at infinity, and count from zero."""
    return values.nan_to_num(0.0, 0.0, 0.0)


def averaged_buffers(layout: Layout, task: nn.Module) -> Tensor:
    """Return the present values of averaged buffers, ``[a]``, in the numbers that all clients send them in."""
    like = next(parameter for parameter in task.parameters() if parameter.requires_grad)
    held = dict(task.named_buffers())
    return read(layout, task, like=like.new_empty(0, dtype=_precise({name: held[name] for name in layout.names}, like)))


class Averages(Protocol):
    """Knows which buffers the server averages."""

    @property
    def averaged_buffers(self) -> tuple[str, ...]:
        """Their names, in the order of their vector."""


def are_whole(table: Averages, task: nn.Module) -> Tensor | None:
    """Return which elements of the averaged buffers are whole numbers, ``[b]``; None if none is, as of most models.

    Args:
        table: Names the buffers.
        task: Holds them.
    """
    held = dict(task.named_buffers())
    whole = [torch.full((held[name].numel(),), not held[name].is_floating_point()) for name in table.averaged_buffers]
    return torch.cat(whole) if any(bool(each.any()) for each in whole) else None


def _precise(buffers: dict[str, Tensor], like: Tensor) -> torch.dtype:
    """Return the dtype that holds the buffers without rounding: that of the parameters, or float64.

    Counts of batches are left out: BatchNorm alone reads them, and float32 is exact up to 16 million.
    """
    short = all(tensor.dtype in _SHORT or name.endswith("num_batches_tracked") for name, tensor in buffers.items())
    at_least = torch.promote_types(like.dtype, torch.float32)
    return at_least if short or like.device.type == "mps" else torch.float64  # mps has no float64
