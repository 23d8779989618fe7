"""Fields of a dataclass that tell whether anything reads them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import fields
from inspect import getattr_static
from typing import Any, TypeVar

T = TypeVar("T")

_READ: ContextVar[set[tuple[type, str]] | None] = ContextVar("fields that were read", default=None)


class _Noted:
    """Stands in a class for a field, whose values lie with the objects as those of any other field do."""

    def __init__(self, name: str, default: Any) -> None:
        self._name, self._default = name, default

    def __get__(self, owner: Any, kind: type | None = None) -> Any:
        if owner is None:
            return self._default
        read = _READ.get()
        if read is not None:
            read.add((type(owner), self._name))
        return vars(owner).get(self._name, self._default)

    def __set__(self, owner: Any, value: Any) -> None:
        vars(owner)[self._name] = value


def notes_reads_of(*names: str) -> Callable[[type[T]], type[T]]:
    """Return a decorator of dataclasses, above that of the dataclass itself, for :func:`reads_noted`.

    Subclasses inherit the fields that they do not declare anew.

    Args:
        names: Fields with a default.
    """

    def decorate(owner: type[T]) -> type[T]:
        for name in names:
            setattr(owner, name, _Noted(name, getattr(owner, name)))
        return owner

    return decorate


def noted(owner: Any) -> list[str]:
    """Return the fields of a dataclass's object of which reads are noted."""
    kind = type(owner)
    return [each.name for each in fields(owner) if isinstance(getattr_static(kind, each.name, None), _Noted)]


@contextmanager
def reads_noted(owner: object) -> Iterator[set[str]]:
    """Yield a set that has, when the block ends, the noted fields of the object, or of one like it, that were read."""
    found = set[str]()
    token = _READ.set(set())
    try:
        yield found
    finally:
        read = _READ.get() or ()
        _READ.reset(token)
        found.update(name for kind, name in read if kind is type(owner))
