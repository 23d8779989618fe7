"""Messages about misspelt options and class paths: the wrong name, a similar name, the names that exist."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from difflib import get_close_matches
from functools import cache
from pathlib import Path

from fedlightning.cli import sources
from fedlightning.core.misspelt import did_you_mean, most_similar

_PACKAGES = (
    "algorithms",
    "channel",
    "channel.privacy",
    "data",
    "federation.client_states",
    "local",
    "models",
    "oracle",
    "participation",
    "proximal",
    "schedules",
    "tasks",
)


def no_option(given: str, name: str, options: Iterable[str]) -> str:
    """Return the message about an unknown option of the command.

    Args:
        given: As it was written.
        name: Without dashes and value.
        options: All there are, without dashes.
    """
    options = list(options)
    heads = sorted({option.partition(".")[0] for option in options})
    head, _, rest = name.partition(".")
    if head in heads or not rest:
        hint = did_you_mean(name, options)
    else:
        meant = get_close_matches(head, heads, n=1)
        hint = _mended(meant[0], rest, options) if meant else ""
    listed = [each for each in heads if each not in _OF_EVERY_PARSER]
    if not hint and listed and head not in heads:
        hint = f" Arguments begin with {', '.join(listed)}."
    return f"{given}: no such argument.{hint}"


_OF_EVERY_PARSER = ("help", "print_config", "print_shtab")


def _mended(head: str, rest: str, options: Iterable[str]) -> str:
    """Return a question that proposes an option under another head; what follows the head may be misspelt, too."""
    under = [option.removeprefix(f"{head}.") for option in options if option.startswith(f"{head}.")]
    close = get_close_matches(rest.partition(".")[0], under, n=1) if under else [rest]
    return f" Did you mean '{'.'.join([head, *close])}'?"


def no_argument(where: str, owner: str, name: str, known: Iterable[str]) -> str:
    """Return the message about an unknown argument of a class.

    Args:
        where: Key and value, as on the command line.
        owner: Name of the class.
        name: Of the argument; what follows a dot is not looked at.
        known: Arguments of the class.
    """
    known = list(known)
    listed = f" It takes {', '.join(known)}." if known else ""
    return f"{where}: {owner} has no argument '{name}'.{did_you_mean(name.partition('.')[0], known)}{listed}"


def no_name(where: str, module: str, name: str, known: Iterable[str]) -> str:
    """Return the message about a class path with an existing module but no such class."""
    return f"{where}={module}.{name}: {module} has no '{name}'.{did_you_mean(name, known)}"


def no_class(where: str, given: str) -> str:
    """Return the message about a class path that leads to no class, with the full path of a similar fedlightning class.

    Args:
        where: Key, as on the command line.
        given: A name without a module, or a path whose module is missing.
    """
    paths = own_classes()
    close = most_similar(given.rpartition(".")[2], paths)
    module = sources.missing_module(given)
    if module is None:
        missing = "no such class."
        remedy = f"A class of your own is given as module.Class, with the module installed or in {_HERE}, {Path.cwd()}."
    else:
        missing = f"no module '{module}' is installed or in {_HERE}, {Path.cwd()}."
        remedy = "Start the command in the folder that holds it, or install it."
    meant = _in_a_similar_module(given) or (None if close is None else paths[close])
    hint = remedy if meant is None else f"Did you mean '{meant}'?"
    return f"{where}={given}: {missing} {hint}"


_HERE = "the current folder"


def _in_a_similar_module(given: str) -> str | None:
    """Return the path of the same class in a module of the current folder whose name is similar."""
    module, _, name = given.rpartition(".")
    here = Path.cwd()
    modules = [path.stem for path in (*here.glob("*.py"), *(init.parent for init in here.glob("*/__init__.py")))]
    paths = (f"{each}.{name}" for each in get_close_matches(module, modules))
    return next((path for path in paths if _is_class(path)), None)


@cache
def own_classes() -> dict[str, str]:
    """Return the paths of the package's public classes, by class name."""
    return {
        name: f"fedlightning.{package}.{name}"
        for package in _PACKAGES
        for name in sources.names(f"fedlightning.{package}")
        if _is_class(f"fedlightning.{package}.{name}")
    }


def _is_class(path: str) -> bool:
    try:
        found = sources.find(path)
    except sources.NoSuchNameError:
        return False
    return found is not None and isinstance(found.node, ast.ClassDef)
