"""Refusal of channels that lose for good what a client's memory counts as sent."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fedlightning.channel.base import Transform
from fedlightning.channel.by_field import ByField
from fedlightning.channel.chain import Chain
from fedlightning.channel.compression.compressor import Compressor
from fedlightning.channel.compression.error_feedback import ErrorFeedback
from fedlightning.core.errors import InvalidValueError


def require_kept_in_memory(transforms: Sequence[Transform]) -> None:
    """Make sure that no field is compressed after error feedback, which would never make up for it.

    Args:
        transforms: What each client applies to its update, in this order.

    Raises:
        ValueError: If a field is.
    """
    chain = Chain(transforms)
    for name in (None, *_named(chain)):
        before: ErrorFeedback | None = None
        for each in _of_field(chain, name):
            if isinstance(each, Compressor) and before is not None:
                raise InvalidValueError(
                    f"Channel(client=...): {each} comes after {before}, which counts as sent what {each} leaves out, "
                    f"so that it never arrives. Put ErrorFeedback({each}) in place of {each}, or leave one of them out."
                )
            before = each if isinstance(each, ErrorFeedback) else before


def _named(transform: Transform) -> list[str]:
    """Return the names of fields that have a transform of their own."""
    own = list(transform.transforms) if isinstance(transform, ByField) else []
    inner = transform.parts if isinstance(transform, ByField | Chain) else []
    return own + [name for part in inner for name in _named(part.transform)]


def _of_field(transform: Transform, name: str | None) -> Iterator[Transform]:
    """Yield what changes a field, one after the other; None stands for a field that is named nowhere."""
    if isinstance(transform, ByField):
        if name is not None and name in transform.transforms:
            yield from _of_field(transform.transforms[name], name)
    elif isinstance(transform, Chain):
        for each in transform.transforms:
            yield from _of_field(each, name)
    else:
        yield transform
