"""What a file may not have a class do: fetch something from the network."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

_PLAIN = (bool, int, float, str, bytes, list, tuple, Mapping)


def fetching_nothing(made: Callable[..., Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments in which ``download`` counts as false where it asks for fetching something.

    Objects there, as a channel has, stay, and so do values of a user's class that declares something else than a bool.

    Args:
        made: What takes the arguments.
        arguments: As a file has them.
    """
    asked = arguments.get("download")
    inside = asked if isinstance(asked, list | tuple) else [asked]
    if not any(isinstance(each, _PLAIN) for each in inside) or not _fetches(made):
        return dict(arguments)
    return {**arguments, "download": False}


def _fetches(made: Callable[..., Any]) -> bool:
    """Return whether ``download`` may have something fetched; what hands it on to others may."""
    try:
        declared = inspect.signature(made).parameters.get("download")
    except (TypeError, ValueError):
        return True
    if declared is None or str(getattr(made, "__module__", "")).startswith("fedlightning."):
        return True
    return isinstance(declared.default, bool) or declared.annotation in (bool, "bool")
