"""Copies of what clients received, for objectives that compare what is trained with where it began."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from fedlightning.algorithms.base import PerClient, Point
from fedlightning.core.errors import InvalidValueError
from fedlightning.core.modules import named_parameters
from fedlightning.core.parameter_space import ParameterSpace, is_under, names_under
from fedlightning.federation.protocol import Request


@runtime_checkable
class KeepsReceived(Protocol):
    """A task with frozen copies of shared parameters, which are to have the values that clients receive.

    Attributes:
        received_parameters: Name prefix of the original, by the name prefix of its copy.
    """

    received_parameters: Mapping[str, str]


class ReceivedCopies:
    """Writes what comes with a request into a task's frozen copies, wherever its clients compute."""

    def __init__(self, task: nn.Module, space: ParameterSpace) -> None:
        """Find the copies.

        Args:
            task: Has them, if it is a :class:`KeepsReceived`; all other tasks are left alone.
            space: Names and blocks of the parameters. Copies of what does not travel stay as they are.

        Raises:
            ValueError: If a name fits no parameter, or a copy is trained, or has another shape than the original.
        """
        self._name, self._shared = type(task).__name__, space.shared
        self._task = task
        self._copies: list[tuple[str, Tensor]] = []  # with the names of their originals
        self._origins = dict(task.received_parameters) if isinstance(task, KeepsReceived) else {}
        shapes = dict(zip(self._shared.names, self._shared.shapes, strict=True))
        first = {id(parameter): name for name, parameter in named_parameters(task)}
        tied = {name: first[id(parameter)] for name, parameter in task.named_parameters(remove_duplicate=False)}
        known = [*tied, *(name for name, _ in task.named_buffers(remove_duplicate=False))]
        for prefix, origin in self._origins.items():
            for each in (prefix, origin):
                names_under(each, known, f"{self._name}.received_parameters", "parameter")
            for name, parameter in named_parameters(task):
                source = origin + name.removeprefix(prefix)
                source = tied.get(source, source)
                if not is_under(name, prefix) or source not in shapes:
                    continue
                if parameter.requires_grad or parameter.shape != shapes[source]:
                    raise InvalidValueError(
                        f"{self._name}.received_parameters: '{name}' {list(parameter.shape)} is no frozen copy of "
                        f"'{source}' {list(shapes[source])}. Make it by deepcopy, with requires_grad_(False)."
                    )
                self._copies.append((source, parameter))

    def fill(self, request: Request, averaged: Sequence[str] = (), changed: Collection[str] = ()) -> None:
        """Write the point that clients received: of the message if that is a point, else the global model.

        Args:
            request: What clients are asked.
            averaged: Names of the buffers that come with it, which copies have as well, in the order of their vector.
            changed: Names of the buffers that the objective changes; among a copy's they are left alone.

        Raises:
            ValueError: If clients received different points; there is one copy for all.
        """
        if not self._origins:
            return
        values = self._shared.views(self._received(request))
        with torch.no_grad():
            for name, copy in self._copies:
                copy.copy_(values[name])
            buffers = dict(self._task.named_buffers())
            parts = request.buffers.split([buffers[name].numel() for name in averaged])
            for name, value in zip(averaged, parts, strict=True):
                for prefix, origin in self._origins.items():
                    copied = prefix + name.removeprefix(origin)
                    if is_under(name, origin) and copied in buffers and copied not in changed:
                        buffers[copied].copy_(value.view_as(buffers[copied]))

    def _received(self, request: Request) -> Tensor:
        message = request.message
        if message is None:
            return request.point
        if any(isinstance(getattr(message, each.name), PerClient) for each in fields(message)):
            raise InvalidValueError(
                f"{self._name} compares with the model that all clients of a round received, but this algorithm sends "
                "clients models of their own. Take an algorithm that sends all the same, such as FedAvg."
            )
        return message.z if isinstance(message, Point) else request.point
