"""Clients whose personal parts differ in shape: other sensors, other resolutions, other sets of classes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import nn


class Variants(nn.ModuleDict):
    """A part of a network of which every client has one of several variants.

    It stands where the part would stand, and calls the variant of the client at hand. Its name belongs into the task's
    ``personal_parameters``: variants differ in shape, so they never travel, and a client's personal block holds its own
    variant alone. The shared parameters are the same for all. Several parts may vary, each by a choice of its own::

        self.sensor = Variants({"watch": nn.Linear(9, 32), "phone": nn.Linear(6, 32)}, choice=["watch", "phone", ...])

    Until a client is at hand (in the global model) it is the first variant. ``task.personalize(i)`` has client i's
    variant itself in this place, a plain module.
    """

    def __init__(self, variants: dict[str, nn.Module], choice: Sequence[str] | Callable[[int], str]) -> None:
        """Name the variants and who has which.

        Args:
            variants: Modules by name. All clients of a variant start at its parameters.
            choice: The name of every client's variant, in the order of clients; or a function from a client's number
                to the name.

        Raises:
            ValueError: If there are no variants, two share a parameter, or ``choice`` names another.
        """
        super().__init__(variants)
        if not variants:
            raise ValueError("Variants(variants={}): give one module at least.")
        owners: dict[int, str] = {}
        for name, module in variants.items():
            for parameter in module.parameters():
                if owners.setdefault(id(parameter), name) != name:
                    raise ValueError(
                        f"Variants '{owners[id(parameter)]}' and '{name}' share a parameter. Give each a module of its "
                        "own, or name one of them for both kinds of clients."
                    )
        if isinstance(choice, str):
            raise ValueError(f"Variants(choice={choice!r}): expected a list of names, one a client, or a function.")
        self.choice = choice
        self.active = next(iter(variants))
        if isinstance(choice, Sequence):
            for client in range(len(choice)):
                self.name_of(client)

    def name_of(self, client: int) -> str:
        """The name of a client's variant.

        Raises:
            IndexError: If ``choice`` has no such client.
            ValueError: If ``choice`` names no variant.
        """
        if isinstance(self.choice, Sequence):
            if not 0 <= client < len(self.choice):
                raise IndexError(
                    f"client={client}: choice names the variants of {len(self.choice)} clients. Name one for every "
                    "client of the data."
                )
            name = self.choice[client]
        else:
            name = self.choice(client)
        if name not in self:
            raise ValueError(
                f"choice: client {client} has variant {name!r}; there are {', '.join(map(repr, self.keys()))}."
            )
        return name

    @property
    def chosen(self) -> nn.Module:
        """The variant at hand."""
        return self[self.active]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the variant at hand."""
        return self.chosen(*args, **kwargs)


class VariantChoice:
    """All :class:`Variants` of a task together: a client's variant is the names of its variants, joined by dots.

    It is empty for tasks without any, whose clients are all alike: their variant is ``""``.
    """

    def __init__(self, task: nn.Module) -> None:
        """Find them."""
        self._parts = {name: module for name, module in task.named_modules() if isinstance(module, Variants)}
        self.first = ".".join(next(iter(part)) for part in self._parts.values())

    def __bool__(self) -> bool:
        return bool(self._parts)

    @property
    def names(self) -> tuple[str, ...]:
        """Where they stand in the task."""
        return tuple(self._parts)

    @property
    def current(self) -> str:
        """The variant at hand."""
        return ".".join(part.active for part in self._parts.values())

    def of(self, client: int) -> str:
        """A client's variant."""
        return ".".join(part.name_of(client) for part in self._parts.values())

    def require(self, variant: str) -> None:
        """Make sure that there is such a variant.

        Raises:
            ValueError: If there is none.
        """
        names = variant.split(".") if self._parts else []
        parts = self._parts.values()
        if len(names) != len(parts) or any(name not in part for part, name in zip(parts, names, strict=True)):
            raise ValueError(
                f"Variant {variant!r} is unknown to this task. Deal cohorts through its Trainer, or give RoundLoader "
                "the task's variants."
            )

    def choose(self, variant: str) -> None:
        """Take a variant to hand.

        Raises:
            ValueError: If there is no such variant.
        """
        self.require(variant)
        for part, name in zip(self._parts.values(), variant.split("."), strict=False):
            part.active = name

    @contextmanager
    def chosen(self, variant: str) -> Iterator[None]:
        """Have a variant at hand for a while."""
        before = self.current
        self.choose(variant)
        try:
            yield
        finally:
            self.choose(before)

    def absent(self) -> tuple[str, ...]:
        """Dotted prefixes of the variants that are not at hand."""
        return tuple(f"{name}.{other}" for name, part in self._parts.items() for other in part if other != part.active)


def settle(task: nn.Module) -> None:
    """Put the variants at hand in the places of their :class:`Variants`, as plain modules."""
    for name, module in list(task.named_modules(remove_duplicate=False)):
        if isinstance(module, Variants):
            path, _, attribute = name.rpartition(".")
            setattr(task.get_submodule(path), attribute, module.chosen)
