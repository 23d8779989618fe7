"""Transforms of single fields of an update."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import hypot

from torch import Tensor

from fedlightning.channel.base import Exchange, Fields, Sent, Transform
from fedlightning.channel.chain import Composed, Part, joined
from fedlightning.core.errors import InvalidTypeError, InvalidValueError
from fedlightning.core.validation import require_instance


@dataclass(frozen=True)
class ByField(Composed):
    """Applies to each field of an update a transform of its own.

    ``ByField({"dz": Clip(1.0), "dc": Clip(0.1)})`` clips the two fields of SCAFFOLD each by itself.

    Args:
        transforms: A transform for each of some fields, by the field's name; averaged buffers are the field
            ``buffers``. Fields without one pass as they are.
    """

    transforms: Mapping[str, Transform]

    def __post_init__(self) -> None:
        if not isinstance(self.transforms, Mapping) or not self.transforms:
            raise InvalidTypeError(
                f"ByField(transforms={self.transforms!r}): expected a transform by the name of a field, e.g. "
                "{'dz': Clip(1.0)}."
            )
        for name, transform in self.transforms.items():
            require_instance(f"ByField({{{name!r}: ...}}", transform, Transform, f"ByField({{{name!r}: Clip(1.0)}})")

    def apply(self, sent: Sent, memory: Fields, exchange: Exchange, purpose: int) -> tuple[Sent, Fields]:
        """Return the transformed fields among all others.

        Raises:
            ValueError: If an update lacks a field that is named.
        """
        values, bits, after = dict(sent.values), dict(sent.bits), dict[str, Tensor]()
        reports = dict(sent.reports)
        for part in self.parts:
            name = part.name
            if name not in values:
                raise InvalidValueError(
                    f"ByField names the field '{name}', which this update does not have; it has "
                    f"{', '.join(map(repr, values)) or 'none'}. For an algorithm with several phases give each its own "
                    "channel: PerPhase([...])."
                )
            own, kept = part.apply(Sent({name: values[name]}, {name: bits[name]}), memory, exchange, purpose)
            values[name], bits[name] = own.values[name], own.bits[name]
            reports |= own.reports
            after |= kept
        return replace(sent, values=values, bits=bits, reports=reports), after

    def memory(self, like: Fields) -> Fields:
        """Return the memories of the transforms, each for its field."""
        own = [part for part in self.parts if part.name in like]
        return joined((part.name, part.transform.memory({part.name: like[part.name]})) for part in own)

    def bound(self, before: float | None, names: Sequence[str], exchange: Exchange) -> float | None:
        """Return the root of the sum of the squared bounds of all fields, if every field has one.

        The norm of a field is at most that of all fields, so ``before`` bounds fields without a transform; together
        they count once.
        """
        parts = {part.name: part for part in self.parts}
        bounds = [
            parts[name].transform.bound(before, [name], parts[name].told(exchange)) for name in names if name in parts
        ]
        others = [] if set(names) <= set(parts) else [before]
        known = [each for each in (*bounds, *others) if each is not None]
        return hypot(*known) if len(known) == len(bounds) + len(others) else None

    @property
    def parts(self) -> list[Part]:
        """Return the transforms by their fields."""
        return [Part(name, place, each) for place, (name, each) in enumerate(sorted(self.transforms.items()))]
