"""The parts of a packet: written under names, and read back with errors that say what is missing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeVar

from torch import Tensor

from fedlightning.algorithms.base import PerClient
from fedlightning.federation.remote.message_types import MessageTypes, type_name
from fedlightning.federation.remote.packet import Packet, PacketError, RawArray, Value, require_kind
from fedlightning.federation.remote.tensors import from_raw, to_raw

T = TypeVar("T")

_TYPE, _ABSENT = "type", "absent"
_OF_EACH = ("default", "client_ids", "values")
_SAME = ".same"


class Writer:
    """Collects the parts of a packet.

    Attributes:
        values: Plain values so far.
        arrays: Arrays so far.
    """

    def __init__(self, **values: Value) -> None:
        """Start with some plain values."""
        self.values: dict[str, Value] = dict(values)
        self.arrays: dict[str, RawArray] = {}
        self._written: dict[Any, tuple[str, Tensor]] = {}

    def tensor(self, name: str, tensor: Tensor | None) -> None:
        """Add a tensor; nothing for None, and the name alone of one that was added under another name before.

        Many an algorithm broadcasts the point that every request has, which would double the message.
        """
        if tensor is None:
            return
        place = (tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride(), tensor.device)
        if tensor.numel() and place in self._written:
            self.values[f"{name}{_SAME}"] = self._written[place][0]
            return
        self._written[place] = name, tensor  # as long as the tensor is there, nothing else can lie in its place
        self.arrays[name] = to_raw(tensor)

    def tensors(self, name: str, tensors: Mapping[str, Tensor]) -> None:
        """Add named tensors."""
        self.values[name] = list(tensors)
        for key, tensor in tensors.items():
            self.tensor(f"{name}/{key}", tensor)

    def message(self, name: str, message: Any) -> None:
        """Add an algorithm's message, a dataclass of tensors, numbers and None; or None.

        Raises:
            PacketError: If a field holds something else.
        """
        self.values[f"{name}.{_TYPE}"] = "" if message is None else type_name(type(message))
        if message is None:
            return
        absent = []
        for each in fields(message):
            value, place = getattr(message, each.name), f"{name}.{each.name}"
            if value is None:
                absent.append(each.name)
            elif isinstance(value, Tensor):
                self.tensor(place, value)
            elif isinstance(value, PerClient):
                for part in _OF_EACH:
                    self.tensor(f"{place}.{part}", getattr(value, part))
            elif isinstance(value, bool | int | float):
                self.values[place] = value
            else:
                raise PacketError(
                    f"{type(message).__name__}.{each.name} is a {type(value).__name__}, which cannot travel. Messages "
                    "between machines hold tensors, numbers and None."
                )
        self.values[f"{name}.{_ABSENT}"] = absent

    def packet(self, kind: str) -> Packet:
        """Return what was collected."""
        return Packet(kind, self.values, self.arrays)


class Reader:
    """Takes the parts of a packet out by their names."""

    def __init__(self, packet: Packet, kind: str) -> None:
        """Take a packet.

        Raises:
            PacketError: If it is of another kind.
        """
        require_kind(packet, kind)
        self._packet = packet
        self._tensors: dict[str, Tensor] = {}

    def value(self, name: str, of: type[T]) -> T:
        """Return a plain value.

        Args:
            name: Its name.
            of: Its type; whole numbers are taken for real ones.

        Raises:
            PacketError: If it is missing or of another type.
        """
        found: Any = self._packet.values.get(name)
        if of is float and type(found) is int:
            found = float(found)
        if type(found) is not of:
            raise self._wrong(name, of.__name__, found)
        return found

    def integers(self, name: str) -> list[int]:
        """Return a list of whole numbers."""
        return self._list(name, int)

    def strings(self, name: str) -> list[str]:
        """Return a list of strings."""
        return self._list(name, str)

    def has(self, name: str) -> bool:
        """Return whether there is a plain value of this name."""
        return name in self._packet.values

    def tensor(self, name: str) -> Tensor:
        """Return a tensor.

        Raises:
            PacketError: If it is missing.
        """
        same = self._packet.values.get(f"{name}{_SAME}", name)
        if not isinstance(same, str) or same not in self._packet.arrays:
            raise PacketError(f"A message of the kind {self._packet.kind!r} lacks the array {name!r}.")
        if same not in self._tensors:
            self._tensors[same] = from_raw(self._packet.arrays[same])
        return self._tensors[same]

    def optional_tensor(self, name: str) -> Tensor | None:
        """Return a tensor; None if there is none of this name."""
        return self.tensor(name) if self._has_tensor(name) else None

    def tensors(self, name: str) -> dict[str, Tensor]:
        """Return tensors that :meth:`Writer.tensors` wrote."""
        return {key: self.tensor(f"{name}/{key}") for key in self.strings(name)}

    def message(self, name: str, types: MessageTypes) -> Any:
        """Return an algorithm's message, or None.

        Raises:
            PacketError: If its class is unknown here, or a field is missing.
        """
        which = self.value(f"{name}.{_TYPE}", str)
        if not which:
            return None
        cls, absent = types.named(which), self.strings(f"{name}.{_ABSENT}")
        return cls(**{each.name: self._field(f"{name}.{each.name}", each.name in absent) for each in fields(cls)})

    def finish(self) -> None:
        """Make sure that all arrays were read.

        Raises:
            PacketError: If there are others, which nobody asked for.
        """
        if others := sorted(set(self._packet.arrays) - set(self._tensors)):
            raise PacketError(
                f"A message of the kind {self._packet.kind!r} has the array {others[0][:80]!r}, which does not belong "
                "into it."
            )

    def _field(self, place: str, absent: bool) -> Any:
        if absent:
            return None
        if place in self._packet.values:
            return self._packet.values[place]
        if self._has_tensor(f"{place}.{_OF_EACH[0]}"):
            return PerClient(*(self.tensor(f"{place}.{part}") for part in _OF_EACH))
        return self.tensor(place)

    def _has_tensor(self, name: str) -> bool:
        return name in self._packet.arrays or self.has(f"{name}{_SAME}")

    def _list(self, name: str, of: type[T]) -> list[T]:
        found: Any = self._packet.values.get(name)
        if not isinstance(found, list) or any(type(each) is not of for each in found):
            raise self._wrong(name, f"list of {of.__name__}", found)
        return found

    def _wrong(self, name: str, expected: str, found: object) -> PacketError:
        what = "nothing" if found is None else f"{found!r:.80}"
        return PacketError(f"A message of the kind {self._packet.kind!r} has {name} = {what}; expected a {expected}.")
