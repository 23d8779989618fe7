"""Hints at what was meant by a misspelt name."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from difflib import get_close_matches
from inspect import Parameter, signature
from typing import Any

from fedlightning.core.errors import InvalidTypeError


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a question that proposes the most similar known name, or an empty text."""
    close = most_similar(name, known)
    return "" if close is None else f" Did you mean '{close}'?"


def most_similar(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that is most similar to a name, whatever is upper case; None if none is similar.

    Of names that differ in case alone it is the one that is most similar as it is written.
    """
    names = list(known)
    folded = get_close_matches(name.casefold(), {each.casefold() for each in names}, n=1)
    alike = [each for each in names if each.casefold() in folded]
    return next(iter(get_close_matches(name, alike, n=1, cutoff=0.0)), None)


def require_arguments(function: str, given: Iterable[str], takers: Iterable[Callable[..., Any]]) -> None:
    """Make sure that keyword arguments which are handed on have names that one of the functions takes.

    Args:
        function: What the user has called.
        given: Names of the arguments.
        takers: The functions that take them.

    Raises:
        TypeError: If none takes one of them.
    """
    unnamed = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
    parameters = [each for taker in takers for each in signature(taker).parameters.values()]
    known = list(dict.fromkeys(each.name for each in parameters if each.kind not in unnamed and each.name != "self"))
    for name in given:
        if name not in known:
            hint = did_you_mean(name, known) or f" It takes {', '.join(known)}."
            raise InvalidTypeError(f"{function}({name}=...): there is no such argument.{hint}")
