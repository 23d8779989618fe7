"""What a file may not have a class do: fetch something from the network."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_PLAIN = (bool, int, float, str, bytes, list, tuple, Mapping)


def fetching_nothing(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments of a class of which ``download`` counts as false; objects there, as a channel has, stay."""
    asked = arguments.get("download")
    inside = asked if isinstance(asked, list | tuple) else [asked]
    return {**arguments, "download": False} if any(isinstance(each, _PLAIN) for each in inside) else dict(arguments)
