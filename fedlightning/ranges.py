"""Checks of hyper-parameters when an object is made, with messages that name the object, the value and the range."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from numbers import Real


def require(
    owner: object,
    *names: str,
    above: float | None = None,
    at_least: float | None = None,
    below: float | None = None,
    at_most: float | None = None,
    optional: bool = False,
) -> None:
    """Check attributes' ranges; of a pair or a mapping, every entry's.

    Args:
        owner: Has the attributes.
        names: The attributes, which are numbers, ``[min, max]`` or ``{prefix: number}``.
        above: Values must be greater than this.
        at_least: Values must be this or greater.
        below: Values must be less than this.
        at_most: Values must be this or less.
        optional: Whether None is a value, too.

    Raises:
        TypeError: If something is no number.
        ValueError: If a number is out of range, infinite or not a number.
    """
    for name in names:
        value = getattr(owner, name)
        if optional and value is None:
            continue
        given = f"{type(owner).__name__}({name}={value!r})"
        listed = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else [value]
        for entry in listed:
            if not isinstance(entry, Real):
                raise TypeError(f"{given}: expected a number, not {entry!r}.")
            number = float(entry)
            if not isfinite(number):
                raise ValueError(f"{given}: expected a finite number{', or null for no bound' if optional else ''}.")
            inside = [
                *([(number > above, f"> {above:g}")] if above is not None else []),
                *([(number >= at_least, f">= {at_least:g}")] if at_least is not None else []),
                *([(number < below, f"< {below:g}")] if below is not None else []),
                *([(number <= at_most, f"<= {at_most:g}")] if at_most is not None else []),
            ]
            if not all(holds for holds, _ in inside):
                expected = " and ".join(text for _, text in inside)
                raise ValueError(f"{given}: expected {expected}{', or null' if optional else ''}.")
