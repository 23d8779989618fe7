"""Clients of different architectures: other sensors, other resolutions, other sets of classes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import nn

from fedlightning.core.errors import InvalidValueError, NoSuchClientError
from fedlightning.core.modules import named_modules


class PerArchitecture(nn.ModuleDict):
    """Represents a part of a network that differs between clients of different architectures.

    It stands where the part would stand, and calls the module of the active architecture. Its name belongs into the
    task's ``personal_parameters``: the modules differ in shape, so they never travel, and a client's personal block
    holds the module of its own architecture alone. The shared parameters are the same for all. Several parts of a
    network may differ, each by a choice of its own::

        self.sensor = PerArchitecture(
            {"watch": nn.Linear(9, 32), "phone": nn.Linear(6, 32)}, choice=["watch", "phone", ...]
        )

    The global model has the first architecture active. ``task.personalize(i)`` has client i's own module in this place,
    a plain one.
    """

    def __init__(self, architectures: dict[str, nn.Module], choice: Sequence[str] | Callable[[int], str]) -> None:
        """Set the modules of the architectures and the architecture of each client.

        Args:
            architectures: Modules by name. All clients of an architecture start at its parameters.
            choice: The name of every client's architecture, in the order of clients; or a function from a client's
                number to the name.

        Raises:
            ValueError: If there are no architectures, two share a parameter, or ``choice`` names another.
        """
        super().__init__(architectures)
        if not architectures:
            raise InvalidValueError("PerArchitecture(architectures={}): give one module at least.")
        owners: dict[int, str] = {}
        for name, module in architectures.items():
            for parameter in module.parameters():
                if owners.setdefault(id(parameter), name) != name:
                    raise InvalidValueError(
                        f"Architectures '{owners[id(parameter)]}' and '{name}' share a parameter. Give each a module "
                        "of its own, or name one of them for both groups of clients."
                    )
        if isinstance(choice, str):
            raise InvalidValueError(
                f"PerArchitecture(choice={choice!r}): expected a list of names, one a client, or a function."
            )
        self.choice = choice
        self.active = next(iter(architectures))
        if isinstance(choice, Sequence):
            for client in range(len(choice)):
                self.name_of(client)

    def name_of(self, client: int) -> str:
        """Return the name of a client's architecture.

        Raises:
            IndexError: If ``choice`` has no such client.
            ValueError: If ``choice`` names no architecture.
        """
        if isinstance(self.choice, Sequence):
            if not 0 <= client < len(self.choice):
                raise NoSuchClientError(
                    f"client={client}: choice names the architectures of {len(self.choice)} clients. Name one for "
                    "every client of the data."
                )
            name = self.choice[client]
        else:
            name = self.choice(client)
        if name not in self:
            raise InvalidValueError(
                f"choice: client {client} has architecture {name!r}; there are {', '.join(map(repr, self.keys()))}."
            )
        return name

    @property
    def active_module(self) -> nn.Module:
        """Return the module of the active architecture."""
        return self[self.active]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the module of the active architecture."""
        return self.active_module(*args, **kwargs)


class TaskArchitectures:
    """Manages all :class:`PerArchitecture` parts of a task together.

    A client's architecture is named by its choices in all parts, joined by dots. Where a task has no such parts, all
    clients are alike and their architecture is ``""``.
    """

    def __init__(self, task: nn.Module) -> None:
        """Find the :class:`PerArchitecture` parts of the task."""
        self._parts = {name: module for name, module in named_modules(task) if isinstance(module, PerArchitecture)}
        self.first = ".".join(next(iter(part)) for part in self._parts.values())

    def __bool__(self) -> bool:
        return bool(self._parts)

    @property
    def parts(self) -> tuple[str, ...]:
        """Return the dotted names of the parts in the task."""
        return tuple(self._parts)

    @property
    def active(self) -> str:
        """Return the active architecture."""
        return ".".join(part.active for part in self._parts.values())

    def of(self, client: int) -> str:
        """Return the architecture of a client."""
        return ".".join(part.name_of(client) for part in self._parts.values())

    def require(self, architecture: str) -> None:
        """Raise an error unless the task has an architecture of this name.

        Raises:
            ValueError: If it has none.
        """
        names = architecture.split(".") if self._parts else []
        parts = self._parts.values()
        if len(names) != len(parts) or any(name not in part for part, name in zip(parts, names, strict=True)):
            raise InvalidValueError(
                f"Architecture {architecture!r} is unknown to this task. Take cohorts from its Trainer's data loader, "
                "or give RoundLoader the task's architectures."
            )

    def activate(self, architecture: str) -> None:
        """Activate an architecture in all parts.

        Raises:
            ValueError: If the task has no such architecture.
        """
        self.require(architecture)
        for part, name in zip(self._parts.values(), architecture.split("."), strict=False):
            part.active = name

    @contextmanager
    def activated(self, architecture: str) -> Iterator[None]:
        """Activate an architecture within a ``with`` block."""
        before = self.active
        self.activate(architecture)
        try:
            yield
        finally:
            self.activate(before)

    def inactive(self) -> tuple[str, ...]:
        """Return the dotted prefixes of the modules of all other architectures."""
        return tuple(f"{name}.{other}" for name, part in self._parts.items() for other in part if other != part.active)


def keep_active_alone(task: nn.Module) -> None:
    """Replace every :class:`PerArchitecture` by the module of the active architecture."""
    for name, module in list(task.named_modules(remove_duplicate=False)):
        if isinstance(module, PerArchitecture):
            path, _, attribute = name.rpartition(".")
            setattr(task.get_submodule(path), attribute, module.active_module)
