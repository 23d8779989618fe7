"""Updates as differences from what the server knows already, which is what a channel acts on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import Field, fields, replace
from typing import Any

from torch import Tensor

from fedlightning.algorithms.base import Algorithm, PerClient
from fedlightning.core.errors import InvalidTypeError, InvalidValueError
from fedlightning.federation.protocol import Request
from fedlightning.federation.validation import tensors_of


class Differences:
    """Writes the updates that answer one request as differences from what the request has told, and back.

    A field of an update says by :func:`~fedlightning.algorithms.base.relative_to` which field of the broadcast it is
    near, or by :func:`~fedlightning.algorithms.base.increment` that it is near zero. Counts
    (:func:`~fedlightning.algorithms.base.count`) stay as they are.
    """

    def __init__(self, algorithm: Algorithm, request: Request) -> None:
        """Take what clients were told.

        Args:
            algorithm: The algorithm, for messages.
            request: What they are asked, which they have not written into.
        """
        self._algorithm = type(algorithm).__name__
        self._request = request

    def of(self, update: Any, client_ids: Sequence[int]) -> dict[str, Tensor]:
        """Return the differences of S clients, ``[S, n]`` by field; counts are left out.

        Raises:
            TypeError: If a field holds no real numbers, or does not declare what the server knows of it.
            ValueError: If what it names is not in the broadcast, or has another shape.
        """
        found: dict[str, Tensor] = {}
        for each in fields(update) if update is not None else ():
            if is_count(each):
                continue
            value, known = getattr(update, each.name), self._known(update, each, client_ids)
            if not value.is_floating_point():
                raise InvalidTypeError(
                    f"{self._algorithm} sends '{each.name}' as {value.dtype}, which no channel can change. Declare "
                    f"{each.name}: Tensor = count(), or send real numbers."
                )
            difference = value if known is None else value - self._fitting(each, value, known)
            found[each.name] = difference.reshape(len(value), -1)
        return found

    def put(self, update: Any, values: Mapping[str, Tensor]) -> Any:
        """Return an update with other numbers ``[S, n]`` in some fields, and the squared norms of these."""
        shapes = tensors_of(update)
        norms = {name: values[of].square().sum(1) for name, of in squared_norms_of(update).items() if of in values}
        changed = {**values, **norms}
        return update and replace(update, **{name: value.view_as(shapes[name]) for name, value in changed.items()})

    def added(self, update_type: type[Any], name: str, value: Tensor, client_ids: Sequence[int] = ()) -> Tensor:
        """Return a field, given its difference from what the server knows.

        Args:
            update_type: Class of the update.
            name: Name of the field.
            value: The difference, ``[...]`` of the aggregate or ``[S, ...]`` of S clients.
            client_ids: The S clients; empty for the aggregate.
        """
        declared = next(each for each in fields(update_type) if each.name == name)
        known = None if is_count(declared) else self._known(update_type, declared, client_ids)
        return value if known is None else value + known

    def _known(self, update: Any, each: Field[Any], client_ids: Sequence[int]) -> Tensor | None:
        """Return what the server knows of a field, ``[...]`` or ``[S, ...]``; None for zero."""
        which, message = each.metadata.get("relative_to"), self._request.message
        kind = update if isinstance(update, type) else type(update)
        if which is None:
            raise InvalidTypeError(
                f"{self._algorithm} sends {kind.__name__}.{each.name}, which does not say what the server knows of it: "
                "a channel would not know whether it is a point or a step. Declare in the dataclass "
                f"{each.name}: Tensor = relative_to('z') if it is near the field z of the broadcast, increment() if it "
                "is near zero, or count() if it counts something (all in fedlightning.algorithms)."
            )
        if not which:
            return None
        if not hasattr(message, which):
            raise InvalidValueError(
                f"{self._algorithm} sends {kind.__name__}.{each.name} relative to '{which}', but it broadcasts a "
                f"{type(message).__name__} without such a field. Name a field of the broadcast; if "
                f"{each.name} is a step, declare it increment() in a dataclass of its own."
            )
        known: Any = getattr(message, which)
        if known is None:  # a round without a new point, which still travels beside the message
            return self._request.point
        return known.of(client_ids) if isinstance(known, PerClient) else known

    def _fitting(self, each: Field[Any], value: Tensor, known: Tensor) -> Tensor:
        """Return what the server knows of S clients' values, if its shape fits."""
        shape = value.shape[1:] if known.shape != value.shape else value.shape
        if known.shape[-1:] != value.shape[-1:] or len(known.shape) > len(shape):
            raise InvalidValueError(
                f"{self._algorithm} sends '{each.name}' of shape {list(value.shape)} relative to "
                f"'{each.metadata['relative_to']}' of shape {list(known.shape)}; expected {list(value.shape[1:])}."
            )
        return known


def is_count(declared: Field[Any]) -> bool:
    """Return whether a field of an update counts something, so that channels leave it as it is."""
    return bool(declared.metadata.get("count"))


def accumulated(algorithm: Algorithm, update: Any) -> frozenset[str]:
    """Return the names of the fields that are increments of something which a client keeps, and the server adds up."""
    declared = () if update is None else fields(update)
    return frozenset(
        each.name
        for each in declared
        if each.metadata.get("over") == "all" or (algorithm.accumulates and each.metadata.get("relative_to") == "")
    )


def squared_norms_of(update: Any) -> dict[str, str]:
    """Return the fields that an update's squared norms are of, by their names; the update may be a class or None."""
    declared = () if update is None else fields(update)
    return {each.name: of for each in declared if (of := each.metadata.get("squared_norm_of")) is not None}


def counts_of(update: Any) -> list[str]:
    """Return the names of an update's counts; the update may be a class or None."""
    return [] if update is None else [each.name for each in fields(update) if is_count(each)]
